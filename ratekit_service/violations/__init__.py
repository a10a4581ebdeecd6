"""Violations: the refused requests, as the database has them."""
