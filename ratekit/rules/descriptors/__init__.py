"""Limits by Envoy's descriptors: the file format of envoyproxy/ratelimit, and the tree that finds a descriptor's limit."""
