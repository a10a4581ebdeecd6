"""The overrides of every tenant in the database, of which the store has copies: a tenant's endpoints begin with its id."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from ratekit.admin.override_copies import now
from ratekit.database import override_table
from ratekit.database.engines import telling_outages
from ratekit.database.override_rows import OverrideRow
from ratekit.database.versions import current_version
from ratekit_service.policies.resources import endpoint_of


class TenantOverrides:
    """What `override_copies` copies. Calls wait for the database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def version(self) -> int:
        """Return the version of the configuration."""
        with telling_outages(), self._engine.connect() as connection:
            return current_version(connection)

    def rows(self) -> tuple[int, Sequence[OverrideRow]]:
        """Return the version, and the overrides of all tenants, with the endpoints that they have in the store."""
        with telling_outages(), self._engine.connect() as connection:
            return current_version(connection), [_in_store(row) for row in override_table.select_rows(connection, None)]

    def expire(self) -> int:
        """Move the overrides that have ended to the history. Returns how many there were."""
        with telling_outages(), self._engine.begin() as connection:
            return override_table.expire(connection, now())


def _in_store(row: OverrideRow) -> OverrideRow:
    return row._replace(endpoint=endpoint_of(row.tenant, row.endpoint)) if row.tenant else row
