"""Places where rules are kept, each with a real server: written to, broken, taken away and brought back by one suite."""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from benchmarks.server import Server, start_server, stop_server, wheel_server
from ratekit.database.migrate import upgrade
from ratekit.rules.follow import AsyncRules
from ratekit.rules.reload import Rules, RulesStatus
from ratekit.rules.sources import source, split_options
from ratekit.rules.sources.mongo import AsyncMongoSource
from support.databases import DatabaseServer, database_server, new_database
from support.mongo import mongo_server

SERVICE = "chat"
KINDS = ["file", "redis", "sqlite", "postgres", "mariadb", "mongo", "async-mongo"]
INVALID = {"rules": [{"limits": "5/s"}, {"limits": "many"}]}


class Place(ABC):
    """One place. interval is short, so that tests do not wait."""

    given: str
    latency: float = 2.0  # seconds within which a change has to be in force

    def put(self, values: dict[str, Any]) -> None:
        """Write a document, valid or not."""
        writer: Any = source(self.given, service=SERVICE)
        try:
            writer.save(values)
        finally:
            writer.close()

    @abstractmethod
    def take_away(self) -> None:
        """Make the source not answer."""

    @abstractmethod
    def bring_back(self) -> None:
        """Make it answer again, with the document that it had."""

    def rules(self, **options: Any) -> Any:
        """Return rules from here."""
        return Rules(self.given, service=SERVICE, **options)

    def close(self) -> None:  # noqa: B027 - most places have nothing to remove
        """Remove what was made."""


class File(Place):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "rules.json"
        self.given = str(self.path)

    def take_away(self) -> None:
        self.path.rename(self.path.with_suffix(".away"))

    def bring_back(self) -> None:
        self.path.with_suffix(".away").rename(self.path)


class Redis(Place):
    def __init__(self, folder: Path) -> None:
        self.server: Server = start_server(wheel_server())
        self.given = f"{self.server.url}/0?interval=0.2"
        self._kept: dict[bytes, bytes] = {}

    def take_away(self) -> None:
        with self.server.client() as client:
            (key,) = client.keys("ratelimit_rules:*")
            self._kept = {key: client.dump(key)}
        stop_server(self.server)

    def bring_back(self) -> None:
        self.server = start_server(wheel_server(), port=self.server.port)
        with self.server.client() as client:
            for key, value in self._kept.items():
                client.restore(key, 0, value)

    def close(self) -> None:
        stop_server(self.server)


class Sql(Place):
    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        url = new_database(kind, folder)
        upgrade(url)
        if kind == "mariadb":  # a server that is killed keeps what was committed
            engine = create_engine(url)
            with engine.connect() as connection:
                connection.execute(text("SET GLOBAL innodb_flush_log_at_trx_commit = 1"))
            engine.dispose()
        self.given = f"{url}?interval=0.2"
        self._file = folder / "ratekit.db"

    def take_away(self) -> None:
        if self.kind == "sqlite":
            self._file.rename(self._file.with_suffix(".away"))
        else:
            database_server(self.kind).stop()

    def bring_back(self) -> None:
        if self.kind == "sqlite":
            self._file.with_suffix(".away").rename(self._file)
        else:
            database_server(self.kind).start()


class Mongo(Place):
    latency = 10.0  # a server that was killed elects itself first

    def __init__(self, folder: Path) -> None:
        self.server: DatabaseServer = mongo_server()
        timeouts = "serverSelectionTimeoutMS=1000&connectTimeoutMS=500&socketTimeoutMS=2000"
        self.given = f"{self.server.new_database()}&collection=rate_limits&interval=0.2&{timeouts}"

    def take_away(self) -> None:
        self.server.stop()

    def bring_back(self) -> None:
        self.server.start()


class AsyncMongo(Mongo):
    def rules(self, **options: Any) -> Any:
        url, _ = split_options(self.given)
        return OnLoop(AsyncMongoSource(url, service=SERVICE, interval=0.2), options)


class OnLoop:
    """Rules that are followed on an event loop, which runs in a thread, behind the face of those that are not."""

    def __init__(self, given: AsyncMongoSource, options: dict[str, Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._rules = AsyncRules(given, **options)
            self._wait(self._rules.start())
        except BaseException:
            self._end()
            raise

    @property
    def status(self) -> RulesStatus:
        return self._rules.status

    @property
    def compiled(self) -> Any:
        return self._rules.compiled

    def follow(self) -> None:
        """It is followed since it was started."""

    def refresh(self) -> RulesStatus:
        return self._wait(self._rules.arefresh())

    def close(self) -> None:
        self._wait(self._rules.aclose())
        self._end()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def place_of(kind: str, folder: Path) -> Place:
    """Make a place of a kind."""
    if kind in ("sqlite", "postgres", "mariadb"):
        return Sql(kind, folder)
    return {"file": File, "redis": Redis, "mongo": Mongo, "async-mongo": AsyncMongo}[kind](folder)


def document(count: int, rate: str = "5/s") -> dict[str, Any]:
    """Return a document of some rules."""
    rules = [{"name": f"rule {index}", "match": {"path": f"/p{index}/{{id}}"}, "limits": rate} for index in range(count)]
    return {"rules": rules}


def as_json(values: Any) -> str:
    """Return values as a text."""
    return json.dumps(values)
