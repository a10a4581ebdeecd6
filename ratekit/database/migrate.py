"""Migrations: bring a database up to the schema of this release. Safe when ten processes start at once.

Alembic is loaded only if there is something to do, as its import takes longer than the rest of a start.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, inspect, text

from ratekit.core.errors import ConfigurationError
from ratekit.database.engines import open_engine, telling_outages

HEAD = "0001"  # the newest migration; a test compares it with the files
LOCK_SECONDS = 120
_LOCK = zlib.crc32(b"ratekit migrations")
_TABLE = "ratekit_migrations"  # of its own, beside those of an application in the same database


def upgrade(url: str | None = None) -> bool:
    """Run the migrations that a database has not had. Returns whether there were any.

    Others who do the same at the same time wait, and then have nothing to do.
    """
    with _opened(url) as engine:
        if revision(engine) == HEAD:
            return False
        with _alone(engine), engine.begin() as connection:
            _take_turn(connection)
            return _run(connection)


def revision_of(url: str | None = None) -> str | None:
    """Return the migration that the database of a URL is at; None if it has had none."""
    with _opened(url) as engine:
        return revision(engine)


@contextmanager
def _opened(url: str | None) -> Iterator[Engine]:
    engine = open_engine(url)
    try:
        with telling_outages():
            yield engine
    finally:
        engine.dispose()


def revision(engine: Engine) -> str | None:
    """Return the migration that a database is at; None if it has had none."""
    with engine.connect() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {_TABLE}")).scalar()  # noqa: S608 - a constant
    return None if found is None else str(found)


def _run(connection: Connection) -> bool:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    before = _revision(connection)
    configuration = Config()
    configuration.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    configuration.set_main_option("path_separator", "os")
    configuration.attributes["connection"] = connection
    configuration.attributes["table"] = _TABLE
    try:
        command.upgrade(configuration, "head")
    except CommandError:
        raise ConfigurationError(f"the database is at migration {before!r}, which only a newer release knows") from None
    return before != HEAD


def _take_turn(connection: Connection) -> None:
    """Wait until no other process migrates, on servers. The lock ends with the transaction or the connection."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    elif connection.dialect.name in ("mysql", "mariadb"):
        taken = connection.execute(text("SELECT GET_LOCK(:lock, :seconds)"), {"lock": str(_LOCK), "seconds": LOCK_SECONDS})
        if taken.scalar() != 1:
            raise ConfigurationError(f"another process has been migrating the database for {LOCK_SECONDS} s")


def _alone(engine: Engine) -> Any:
    """Return a block in which no other process migrates, for a database that is a file."""
    path = engine.url.database
    is_file = engine.dialect.name == "sqlite" and path and path != ":memory:" and not path.startswith("file:")
    return _locked_file(Path(f"{path}.lock")) if is_file else nullcontext()


@contextmanager
def _locked_file(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
