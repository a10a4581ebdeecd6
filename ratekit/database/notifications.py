"""Notifications of Postgres: they tell of a write at once, where polling tells of it after a moment.

A notification is sent with the commit, and never after a rollback. A connection that ends loses those that are sent
meanwhile, so they only accelerate a poll.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import URL, Connection, func, select

from ratekit.core.errors import DatabaseUnavailable
from ratekit.database.engines import CONNECT_SECONDS

CHANNEL = "ratekit_config"


def notify(connection: Connection, version: int) -> None:
    """Tell listeners of a version when the transaction is committed; nothing on databases that cannot."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_notify(CHANNEL, str(version))))


def can_listen(url: URL) -> bool:
    """Whether a database can tell of writes."""
    return url.get_backend_name() == "postgresql"


async def listen(url: URL) -> AsyncIterator[None]:
    """Yield once when it begins to listen, and then for every notification. Raises DatabaseUnavailable when it ends."""
    import psycopg

    address: Any = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        connection = await psycopg.AsyncConnection.connect(address, autocommit=True, connect_timeout=CONNECT_SECONDS)
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            yield None
            async for _ in connection.notifies():
                yield None
    except psycopg.Error as error:
        raise DatabaseUnavailable(" ".join(str(error).split())) from error
