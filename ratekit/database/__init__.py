"""The database: what outlives the counters. Rules, overrides, violations, tenants, plans, keys, the audit log.

One schema and one tree of migrations for all of ratekit: SQLite by default, Postgres and MySQL or MariaDB by URL. No check
of a limit ever waits for it. It needs the extra `sql`.
"""
