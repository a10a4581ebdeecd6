"""Engines of SQLAlchemy, waiting and awaiting, for every database that ratekit knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ratekit.core.errors import DatabaseUnavailable, MissingExtraError
from ratekit.database import urls

try:
    from sqlalchemy import URL, Engine, create_engine, event
    from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
    from sqlalchemy.pool import NullPool
except ImportError:
    raise MissingExtraError("a database", "sql") from None

CONNECT_SECONDS = 5  # that a server has to accept a connection
_POOL: dict[str, Any] = {"pool_pre_ping": True, "pool_recycle": 1800, "pool_timeout": CONNECT_SECONDS}


def open_engine(url: str | None = None, **options: Any) -> Engine:
    """Return an engine that waits. options are those of SQLAlchemy's create_engine."""
    target = urls.sync_url(url or urls.default_url())
    engine: Engine = _made(create_engine, target, options)
    _prepare(engine, target)
    return engine


def open_async_engine(url: str | None = None, **options: Any) -> AsyncEngine:
    """Return an engine that is awaited. options are those of SQLAlchemy's create_async_engine."""
    target = urls.async_url(url or urls.default_url())
    engine: AsyncEngine = _made(create_async_engine, target, options)
    _prepare(engine.sync_engine, target)
    return engine


@contextmanager
def telling_outages() -> Iterator[None]:
    """Raise DatabaseUnavailable where the database does not answer, or refuses what is right."""
    try:
        yield
    except (IntegrityError, DataError):  # the value is wrong, not the database
        raise
    except DBAPIError as error:
        raise DatabaseUnavailable(" ".join(str(error.orig).split())) from error
    except (PoolTimeoutError, OSError) as error:
        raise DatabaseUnavailable(" ".join(str(error).split())) from error


def _made(create: Any, url: URL, options: dict[str, Any]) -> Any:
    try:
        pool = {} if "poolclass" in options else _pool_of(url)
        return create(url, **(pool | {"connect_args": _connect_arguments(url)} | options))
    except ImportError:
        raise MissingExtraError(f"{url.drivername}://", urls.extra_of(url)) from None


def _pool_of(url: URL) -> dict[str, Any]:
    if url.get_backend_name() != "sqlite":
        return _POOL
    return {"poolclass": NullPool} if "uri" in url.query else {}  # a database of others in memory: they keep it


def _connect_arguments(url: URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"timeout": CONNECT_SECONDS}
    if url.get_driver_name() == "asyncpg":
        return {"timeout": CONNECT_SECONDS}
    arguments: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS}
    if url.get_driver_name() == "psycopg":
        arguments["prepare_threshold"] = None  # prepared statements break behind PgBouncer in transaction mode
    return arguments


def _prepare(engine: Engine, url: URL) -> None:
    """Have every new connection checked and set as ratekit's tables need it."""
    statements = _SETTINGS.get(url.get_backend_name(), ())

    @event.listens_for(engine, "connect")
    def _set(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        cursor.close()


# SQLite: readers do not wait for a writer, and foreign keys are checked. MySQL: CURRENT_TIMESTAMP is UTC.
_SETTINGS = {
    "sqlite": ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA foreign_keys=ON"),
    "mysql": ("SET time_zone = '+00:00'",),
    "mariadb": ("SET time_zone = '+00:00'",),
}
