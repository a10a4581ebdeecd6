"""Migrations: they run those of ratekit's own tree, in Django's database."""
