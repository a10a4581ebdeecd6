"""Limits by Envoy's descriptors: the file format of envoyproxy/ratelimit, and the tree that finds the limit of a descriptor."""
