"""The configuration in memory: tenants, plans, keys, policies and rules, as checks need them; never older than a second."""
