"""Violations: the rows of rate_limit_violations, one for each refused request."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, select

from ratekit.database.schema import LONGEST_NAME, violations

_row = violations.c


class Violation(NamedTuple):
    """A request that was refused: whose, where, by which limit, and how much was used of how much."""

    subject: str
    endpoint: str
    limit: str
    at: datetime.datetime
    used: int
    maximum: int
    tenant: str = ""


def add(connection: Connection, found: Sequence[Violation]) -> None:
    """Write violations in one statement."""
    connection.execute(insert(violations), [_values(violation) for violation in found])


def select_rows(
    connection: Connection,
    tenant: str | None = None,
    *,
    subject: str | None = None,
    endpoint: str | None = None,
    since: datetime.datetime | None = None,
    most: int = 100,
    after: int = 0,
) -> list[Violation]:
    """Return violations, the latest first; those of a tenant (None: of all), a subject, an endpoint, since a time."""
    query = select(violations).order_by(_row.violation_id.desc()).limit(most).offset(after)
    for column, value in ((_row.tenant_id, tenant), (_row.client_key, subject), (_row.endpoint, endpoint)):
        query = query if value is None else query.where(column == value)
    query = query if since is None else query.where(_row.violated_at >= since)
    return [_read(row) for row in connection.execute(query)]


def forget(connection: Connection, before: datetime.datetime) -> int:
    """Delete the violations before a time. Returns how many there were."""
    gone: Any = connection.execute(delete(violations).where(_row.violated_at < before))
    return int(gone.rowcount)


def _values(violation: Violation) -> dict[str, Any]:
    return {
        "tenant_id": violation.tenant,
        "client_key": _storable(violation.subject),
        "endpoint": _storable(violation.endpoint),
        "limit_name": violation.limit,
        "violated_at": violation.at,
        "request_count": violation.used,
        "limit_value": violation.maximum,
    }


def _storable(text: str) -> str:
    """Return a text as every database takes it: without NUL and lone surrogates, and cut to the column's width."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:LONGEST_NAME]


def _read(row: Any) -> Violation:
    return Violation(
        subject=row.client_key,
        endpoint=row.endpoint,
        limit=row.limit_name or "",
        at=row.violated_at,
        used=row.request_count,
        maximum=row.limit_value,
        tenant=row.tenant_id,
    )
