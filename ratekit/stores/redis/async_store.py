"""The asynchronous Redis store: one connection for each running event loop and server, with the calls of a loop batched."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from typing import Any

from ratekit.core.errors import ConfigurationError
from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import Call
from ratekit.stores.circuit_breaker import Health, worst_health
from ratekit.stores.contract import Answer, Command, Figures, Finish, Reply, Store
from ratekit.stores.redis import client as clients
from ratekit.stores.redis.cluster import SlotMap
from ratekit.stores.redis.connection import ClientConnection, ServerConnection
from ratekit.stores.redis.driver import Driver
from ratekit.stores.redis.loop_client import LoopClient
from ratekit.stores.redis.sync_store import RedisStore
from ratekit.stores.redis.url import parse

Loop = asyncio.AbstractEventLoop


class AsyncRedisStore:
    """Decides calls in a server, or in a Cluster, awaiting the replies.

    A connection belongs to the event loop that opened it, and is closed with the loop: asyncio.run, asyncio.Runner and the
    servers built on them finish a loop's asynchronous generators before they close it, and such a generator closes the
    loop's client. A loop that was closed without that leaves a client behind, which is abandoned when the next loop comes.
    Event loops beyond the bound on connections share one connection, and wait for it in threads.
    """

    is_local = False

    def __init__(
        self,
        make: Callable[[], LoopClient],
        most_connections: float,
        blocking: Callable[[float | None], RedisStore],
        brought: Any = None,
        *,
        one_slot: bool,
        place: Hashable,
    ) -> None:
        self.one_slot = one_slot
        self.place = place
        self._make = make
        self._most_clients = max(most_connections - 1, 1)  # one connection is for the loops beyond the bound
        self._blocking = blocking
        self._brought = brought
        self.begin()
        _stores.add(self)

    def begin(self) -> None:
        """Start without connections, and with a lock that nobody holds: when made, and in a forked process."""
        self._clients: dict[Loop, tuple[LoopClient, AsyncGenerator[None]]] = {}
        self._shared: RedisStore | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str, deadline: float) -> AsyncRedisStore:
        """Make a store of a URL. Nothing is opened yet."""
        driver = Driver(parse(url), deadline, asynchronous=True)
        location = driver.location
        slots = SlotMap(location.nodes) if location.is_cluster else None

        def make() -> LoopClient:
            return LoopClient(
                lambda address: ServerConnection(lambda: driver.connection(address)),
                driver.client,
                deadline=driver.deadline,
                label=location.label,
                slots=slots,
            )

        def blocking(seconds: float | None) -> RedisStore:
            return RedisStore.from_url(url, deadline if seconds is None else seconds, most=1)

        return cls(make, driver.max_connections, blocking, one_slot=location.is_cluster, place=location.place)

    @classmethod
    def from_client(cls, client: Any, deadline: float) -> AsyncRedisStore:
        """Use a client's pool. The client's timeout, if it has one, is the deadline; its pool bounds its connections."""
        clients.check_client(client)
        one_slot = clients.is_cluster(client)
        timeout = clients.timeout_of(client) or deadline

        def make() -> LoopClient:
            return LoopClient(lambda _: ClientConnection(client), None, timeout, "of the application", by_slot=one_slot)

        def blocking(seconds: float | None) -> RedisStore:
            kind = type(client).__name__
            raise ConfigurationError(
                f"store of type {kind!r} cannot be used outside its event loop: give the URL of its server"
            )

        return cls(make, float("inf"), blocking, client, one_slot=one_slot, place=id(client))

    async def run(self, call: Call) -> Figures:
        """Decide one call, together with others of this event loop. Raises StoreOutage if the server cannot."""
        client = await self._ready_client()
        if client is None:
            return await asyncio.to_thread(self._shared_store().run, call)
        figures: Figures = await client.submit(call)
        return figures

    def submit(self, call: Call, finish: Finish) -> Awaitable[None]:
        """Decide one call, and pass its figures, or the outage, to `finish`: with no task and no coroutine of its own, once
        this event loop is connected.
        """
        entry = self._clients.get(asyncio.get_running_loop())
        if entry is not None and entry[0].is_ready:
            return entry[0].submit(call, finish)
        return self._finish(call, finish)

    async def _finish(self, call: Call, finish: Finish) -> None:
        try:
            answer: Figures | StoreOutage = await self.run(call)
        except StoreOutage as outage:
            answer = outage
        finish(answer)

    async def run_many(self, calls: Sequence[Call]) -> list[Answer]:
        """Decide calls together. Raises StoreOutage if none could be decided."""
        client = await self._ready_client()
        if client is None:
            return await asyncio.to_thread(self._shared_store().run_many, calls)
        answers = await _all_of(client.submit_many(calls))
        outages = [answer for answer in answers if isinstance(answer, StoreOutage)]
        if outages and len(outages) == len(answers):
            raise outages[0]
        return [str(answer) if isinstance(answer, StoreOutage) else answer for answer in answers]

    async def execute_many(self, commands: Sequence[Command], node: str = "") -> list[Reply]:
        """Run commands past the script, through a client of redis-py for this event loop."""
        return await clients.execute_many_async(await self.client(), commands, node)

    async def nodes(self) -> list[str]:
        """Return the sorted names of a Cluster's primaries, or [""]. Raises StoreOutage."""
        return await clients.nodes_async(await self.client())

    async def client(self) -> Any:
        """Return a client for the running event loop: one of redis-py, or the one that the application brought."""
        if self._brought is not None:
            return self._brought
        found = await self._client_of(asyncio.get_running_loop(), float("inf"))
        return None if found is None else found.client

    def blocking(self, deadline: float) -> Store:
        """Return a store for threads, on the same server. Raises ConfigurationError for a client that was brought."""
        return self._blocking(deadline)

    def health(self) -> Health:
        """Return the worst of what is known of the servers, on all event loops."""
        known = [health for client, _ in list(self._clients.values()) for health in client.health()]
        return worst_health([*known, *([self._shared.health()] if self._shared is not None else [])])

    async def warm(self) -> None:
        """Open a connection in the background."""
        client = await self._client_of(asyncio.get_running_loop(), self._most_clients)
        if client is not None:
            client.warm()

    async def aclose(self) -> None:
        """Close the connections that were opened on this event loop. A client that was brought stays open."""
        entry = self._clients.get(asyncio.get_running_loop())
        if entry is not None:
            await entry[1].aclose()
        if self._shared is not None:
            self._shared.close()

    async def _ready_client(self) -> LoopClient | None:
        """Return the client of the running event loop, which knows the server of each call; None beyond the bound."""
        loop = asyncio.get_running_loop()
        entry = self._clients.get(loop)
        client = entry[0] if entry is not None else await self._client_of(loop, self._most_clients)
        if client is not None and not client.is_ready:
            await client.refresh_slots()
        return client

    async def _client_of(self, loop: Loop, most: float) -> LoopClient | None:
        """Return the client of an event loop, made on first use; None if that would be one more than `most`."""
        with self._lock:
            entry = self._clients.get(loop)
            if entry is not None:
                return entry[0]
            self._abandon_closed()
            if len(self._clients) >= most:
                return None
            client = self._make()
            guard = self._close_with_loop(loop, client)
            self._clients[loop] = (client, guard)
        await anext(guard)
        return client

    def _abandon_closed(self) -> None:
        """Close the sockets of event loops that were closed without finishing their asynchronous generators."""
        for loop in [loop for loop in self._clients if loop.is_closed()]:
            self._clients.pop(loop)[0].abandon()

    async def _close_with_loop(self, loop: Loop, client: LoopClient) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._clients.pop(loop, None)
            await client.aclose()

    def _shared_store(self) -> RedisStore:
        with self._lock:
            self._shared = self._shared or self._blocking(None)
            return self._shared


async def _all_of(futures: Sequence[asyncio.Future[Figures]]) -> list[Figures | StoreOutage]:
    """Await futures, without a task for each. A cancellation, or a bug, ends them all."""
    answers: list[Figures | StoreOutage] = []
    try:
        for future in futures:
            try:
                answers.append(await future)
            except StoreOutage as outage:
                answers.append(outage)
    except BaseException:
        for future in futures:
            if not future.cancel() and not future.cancelled():
                future.exception()  # it is told to nobody, and is not logged either
        raise
    return answers


_stores: weakref.WeakSet[AsyncRedisStore] = weakref.WeakSet()


def _begin_anew() -> None:
    """Forget connections in a forked process: they are the parent's."""
    for store in list(_stores):
        store.begin()


os.register_at_fork(after_in_child=_begin_anew)
