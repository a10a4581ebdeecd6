"""Deciding: from a request to a plan to a decision to an answer."""
