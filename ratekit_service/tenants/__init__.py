"""Tenants: those who share the service, and do not see each other."""
