"""Metrics, log lines and spans of the service."""
