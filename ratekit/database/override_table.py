"""Overrides that last: the rows of rate_limit_overrides and their history. Every change is one transaction.

A row without an endpoint refers to a row of rate_limit_rules, whose endpoint it has. There is at most one override of a
subject on an endpoint: writers take turns at the version of the configuration, see `versions`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select, update

from ratekit.database.override_rows import Change, OverrideRow
from ratekit.database.schema import override_history, overrides, rules
from ratekit.database.versions import note_deletion, raise_version

KIND = "override"  # of a deletion
MAX_REQUESTS = "max_requests"
_row, _past = overrides.c, override_history.c
_endpoint = func.coalesce(_row.endpoint, rules.c.endpoint).label("endpoint")


def put(connection: Connection, row: OverrideRow, now: datetime.datetime) -> OverrideRow:
    """Write an override, in place of the one that the subject has on the endpoint. Returns the row as written."""
    row = row._replace(version=raise_version(connection), set_at=now)
    known = connection.execute(_of(row.tenant, row.subject, row.endpoint)).first()
    values = _values(row) | {"client_key": row.subject, "tenant_id": row.tenant, "version": row.version}
    if known is None:
        values |= {"endpoint": row.endpoint, "created_at": now}
        made: Any = connection.execute(insert(overrides).values(**values, updated_at=now))
        override_id = made.inserted_primary_key[0]
    else:
        override_id = known.override_id
        connection.execute(update(overrides).where(_row.override_id == override_id).values(**values, updated_at=now))
    _remember(connection, "set", override_id, row, row.set_by, row.reason, now)
    return row


def remove(
    connection: Connection,
    tenant: str,
    subject: str,
    endpoint: str,
    by: str | None,
    reason: str | None,
    now: datetime.datetime,
) -> bool:
    """Delete the override of a subject on an endpoint. Returns whether there was one."""
    version = raise_version(connection)
    known = connection.execute(_of(tenant, subject, endpoint)).first()
    if known is None:
        return False
    _delete(connection, version, known, "delete", by, reason, now)
    return True


def expire(connection: Connection, now: datetime.datetime) -> int:
    """Move the overrides that have ended to the history. Returns how many there were."""
    ended = list(connection.execute(_all().where(_row.valid_until <= now)))
    version = raise_version(connection) if ended else 0
    for row in ended:
        _delete(connection, version, row, "expire", None, None, now)
    return len(ended)


def find(connection: Connection, tenant: str, subject: str, endpoint: str) -> OverrideRow | None:
    """Return the override of a subject on an endpoint, or None. It may have ended."""
    found = connection.execute(_of(tenant, subject, endpoint)).first()
    return None if found is None else _read(found)


def select_rows(
    connection: Connection,
    tenant: str | None = None,
    *,
    subject: str | None = None,
    endpoint: str | None = None,
    after: int = 0,
    most: int | None = None,
) -> list[OverrideRow]:
    """Return overrides by subject, then endpoint; those of a tenant (None: of all), a subject, an endpoint; a page."""
    query = _all().order_by(_row.tenant_id, _row.client_key, _endpoint)
    for column, value in ((_row.tenant_id, tenant), (_row.client_key, subject), (_endpoint, endpoint)):
        query = query if value is None else query.where(column == value)
    return [_read(row) for row in connection.execute(query.offset(after).limit(most))]


def history(
    connection: Connection, tenant: str, *, subject: str | None = None, endpoint: str | None = None, most: int = 100
) -> list[Change]:
    """Return what was changed, the latest first."""
    query = select(override_history).where(_past.tenant_id == tenant)
    for column, value in ((_past.client_key, subject), (_past.endpoint, endpoint)):
        query = query if value is None else query.where(column == value)
    rows = connection.execute(query.order_by(_past.history_id.desc()).limit(most))
    return [_read_change(row) for row in rows]


def _all() -> Select[Any]:
    joined = overrides.outerjoin(rules, _row.rule_id == rules.c.rule_id)
    names = [column for column in overrides.columns if column.name != "endpoint"]
    return select(*names, _endpoint).select_from(joined)


def _of(tenant: str, subject: str, endpoint: str) -> Select[Any]:
    return _all().where(_row.tenant_id == tenant, _row.client_key == subject, _endpoint == endpoint)


def _delete(
    connection: Connection, version: int, row: Any, action: str, by: str | None, reason: str | None, now: datetime.datetime
) -> None:
    connection.execute(delete(overrides).where(_row.override_id == row.override_id))
    note_deletion(connection, version, KIND, str(row.override_id))
    _remember(connection, action, row.override_id, _read(row), by, reason, now)


def _remember(
    connection: Connection,
    action: str,
    override_id: int,
    row: OverrideRow,
    by: str | None,
    reason: str | None,
    now: datetime.datetime,
) -> None:
    values = _values(row) | {"changed_by": by, "reason": reason, "changed_at": now, "action": action}
    del values["set_by"]
    values |= {"override_id": override_id, "tenant_id": row.tenant, "client_key": row.subject, "endpoint": row.endpoint}
    connection.execute(insert(override_history).values(**values))


def _values(row: OverrideRow) -> dict[str, Any]:
    """Return the columns of an override's numbers. The maximum has one of its own, as in the published table."""
    maximum = row.fields.get(MAX_REQUESTS)
    return {
        MAX_REQUESTS: None if maximum is None else int(maximum),
        "fields": {name: text for name, text in row.fields.items() if name != MAX_REQUESTS} or None,
        "valid_until": row.valid_until,
        "set_by": row.set_by,
        "reason": row.reason,
    }


def _fields(row: Any) -> dict[str, str]:
    maximum = {} if row.max_requests is None else {MAX_REQUESTS: str(row.max_requests)}
    return maximum | {str(name): str(text) for name, text in _pairs(row.fields)}


def _pairs(fields: Any) -> Iterable[tuple[Any, Any]]:
    return fields.items() if isinstance(fields, Mapping) else ()


def _read(row: Any) -> OverrideRow:
    return OverrideRow(
        subject=row.client_key,
        endpoint=row.endpoint or "*",
        fields=_fields(row),
        valid_until=row.valid_until,
        set_by=row.set_by,
        reason=row.reason,
        set_at=row.updated_at,
        version=row.version,
        tenant=row.tenant_id,
    )


def _read_change(row: Any) -> Change:
    return Change(
        action=row.action,
        subject=row.client_key,
        endpoint=row.endpoint or "*",
        fields=_fields(row),
        valid_until=row.valid_until,
        changed_by=row.changed_by,
        reason=row.reason,
        changed_at=row.changed_at,
    )
