"""URLs of databases: the default, the drivers, and what of a URL may be shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ratekit.core.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

URL_VARIABLE = "RATEKIT_DATABASE_URL"
DEFAULT_URL = "sqlite:///ratekit.db"
# By backend: the driver that waits, the driver that is awaited, and the extra that brings both.
_DRIVERS = {
    "sqlite": ("pysqlite", "aiosqlite", "sql"),
    "postgresql": ("psycopg", "psycopg", "sql"),
    "mysql": ("pymysql", "aiomysql", "mysql"),
    "mariadb": ("pymysql", "aiomysql", "mysql"),
}
_ASYNC_ONLY = {"aiosqlite", "aiomysql", "asyncmy", "asyncpg"}
_SYNC_ONLY = {"pysqlite", "pymysql", "psycopg2", "mysqldb"}


def default_url() -> str:
    """Return RATEKIT_DATABASE_URL, or a SQLite file in the working directory."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def sync_url(url: str) -> URL:
    """Return a URL with a driver that waits."""
    return _with_driver(parsed(url), awaits=False)


def async_url(url: str) -> URL:
    """Return a URL with a driver that is awaited."""
    return _with_driver(parsed(url), awaits=True)


def parsed(url: str) -> URL:
    """Return a URL in its parts. Raises ConfigurationError without showing it, as it may have a password in it."""
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:
        raise MissingExtraError("a database", "sql") from None
    try:
        parts = make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    except (ArgumentError, ValueError):
        raise ConfigurationError("the database's URL cannot be read: write it like 'postgresql://user@host/name'") from None
    if parts.get_backend_name() not in _DRIVERS:
        known = ", ".join(_DRIVERS)
        raise ConfigurationError(f"database {parts.get_backend_name()!r} is unknown: it is one of {known}")
    return parts


def shown(url: str) -> str:
    """Return a URL without its password and without its parameters."""
    return parsed(url).set(query={}).render_as_string(hide_password=True)


def extra_of(url: URL) -> str:
    """Return the extra that brings the drivers of a URL."""
    return _DRIVERS[url.get_backend_name()][2]


def _with_driver(url: URL, *, awaits: bool) -> URL:
    backend, _, driver = url.drivername.partition("+")
    unfit = _SYNC_ONLY if awaits else _ASYNC_ONLY
    if driver and driver not in unfit:
        return url
    return url.set(drivername=f"{backend}+{_DRIVERS[backend][1 if awaits else 0]}")
