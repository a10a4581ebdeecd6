"""The database as the service uses it: in threads, beside the event loop. Writes raise the version, and are audited."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Connection, Table, delete, insert, select, update

from ratekit.core.errors import DatabaseUnavailable
from ratekit.database import migrate, schema
from ratekit.database.engines import open_engine, telling_outages
from ratekit.database.notifications import notify
from ratekit.database.versions import note_deletion, raise_version
from ratekit_service.bounds import is_unicode

Answer = TypeVar("Answer")
THREADS = 4
SECONDS = 15.0  # that anything may take
_SECRETS = {"salt", "key_hash"}


class MisfitError(ValueError):
    """A value that a column cannot hold. field is the name of the column."""

    def __init__(self, field: str, value: object) -> None:
        super().__init__(f"{field} {value!r:.80} does not fit into the database")
        self.field = field


class Write:
    """One transaction that writes: it raises the version first, so writers take turns."""

    def __init__(self, connection: Connection, actor: str) -> None:
        self.connection = connection
        self.actor = actor
        self.version = raise_version(connection)
        self.now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)

    def insert(self, table: Table, kind: str, values: Mapping[str, Any]) -> Any:
        """Insert a row, and return its primary key."""
        refuse_misfits(table, values)
        stamps = {"created_at": self.now, "updated_at": self.now, "version": self.version}
        key = self.connection.execute(insert(table).values(**values, **stamps)).inserted_primary_key
        assert key is not None  # noqa: S101 - every table has one
        self.audit("create", kind, key[0], values)
        return key[0]

    def update(self, table: Table, kind: str, key: Any, values: Mapping[str, Any]) -> None:
        """Change a row."""
        refuse_misfits(table, values)
        column = next(iter(table.primary_key))
        stamps = {"updated_at": self.now, "version": self.version}
        self.connection.execute(update(table).where(column == key).values(**values, **stamps))
        self.audit("update", kind, key, {"tenant_id": self._tenant_of(table, column == key), **values})

    def delete(self, table: Table, kind: str, key: Any, tenant_id: str) -> None:
        """Delete a row, and tell those who hold a copy."""
        column = next(iter(table.primary_key))
        self.connection.execute(delete(table).where(column == key))
        note_deletion(self.connection, self.version, kind, str(key))
        self.audit("delete", kind, key, {"tenant_id": tenant_id})

    def _tenant_of(self, table: Table, is_row: ColumnElement[bool]) -> str | None:
        if "tenant_id" not in table.c:
            return None
        return self.connection.execute(select(table.c.tenant_id).where(is_row)).scalar()

    def audit(self, action: str, kind: str, key: Any, values: Mapping[str, Any]) -> None:
        """Write a line of the audit log, without secrets."""
        details = {name: _plain(value) for name, value in values.items() if name not in _SECRETS}
        tenant_id = details.pop("tenant_id", None) or (str(key) if kind == "tenant" else "")
        self.connection.execute(
            insert(schema.audit_log).values(
                at=self.now,
                actor=self.actor,
                action=action,
                kind=kind,
                object_id=str(key),
                tenant_id=tenant_id,
                details=details,
            )
        )


def refuse_misfits(table: Table, values: Mapping[str, Any]) -> None:
    """Raise MisfitError for a value that not every database could keep: its own error does not name the column."""
    for name, value in values.items():
        column = table.c[name].type
        if isinstance(value, int) and abs(value) >= 2 ** (63 if isinstance(column, BigInteger) else 31):
            raise MisfitError(name, value)
        if isinstance(value, str) and not _fits(value, getattr(column, "length", None)):
            raise MisfitError(name, value)


def _fits(text: str, length: int | None) -> bool:
    has_place = length is None or len(text) <= length
    return has_place and "\0" not in text and is_unicode(text)


class Database:
    """An engine, and the threads that wait for it. Every method raises DatabaseUnavailable if it does not answer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = open_engine(url)
        self.is_up = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ratekit-database")

    @property
    def origin(self) -> str:
        """What the configuration comes from, for everybody: the kind of the database, and not where it is."""
        return self.engine.url.get_backend_name()

    async def migrate(self) -> None:
        """Run the migrations that the database has not had."""
        await self._run(lambda: migrate.upgrade(self.url), seconds=migrate.LOCK_SECONDS)

    async def read(self, query: Callable[[Connection], Answer]) -> Answer:
        """Return what a query answers."""
        return await self._run(lambda: self._read(query))

    async def write(self, change: Callable[[Write], Answer], actor: str) -> Answer:
        """Run a change in a transaction of its own: all of it is written, or nothing."""
        return await self._run(lambda: self._write(change, actor))

    async def write_quietly(self, change: Callable[[Connection], Answer]) -> Answer:
        """Run a change that is no change of the configuration, in a transaction of its own."""
        return await self._run(lambda: self._write_quietly(change))

    def close(self) -> None:
        """Wait for what was begun, and close all connections."""
        self._threads.shutdown(cancel_futures=True)
        self.engine.dispose()

    async def _run(self, work: Callable[[], Answer], seconds: float = SECONDS) -> Answer:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                answer = await loop.run_in_executor(self._threads, _telling, work)
        except TimeoutError:
            self.is_up = False
            raise DatabaseUnavailable(f"no answer within {seconds:g} s") from None
        except DatabaseUnavailable:
            self.is_up = False
            raise
        self.is_up = True
        return answer

    def _read(self, query: Callable[[Connection], Answer]) -> Answer:
        with self.engine.connect() as connection:
            return query(connection)

    def _write_quietly(self, change: Callable[[Connection], Answer]) -> Answer:
        with self.engine.begin() as connection:
            return change(connection)

    def _write(self, change: Callable[[Write], Answer], actor: str) -> Answer:
        with self.engine.begin() as connection:
            write = Write(connection, actor)
            answer = change(write)
            notify(connection, write.version)
        return answer


def _telling(work: Callable[[], Answer]) -> Answer:
    with telling_outages():
        return work()


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.datetime) else value
