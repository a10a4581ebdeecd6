"""Rules from SQL: a document of a service (`rule_documents`), or rows of rules and overrides, by SQLAlchemy.

- A document is polled by the version of its own row: a change of another service causes no other read.
- Rows are polled by their number, their highest version and their newest time. Rows that were changed by hand may change
  none of these, so some looks load all of them, and compare.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ratekit.core.errors import ConfigurationError, DatabaseUnavailable, DocumentError, MissingExtraError, SourceUnavailable
from ratekit.rules.sources.contract import Loaded, Stop
from ratekit.rules.sources.contract import Text as JsonText

try:
    from sqlalchemy import Connection, Table, Text, cast, delete, func, insert, select
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool
except ImportError:
    raise MissingExtraError("rules from SQL", "sql") from None

from ratekit.database import urls
from ratekit.database.engines import open_engine, telling_outages
from ratekit.database.schema import documents, overrides, rules
from ratekit.database.versions import raise_version

INTERVAL = 5.0  # seconds
FULL_LOADS = 6  # every so many looks, rows are loaded whatever their versions say
_DOCUMENT = "document "  # how the version of a document begins, in distinction from that of rows
_PIECE = 200  # rows that are fetched at once
_RULE = ["rule_id", "client_key", "endpoint", "algorithm", "max_requests", "window_secs", "burst_size", "enabled"]
_OVERRIDE = ["override_id", "client_key", "rule_id", "max_requests", "valid_until"]


class SqlSource:
    """The document of a service, if there is one in rule_documents; else the rows of a tenant."""

    is_trusted = False

    def __init__(self, url: str, *, service: str | None = None, tenant: str = "", interval: float = INTERVAL) -> None:
        self._url = url
        self._service = service
        self._tenant = tenant
        self.interval = interval
        self.origin = urls.shown(url) + (f" {service}" if service else "")
        self._engine: Any = None
        self._owner = 0
        self._looks = 0

    def for_service(self, service: str) -> SqlSource:
        """Return the source of a service's document, unless it is that of one already."""
        if self._service is not None:
            return self
        return SqlSource(self._url, service=service, tenant=self._tenant, interval=self.interval)

    def load(self, known: str | None, pace: Callable[[], None]) -> Loaded | None:
        """Return the document, None if it is still the one of the known version."""
        with self._connected() as connection:
            version = self._document_version(connection)
            if version is None and known is not None and known.startswith(_DOCUMENT):
                raise SourceUnavailable(f"{self.origin} has no document of that service any more")
            if version is None:
                return self._rows(connection, known, pace)
            if f"{_DOCUMENT}{version}" == known:
                return None
            as_text = cast(documents.c.document, Text)  # a driver would parse it whole, and hold the interpreter meanwhile
            content, version = connection.execute(select(as_text, documents.c.version).where(self._is_mine())).one()
            return Loaded(JsonText(content, "json"), f"{_DOCUMENT}{version}")

    def watch(self, changed: Callable[[], None]) -> Stop | None:
        """Only look: a look is one query by a primary key."""
        return None

    def save(self, values: dict[str, Any]) -> str:
        """Write the document of the service, under the next version of the configuration."""
        service = self._service or values.get("service")
        if service is None:
            raise ConfigurationError(
                "the document names no service, and nor does the source: rule_documents has one for each"
            )
        self._service = service
        with self._connected() as connection:
            version = raise_version(connection)
            connection.execute(delete(documents).where(self._is_mine()))
            connection.execute(insert(documents).values(service=service, document=values, version=version))
            connection.commit()
        return f"{_DOCUMENT}{version}"

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _is_mine(self) -> Any:
        return documents.c.service == self._service

    def _document_version(self, connection: Connection) -> int | None:
        if self._service is None:
            return None
        found = connection.execute(select(documents.c.version).where(self._is_mine())).scalar()
        return None if found is None else int(found)

    def _rows(self, connection: Connection, known: str | None, pace: Callable[[], None]) -> Loaded | None:
        marks = f"{self._mark(connection, rules)} {self._mark(connection, overrides)}"
        if known is not None and not self._is_full_look() and known.startswith(f"rows {marks} "):
            return None
        found = self._fetched(connection, rules, _RULE, pace)
        if not found:
            self._refuse_nothing(connection)
        own = {row["rule_id"] for row in found}
        temporary = [row for row in self._fetched(connection, overrides, _OVERRIDE, pace) if _is_of_rule(row, own)]
        version = f"rows {marks} {_digest(found, temporary)}"
        values = {"rate_limit_rules": found, "rate_limit_overrides": temporary}
        return None if version == known else Loaded(values, version)

    def _refuse_nothing(self, connection: Connection) -> None:
        """Refuse a database that has documents, but not that of this service: nobody would be limited."""
        others = connection.execute(select(documents.c.service).order_by(documents.c.service).limit(5)).scalars().all()
        has = f"it has those of {', '.join(others)}" if others else "ratekit rules push writes one"
        if self._service is not None:
            raise SourceUnavailable(f"{self.origin} has neither a document of that service nor rows of rules: {has}")
        if others:
            raise SourceUnavailable(
                f"{self.origin} has no rows of rules, and no service is named whose document it is: {has}"
            )

    def _is_full_look(self) -> bool:
        self._looks += 1
        return self._looks % FULL_LOADS == 0

    def _mark(self, connection: Connection, table: Table) -> str:
        column = table.c
        query = select(func.count(), func.max(column.version), func.max(column.updated_at))
        count, version, newest = connection.execute(query.where(column.tenant_id == self._tenant)).one()
        return f"{count}/{version}/{newest.isoformat() if isinstance(newest, datetime) else newest}".replace(" ", "T")

    def _fetched(
        self, connection: Connection, table: Table, names: list[str], pace: Callable[[], None]
    ) -> list[dict[str, Any]]:
        query = (
            select(*(table.c[name] for name in names)).where(table.c.tenant_id == self._tenant).order_by(table.c[names[0]])
        )
        found: list[dict[str, Any]] = []
        for rows in connection.execute(query).mappings().partitions(_PIECE):
            pace()
            found += [dict(row) for row in rows]
        return found

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        self._refuse_missing_file()
        if self._engine is None or self._owner != os.getpid():  # connections do not survive a fork
            self._engine, self._owner = open_engine(self._url, poolclass=NullPool), os.getpid()
        try:
            with telling_outages(), self._engine.connect() as connection:
                yield connection
        except DatabaseUnavailable as error:
            raise SourceUnavailable(f"{self.origin} does not answer: {error.reason:.200}") from None
        except SQLAlchemyError as error:
            raise SourceUnavailable(f"{self.origin} does not answer: {' '.join(str(error).split()):.200}") from None
        except (ValueError, TypeError) as error:  # SQLite keeps any text in any column
            raise DocumentError([f"a row has a value that its column cannot have: {error}"]) from None

    def _refuse_missing_file(self) -> None:
        """Refuse a file of SQLite that is not there: the driver would make an empty one in its place."""
        parts = urls.parsed(self._url)
        path = parts.database or ""
        if parts.get_backend_name() == "sqlite" and not path.startswith(("file:", ":")) and not Path(path).exists():
            raise SourceUnavailable(f"{self.origin} does not answer: there is no such file; ratekit db upgrade makes it")


def _is_of_rule(row: dict[str, Any], own: set[int]) -> bool:
    """Whether an override is a temporary one of a rule. Others are copied to the store of the counters."""
    return row["rule_id"] in own and row["max_requests"] is not None and row["valid_until"] is not None


def _digest(*parts: list[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in (row for part in parts for row in (*part, None)):  # row by row: all at once would hold the interpreter
        digest.update(json.dumps(row, default=str).encode())
    return digest.hexdigest()[:8]


def sql_source(url: str, options: dict[str, str], service: str | None, interval: float | None) -> SqlSource:
    """Open the source of a URL: postgresql+psycopg://host/database?service=chat&interval=5."""
    return SqlSource(
        url,
        service=options.get("service") or service,
        tenant=options.get("tenant", ""),
        interval=INTERVAL if interval is None else interval,
    )
