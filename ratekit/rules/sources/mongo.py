"""Rules from MongoDB: one document for each service, polled by its `last_updated`.

- A look reads `last_updated` of one document by its `_id`: a change of another service causes no other read.
- `last_updated` is compared for a difference, not for being later: clocks of clients go backwards.
- Some looks load the document whole and compare what it says: a writer may have forgotten `last_updated`, or two writes may
  have the same one.
- Where the server has change streams (a replica set), they make a change faster.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from ratekit.core.errors import ConfigurationError, MissingExtraError, SourceUnavailable
from ratekit.rules.sources.contract import Loaded, Stop

try:
    import pymongo
    from bson.errors import BSONError
    from pymongo.errors import PyMongoError
except ImportError:
    raise MissingExtraError("mongodb://", "mongo") from None

INTERVAL = 45.0  # seconds: each wait is 30 to 60
COLLECTION = "rate_limits"
FULL_LOADS = 4  # every so many looks, the document is loaded whole
_TIMEOUT_MS = 5000
_PAUSE = 5.0  # seconds until a change stream is opened again
_DEFAULTS = {"serverSelectionTimeoutMS": _TIMEOUT_MS, "connectTimeoutMS": _TIMEOUT_MS, "socketTimeoutMS": 4 * _TIMEOUT_MS}


class MongoPlace:
    """Where a document is, and what is known of it: what the waiting and the awaiting source share."""

    is_trusted = False

    def __init__(
        self,
        url: str,
        *,
        service: str | None = None,
        collection: str = COLLECTION,
        interval: float = INTERVAL,
    ) -> None:
        parts = urlsplit(url)
        self.database = parts.path.strip("/")
        if not self.database:
            raise ConfigurationError(f"rules {self._shown(parts)!r} name no database: write mongodb://host/database")
        self.url = url
        self.collection = collection
        self.interval = interval
        self.service = service
        self.origin = f"{self._shown(parts)}/{collection}" + (f" {service}" if service else "")
        self._looks = 0

    def for_service(self, service: str) -> Self:
        """Return the source of a service's document, unless it is that of one already."""
        if self.service is not None:
            return self
        return type(self)(self.url, service=service, collection=self.collection, interval=self.interval)

    @staticmethod
    def _shown(parts: Any) -> str:
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    @property
    def wanted(self) -> dict[str, Any]:
        """The filter of the document."""
        return {} if self.service is None else {"_id": self.service}

    def is_full_look(self) -> bool:
        """Whether this look loads the document whatever its last_updated says."""
        self._looks += 1
        return self._looks % FULL_LOADS == 0

    def loaded(self, found: list[dict[str, Any]], known: str | None) -> Loaded | None:
        """Return the only document that was found, None if it says what is known."""
        if not found:
            which = f" with the _id {self.service!r}" if self.service else ""
            raise SourceUnavailable(f"{self.origin} has no document{which}")
        if len(found) > 1:
            raise ConfigurationError(f"{self.origin} has several documents: name the service, or add &service=… to the URL")
        version = version_of(found[0])
        return None if version == known else Loaded(found[0], version)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise SourceUnavailable where the server does not answer, or answers nonsense."""
        try:
            yield
        except (PyMongoError, BSONError, OSError) as error:
            reason = " ".join(str(error).split()).partition(", Timeout:")[0]
            raise SourceUnavailable(f"{self.origin} does not answer: {reason:.200}") from None

    def pipeline(self) -> list[dict[str, Any]]:
        """Return what a change stream is to tell."""
        return [] if self.service is None else [{"$match": {"documentKey._id": self.service}}]


def version_of(document: Mapping[str, Any]) -> str:
    """Return last_updated, with a digest of all that the document says."""
    digest = hashlib.sha256()
    for name in sorted(document):
        for piece in _pieces(document[name]):  # piece by piece: all at once would hold the interpreter
            digest.update(f"{name}{piece!r}".encode())
    return f"{_stamp(document)} {digest.hexdigest()[:8]}"


def _pieces(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.items()
    return value if isinstance(value, list) else [value]


def _stamp(document: Mapping[str, Any]) -> str:
    moment = document.get("last_updated")
    return moment.isoformat() if isinstance(moment, datetime) else str(moment)


def is_known(stamp: Mapping[str, Any] | None, known: str) -> bool:
    """Whether a document of which only last_updated was read is the known one."""
    return stamp is not None and _stamp(stamp) == known.rpartition(" ")[0] and stamp.get("last_updated") is not None


class MongoSource(MongoPlace):
    """A document of MongoDB, by pymongo's client that waits."""

    _client: Any = None
    _owner = 0

    def load(self, known: str | None, pace: Callable[[], None]) -> Loaded | None:
        """Return the document, None if it is still the one of the known version."""
        with self.errors():
            if known is not None and not self.is_full_look() and is_known(self._stamp(), known):
                return None
            found = list(self._documents().find(self.wanted).limit(2))
        return self.loaded(found, known)

    def _stamp(self) -> Any:
        return self._documents().find_one(self.wanted, {"last_updated": 1})

    def watch(self, changed: Callable[[], None]) -> Stop | None:
        """Open a change stream in a thread, where the server has one; else only look."""
        stops = threading.Event()
        threading.Thread(target=self._follow, args=(changed, stops), name="ratekit-mongo", daemon=True).start()
        return stops.set

    def save(self, values: dict[str, Any]) -> str:
        """Write a document, with last_updated by the server's clock."""
        service = self.service or values.get("service")
        if service is None:
            raise ConfigurationError("the document names no service, and nor does the source: MongoDB keeps one for each")
        content = {key: value for key, value in values.items() if key not in ("_id", "service", "last_updated")}
        pipeline = [{"$replaceWith": {"$literal": {"_id": service} | content}}, {"$set": {"last_updated": "$$NOW"}}]
        with self.errors():
            self._documents().update_one({"_id": service}, pipeline, upsert=True)
            return version_of(self._documents().find_one({"_id": service}) or {})

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _documents(self) -> Any:
        if self._client is None or self._owner != os.getpid():  # a client does not survive a fork
            self._client, self._owner = self._opened(), os.getpid()
        return self._client[self.database][self.collection]

    def _opened(self) -> Any:
        return pymongo.MongoClient(self.url, **_given(self.url))

    def _follow(self, changed: Callable[[], None], stops: threading.Event) -> None:
        """Follow the change stream by a client of its own, which belongs to the thread."""
        with self._opened() as client:
            while not stops.is_set():
                try:
                    if not has_change_streams(client.admin.command("hello")):
                        return
                    self._follow_stream(client[self.database][self.collection], changed, stops)
                except (PyMongoError, OSError):
                    stops.wait(_PAUSE)

    def _follow_stream(self, documents: Any, changed: Callable[[], None], stops: threading.Event) -> None:
        with documents.watch(self.pipeline(), max_await_time_ms=1000) as stream:
            changed()  # what was written before is not told
            while not stops.is_set() and stream.alive:
                if stream.try_next() is not None:
                    changed()


class AsyncMongoSource(MongoPlace):
    """A document of MongoDB, by pymongo's client that is awaited. It belongs to one event loop."""

    _client: Any = None

    async def aload(self, known: str | None, pace: Callable[[], None]) -> Loaded | None:
        """Return the document, None if it is still the one of the known version."""
        with self.errors():
            if known is not None and not self.is_full_look() and is_known(await self._stamp(), known):
                return None
            found = await self._documents().find(self.wanted).limit(2).to_list()
        return self.loaded(found, known)

    async def _stamp(self) -> Any:
        return await self._documents().find_one(self.wanted, {"last_updated": 1})

    async def awatch(self, changed: Callable[[], None]) -> None:
        """Follow the change stream, where the server has one."""
        import asyncio

        while True:
            try:
                if not has_change_streams(await self._documents().database.client.admin.command("hello")):
                    return
                async with await self._documents().watch(self.pipeline(), max_await_time_ms=1000) as stream:
                    changed()
                    while stream.alive:
                        if await stream.try_next() is not None:
                            changed()
            except (PyMongoError, OSError):
                await asyncio.sleep(_PAUSE)

    async def aclose(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _documents(self) -> Any:
        if self._client is None:
            self._client = pymongo.AsyncMongoClient(self.url, **_given(self.url))
        return self._client[self.database][self.collection]


def has_change_streams(hello: Mapping[str, Any]) -> bool:
    """Whether a server has change streams: it is of a replica set, or a router of shards."""
    return "setName" in hello or hello.get("msg") == "isdbgrid"


def _given(url: str) -> dict[str, Any]:
    """Return the timeouts that the URL does not set."""
    given = {name.lower() for name, _ in parse_qsl(urlsplit(url).query)}
    return {name: value for name, value in _DEFAULTS.items() if name.lower() not in given}


def mongo_source(url: str, options: dict[str, str], service: str | None, interval: float | None) -> MongoSource:
    """Open the source of a URL: mongodb://host/database?collection=rate_limits&interval=30."""
    return MongoSource(
        url,
        service=options.get("service") or service,
        collection=options.get("collection") or COLLECTION,
        interval=INTERVAL if interval is None else interval,
    )
