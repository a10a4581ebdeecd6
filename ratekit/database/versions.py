"""The version of the configuration: one number that every write raises in its own transaction.

A process with a copy of the configuration polls the number, and loads the rows with a higher version and the deletions.
The number's row is locked until a write is committed. So writes are committed in the order of their versions, and a reader
who has seen a version has seen all that is below it.

With an engine that is awaited, call these functions by `AsyncConnection.run_sync`.
"""

from __future__ import annotations

import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from ratekit.core.errors import DatabaseUnavailable
from ratekit.database.schema import config_deletions, config_version

ONLY_ROW = 1
_NO_ROW = "config_version has no row: the migrations have not been run, or the database was emptied"
KEPT = datetime.timedelta(days=1)  # for how long a deletion is remembered; who missed it loads everything


def raise_version(connection: Connection) -> int:
    """Raise the version and return it. To be called first in a transaction that writes: it makes writers take turns."""
    row = config_version.c
    changed = connection.execute(
        update(config_version).where(row.id == ONLY_ROW).values(version=row.version + 1, updated_at=func.now())
    )
    if changed.rowcount == 0:
        raise DatabaseUnavailable(_NO_ROW)
    return current_version(connection)


def current_version(connection: Connection) -> int:
    """Return the version in force."""
    version = connection.execute(select(config_version.c.version).where(config_version.c.id == ONLY_ROW)).scalar()
    if version is None:
        raise DatabaseUnavailable(_NO_ROW)
    return int(version)


def note_deletion(connection: Connection, version: int, kind: str, object_id: str) -> None:
    """Remember that an object was deleted, for those who hold a copy."""
    connection.execute(insert(config_deletions).values(version=version, kind=kind, object_id=object_id))


def deletions_since(connection: Connection, version: int) -> list[tuple[str, str]] | None:
    """Return the kind and id of what was deleted after a version; None if that is not known any more."""
    since = select(config_version.c.complete_since).where(config_version.c.id == ONLY_ROW)
    if int(connection.execute(since).scalar_one()) > version:
        return None
    found = config_deletions.c
    rows = connection.execute(select(found.kind, found.object_id).where(found.version > version).order_by(found.version))
    return [(kind, object_id) for kind, object_id in rows]


def forget_deletions(connection: Connection, before: datetime.datetime) -> int:
    """Forget the deletions before a time. Returns how many there were."""
    found = config_deletions.c
    last = connection.execute(select(func.max(found.version)).where(found.deleted_at < before)).scalar()
    if last is None:
        return 0
    connection.execute(update(config_version).where(config_version.c.id == ONLY_ROW).values(complete_since=last))
    gone: Any = connection.execute(delete(config_deletions).where(found.version <= last))
    return int(gone.rowcount)
