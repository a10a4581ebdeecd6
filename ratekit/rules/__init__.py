"""Limits from documents."""
