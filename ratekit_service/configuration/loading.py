"""Loading: what a database has, or what has changed in it after a version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, select

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import Policy
from ratekit.database import schema
from ratekit.database.versions import current_version, deletions_since
from ratekit_service.configuration import records
from ratekit_service.configuration.snapshot import Changes
from ratekit_service.policies.resources import ResourcePattern, ResourcePolicy

Record = TypeVar("Record")


def load(connection: Connection, since: int, default_limit: Policy | None, *, every_rule: bool = False) -> Changes:
    """Return what has changed after a version; everything if it is 0, or too old.

    every_rule: all rules, as others may write them without raising the version.
    """
    version = current_version(connection)
    deleted = deletions_since(connection, since) if since else None
    since = since if deleted is not None else 0
    changes = Changes(version, is_whole=since == 0, has_every_rule=every_rule, deleted=deleted or [])
    reader = _Reader(connection, changes)
    changes.tenants = reader.read(schema.tenants, since, lambda row: records.tenant_of(row, default_limit))
    changes.plans = reader.read(schema.plans, since, records.plan_of)
    changes.keys = reader.read(schema.api_keys, since, records.key_of)
    changes.policies = reader.read(schema.resource_policies, since, _policy_of)
    changes.rules = reader.read(schema.rules, -1 if every_rule else since, records.rule_of)
    return changes


class _Reader:
    """Reads rows. A row that makes no sense is left out, and named; what it replaces stays in force."""

    def __init__(self, connection: Connection, changes: Changes) -> None:
        self._connection = connection
        self._changes = changes

    def read(self, table: Table, since: int, record_of: Callable[[Any], Record]) -> list[Record]:
        """Return a record for each row with a higher version; of all rows if it is not positive."""
        query = select(table) if since <= 0 else select(table).where(table.c.version > since)
        found = []
        for row in self._connection.execute(query).mappings():
            try:
                found.append(record_of(row))
            except (ConfigurationError, ValueError, TypeError, KeyError, AttributeError) as error:
                key = next(iter(table.primary_key)).name
                self._changes.refused.append(f"{table.name} {row[key]}: {error}")
        return found


def _policy_of(row: Any) -> ResourcePolicy:
    ResourcePattern(row["pattern"])
    return ResourcePolicy(row["id"], row["tenant_id"], row["pattern"], row["plan_id"], row["counter"])
