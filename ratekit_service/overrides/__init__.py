"""Temporary overrides: a subject's own numbers, kept in the database and copied to the store."""
