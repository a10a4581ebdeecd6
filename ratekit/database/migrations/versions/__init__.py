"""One file for each migration, in the order of their numbers."""
