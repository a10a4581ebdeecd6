"""The same, awaited: one connection for each running event loop and server, with the calls of a loop batched."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from ratekit.breaker import Breaker, Health
from ratekit.outage import Outage, StoreOutage
from ratekit.protocol import Call
from ratekit.stores.batch import Answer, Finish
from ratekit.stores.cluster import SlotMap
from ratekit.stores.hub import Hub
from ratekit.stores.locations import Driver, Location, parse
from ratekit.stores.redis import RedisStore, is_cluster, worst
from ratekit.stores.wires import ClientWire, ConnectionWire

Loop = asyncio.AbstractEventLoop


class AsyncRedisStore:
    """Decides calls in a server, or in a Cluster of them, awaiting the answers.

    A connection belongs to the event loop that opened it, and its life ends with the loop: asyncio.run, asyncio.Runner and
    servers built on them finish a loop's asynchronous generators before they close it, and such a generator closes the
    loop's hub. What was left behind by a loop that was closed without, or by a parent to a forked child, is dropped. Loops
    beyond the bound on connections wait in threads for a connection that they share.
    """

    is_local = False

    def __init__(self, make: Callable[[], Hub], most: float, shared: Callable[[], Any]) -> None:
        self._make = make
        self._most = most
        self._make_shared = shared
        self.begin()
        _stores.add(self)

    def begin(self) -> None:
        """Start from nothing: no connection, no lock that somebody holds."""
        self._hubs: dict[Loop, tuple[Hub, AsyncGenerator[None]]] = {}
        self._shared: RedisStore | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str, deadline: float) -> AsyncRedisStore:
        """Make a store of a URL. Nothing is opened yet."""
        driver = Driver(parse(url), deadline, asynchronous=True)
        location = driver.location
        slots = SlotMap(location.nodes) if is_cluster(location) else None

        def make() -> Hub:
            return Hub(
                lambda address: ConnectionWire(lambda: driver.connection(address)),
                driver.client,
                deadline=driver.deadline,
                label=location.label,
                slots=slots,
            )

        store = cls(make, driver.max_connections, lambda: RedisStore.from_url(url, deadline, most=1))
        store.location = location
        return store

    @classmethod
    def from_client(cls, client: Any, deadline: float) -> AsyncRedisStore:
        """Use a client as it is: its own timeout, if it has one, is the deadline."""
        seconds = _timeout_of(client) or deadline

        def make() -> Hub:
            return Hub(lambda address: ClientWire(client), None, seconds, "of the application", by_slot=is_cluster(client))

        store = cls(make, most=float("inf"), shared=RuntimeError)  # the client's own bound counts
        store._brought = client
        return store

    location: Location | None = None
    _brought: Any = None

    async def client(self) -> Any:
        """Return a client for the running event loop, for what is not a decision."""
        return self._brought or (await self._hub(asyncio.get_running_loop(), bounded=False)).client

    async def run(self, call: Call) -> Sequence[int]:
        """Decide one call, together with others of this event loop. Raises StoreOutage if the server cannot."""
        loop = asyncio.get_running_loop()
        entry = self._hubs.get(loop)
        hub = entry[0] if entry is not None else await self._hub(loop)
        if hub is None:
            return await asyncio.to_thread(self._shared_store().run, call)
        try:
            return await (hub.submit(call) if hub.is_ready else hub.submit_when_ready(call))
        except StoreOutage as error:
            hub.doubt(error.outage)
            raise

    def submit(self, call: Call, finish: Finish) -> Answer | None:
        """Begin to decide one call, with no coroutine of its own; None if that takes more, and run has to.

        The answer is what finish makes of the figures, or of an outage, which doubt is to be told of. Raises StoreOutage if
        there is one already.
        """
        entry = self._hubs.get(asyncio.get_running_loop())
        return entry[0].submit(call, finish) if entry is not None and entry[0].is_ready else None

    def doubt(self, outage: Outage) -> None:
        """Take note of an outage on the running event loop: a server may have a successor."""
        entry = self._hubs.get(asyncio.get_running_loop())
        if entry is not None:
            entry[0].doubt(outage)

    async def run_many(self, calls: Sequence[Call]) -> list[Sequence[int] | str]:
        """Decide some calls together: for each its figures, or the server's error. Raises StoreOutage if none is decided."""
        answers = await asyncio.gather(*(self.run(call) for call in calls), return_exceptions=True)
        outages = [answer for answer in answers if isinstance(answer, BaseException)]
        for outage in outages:
            if not isinstance(outage, StoreOutage) or len(outages) == len(calls):
                raise outage
        return [str(answer) if isinstance(answer, BaseException) else answer for answer in answers]

    def health(self) -> Health:
        """Return what is known of the servers, by all event loops."""
        known = [health for hub, _ in list(self._hubs.values()) for health in hub.health()]
        return worst(known or [Breaker("").health])

    async def warm(self) -> None:
        """Open a connection in the background."""
        hub = await self._hub(asyncio.get_running_loop())
        if hub is not None:
            hub.warm()

    async def aclose(self) -> None:
        """Close the connections that ratekit has opened on this event loop; a client that was brought stays open."""
        entry = self._hubs.get(asyncio.get_running_loop())
        if entry is not None:
            await entry[1].aclose()
        if self._shared is not None:
            self._shared.close()

    async def _hub(self, loop: Loop, *, bounded: bool = True) -> Any:
        """Return the hub of an event loop, made on first use; None if there are as many as there may be connections."""
        entry = self._hubs.get(loop)
        if entry is not None:
            return entry[0]
        with self._lock:
            for other in [other for other in self._hubs if other.is_closed()]:
                _abandon(self._hubs.pop(other)[0])
            if bounded and len(self._hubs) >= max(self._most - 1, 1):
                return None
            hub = self._make()
            guard = self._close_with_loop(loop, hub)
            self._hubs[loop] = (hub, guard)
        await anext(guard)
        return hub

    async def _close_with_loop(self, loop: Loop, hub: Hub) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._hubs.pop(loop, None)
            await hub.aclose()

    def _shared_store(self) -> RedisStore:
        with self._lock:
            self._shared = self._shared or self._make_shared()
            return self._shared


def _timeout_of(client: Any) -> float | None:
    """Return the timeout that a client was made with; a Cluster's has no pool, but the options of its nodes'."""
    owner = getattr(client, "connection_pool", client)
    seconds = getattr(owner, "connection_kwargs", {}).get("socket_timeout")
    return float(seconds) if seconds else None


def _abandon(hub: Hub) -> None:
    """Close the sockets of a hub whose event loop was closed without it: there is no loop left to do it in order."""
    for connection in hub.connections():
        transport: Any = getattr(getattr(connection, "_writer", None), "transport", None)
        sock = getattr(transport, "_sock", None)
        if sock is not None:
            sock.close()
            vars(transport).update(_sock=None, _closing=True)
            connection._writer = connection._reader = None  # noqa: SLF001 - there is no public way without a loop


_stores: weakref.WeakSet[AsyncRedisStore] = weakref.WeakSet()


def _begin_anew() -> None:
    """In a forked process: the connections are the parent's."""
    for store in list(_stores):
        store.begin()


os.register_at_fork(after_in_child=_begin_anew)
