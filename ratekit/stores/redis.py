"""`redis://`, `rediss://`, `unix://`: the script in a Redis or Valkey server, through redis-py or a client like it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from ratekit import clock
from ratekit.errors import ConfigurationError, MissingExtraError
from ratekit.outage import Outage, StoreOutage, classify_error, outage_in
from ratekit.protocol import Call, pack, pack_one, unpack
from ratekit.stores import script

MOST_CONNECTIONS = 4  # of a process, unless the URL has ?max_connections=
_QUEUE_SECONDS = 5.0  # how long a call waits for one of our own connections: that is no fault of the store


@dataclass(frozen=True, slots=True)
class ClientErrors:
    """The exceptions of a client library that we tell apart."""

    every: type[Exception]
    no_script: type[Exception]
    timeout: type[Exception]
    response: type[Exception]


def errors_of(client: object) -> ClientErrors:
    """Return the exceptions that a client raises: redis-py's, or those of a library of the same shape."""
    roots = (kind.__module__.partition(".")[0] for kind in type(client).__mro__)
    root = next((root for root in roots if root in {"redis", "valkey"}), None)
    if root is None:
        raise ConfigurationError(
            f"store of type {type(client).__name__!r} is neither a URL nor a client of redis-py or valkey-py"
        )
    module = importlib.import_module(f"{root}.exceptions")
    every = getattr(module, "RedisError", None) or module.ValkeyError
    return ClientErrors(every, module.NoScriptError, module.TimeoutError, module.ResponseError)


def is_async(client: object) -> bool:
    """Whether a client's commands are awaited."""
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))


def outage_of(error: Exception, errors: ClientErrors) -> Outage | None:
    """Return the outage that an exception of the client means; None if it is a bug, which has to surface."""
    if isinstance(error, errors.timeout):
        return Outage("timeout", str(error))
    known = classify_error(error)
    if known is not None or isinstance(error, errors.response):
        return known
    return Outage("connection", f"{type(error).__name__}: {error}")


def figures_of(call: Call, reply: Sequence[Any]) -> Sequence[int]:
    """Return the figures of a call's reply; raise StoreOutage if the server failed this call."""
    if isinstance(reply[0], int):
        return reply
    raise outage_in(str(unpack([call], reply)[0]))


def arguments_of(calls: Sequence[Call]) -> tuple[Any, ...]:
    """Return what EVALSHA and EVAL take after the script: the number of keys, the keys, the rest."""
    time_us = clock.override_us()
    keys, items = pack_one(calls[0], time_us) if len(calls) == 1 else pack(calls, time_us)
    return (len(keys), *keys, *items)


class RedisStore:
    """Decides calls in a server, waiting for the answer. Safe to use from several threads, and after a fork."""

    is_local = False

    def __init__(self, client: Any, *, owned: bool = False) -> None:
        self._client = client
        self._owned = owned
        self._errors = errors_of(client)

    @classmethod
    def from_url(cls, url: str, deadline: float) -> RedisStore:
        """Make a client with timeouts, a pool and no retries fit for a limiter."""
        redis = _library("redis")
        return cls(_make_client(redis, url, deadline), owned=True)

    @property
    def client(self) -> Any:
        """The client in use."""
        return self._client

    def run(self, call: Call) -> Sequence[int]:
        """Decide one call. Raises StoreOutage if the server cannot."""
        return figures_of(call, self._ask([call]))

    def run_many(self, calls: Sequence[Call]) -> list[Sequence[int] | str]:
        """Decide a batch of calls in one round trip: for each its figures, or the server's error."""
        return unpack(calls, self._ask(calls))

    def _ask(self, calls: Sequence[Call]) -> Sequence[Any]:
        arguments = arguments_of(calls)
        reply: Sequence[Any]
        try:
            try:
                reply = self._client.execute_command("EVALSHA", script.digest(), *arguments)
            except self._errors.no_script:
                reply = self._client.execute_command("EVAL", script.read("ratekit"), *arguments)
            return reply
        except (self._errors.every, OSError) as error:
            outage = outage_of(error, self._errors)
            if outage is None:
                raise
            raise StoreOutage(outage) from error

    def close(self) -> None:
        """Close the connections that ratekit has opened; a client that was brought stays open."""
        if self._owned:
            self._client.close()
            self._client.connection_pool.disconnect()


class AsyncRedisStore:
    """Decides calls in a server, awaiting the answer."""

    is_local = False

    def __init__(self, clients: LoopClients | BroughtClient) -> None:
        self._clients = clients
        self._errors = clients.errors

    @classmethod
    def from_url(cls, url: str, deadline: float) -> AsyncRedisStore:
        """Make clients with timeouts, a pool and no retries fit for a limiter, one per event loop."""
        return cls(LoopClients(url, deadline))

    @classmethod
    def from_client(cls, client: Any) -> AsyncRedisStore:
        """Use a client as it is."""
        return cls(BroughtClient(client))

    async def client(self) -> Any:
        """Return the client for the running event loop."""
        return await self._clients.get()

    async def run(self, call: Call) -> Sequence[int]:
        """Decide one call. Raises StoreOutage if the server cannot."""
        return figures_of(call, await self._ask([call]))

    async def run_many(self, calls: Sequence[Call]) -> list[Sequence[int] | str]:
        """Decide a batch of calls in one round trip: for each its figures, or the server's error."""
        return unpack(calls, await self._ask(calls))

    async def _ask(self, calls: Sequence[Call]) -> Sequence[Any]:
        arguments = arguments_of(calls)
        reply: Sequence[Any]
        try:
            client = await self._clients.get()
            try:
                reply = await client.execute_command("EVALSHA", script.digest(), *arguments)
            except self._errors.no_script:
                reply = await client.execute_command("EVAL", script.read("ratekit"), *arguments)
            return reply
        except (self._errors.every, OSError) as error:
            outage = outage_of(error, self._errors)
            if outage is None:
                raise
            raise StoreOutage(outage) from error

    async def aclose(self) -> None:
        """Close the connections that ratekit has opened on this event loop; a client that was brought stays open."""
        await self._clients.aclose()


class BroughtClient:
    """A client that belongs to the application."""

    def __init__(self, client: Any) -> None:
        self.errors = errors_of(client)
        self._client = client

    async def get(self) -> Any:
        """Return the client."""
        return self._client

    async def aclose(self) -> None:
        """Leave it open."""


class LoopClients:
    """One client for each running event loop, as a connection belongs to the loop that opened it.

    A client's life ends with its loop: asyncio.run, asyncio.Runner and servers built on them finish a loop's asynchronous
    generators before they close it, and such a generator closes the client. What a loop left behind that was closed
    without, and what a parent left to a forked child, is dropped.
    """

    def __init__(self, url: str, deadline: float) -> None:
        self._redis = _library("redis.asyncio")
        self._url = url
        self._deadline = deadline
        self._clients: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[None]]] = {}
        self._pid = os.getpid()
        self._make()  # a URL that makes no sense is refused now
        self.errors = errors_of(self._redis.Redis())

    async def get(self) -> Any:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        entry = self._clients.get(loop)
        if entry is not None and self._pid == os.getpid():
            return entry[0]
        return await self._open(loop)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Any:
        if self._pid != os.getpid():
            self._clients, self._pid = {}, os.getpid()
        for other in [other for other in list(self._clients) if other.is_closed()]:
            _abandon(self._clients.pop(other, None))
        client = self._make()
        guard = self._close_with_loop(loop, client)
        self._clients[loop] = (client, guard)
        await anext(guard)
        return client

    async def _close_with_loop(self, loop: asyncio.AbstractEventLoop, client: Any) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._clients.pop(loop, None)
            await client.aclose()
            await client.connection_pool.disconnect()

    def _make(self) -> Any:
        return _make_client(self._redis, self._url, self._deadline)

    async def aclose(self) -> None:
        """Close the client of the running event loop."""
        entry = self._clients.get(asyncio.get_running_loop())
        if entry is not None:
            await entry[1].aclose()


def _abandon(entry: tuple[Any, Any] | None) -> None:
    """Close the sockets of a client whose event loop was closed without it: there is no loop left to do it in order."""
    pool = entry[0].connection_pool if entry else None
    for connection in [*getattr(pool, "_available_connections", ()), *getattr(pool, "_in_use_connections", ())]:
        transport: Any = getattr(getattr(connection, "_writer", None), "transport", None)
        sock = getattr(transport, "_sock", None)
        if sock is not None:
            sock.close()
            vars(transport).update(_sock=None, _closing=True)
            connection._writer = connection._reader = None  # noqa: SLF001 - there is no public way without a loop


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError("redis://", "redis") from None


def _make_client(redis: Any, url: str, deadline: float) -> Any:
    """Make a client of a URL, and refuse options that connections do not know: no connection is opened yet."""
    pool = redis.BlockingConnectionPool.from_url(url, **_pool_options(redis, url, deadline))
    try:
        pool.connection_class(**pool.connection_kwargs)
    except TypeError:
        raise ValueError("it has an option that is unknown") from None
    return redis.Redis(connection_pool=pool)


def _pool_options(redis: Any, url: str, deadline: float) -> dict[str, Any]:
    """No retries: a retried charge counts twice. RESP2: no handshake, and a faster parser."""
    asynchronous = redis.__name__.endswith("asyncio")
    retry = importlib.import_module("redis.asyncio.retry" if asynchronous else "redis.retry")
    backoff = importlib.import_module("redis.backoff")
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    return {
        **keepalive,
        "max_connections": MOST_CONNECTIONS,
        "timeout": _QUEUE_SECONDS,
        "socket_timeout": deadline,
        "socket_connect_timeout": deadline,
        "retry": retry.Retry(backoff.NoBackoff(), 0),
        "protocol": 2,
    }
