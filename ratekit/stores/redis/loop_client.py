"""The connections of one event loop: a batcher for the server, or for each node of a Cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import Call
from ratekit.stores.circuit_breaker import Health
from ratekit.stores.contract import Command, Finish
from ratekit.stores.redis.batcher import Batcher
from ratekit.stores.redis.cluster import CLUSTER_SLOTS, SlotMap
from ratekit.stores.redis.connection import Connection, abandon_client
from ratekit.stores.redis.deadline import Deadline
from ratekit.stores.redis.driver import sentinels_of
from ratekit.stores.redis.url import Address


class LoopClient:
    """Picks the batcher of each call's server. Belongs to the event loop on which it is made.

    `slots` is the map of a Cluster whose nodes ratekit connects to itself. `by_slot` alone is for a client of a Cluster that
    the application brings, which finds the nodes by itself.
    """

    def __init__(
        self,
        connect: Callable[[Address | None], Connection],
        make_client: Callable[[], Any] | None,
        deadline: float,
        label: str,
        slots: SlotMap | None = None,
        *,
        by_slot: bool = False,
    ) -> None:
        self._connect = connect
        self._make_client = make_client
        self._client: Any = None
        self._deadline = deadline
        self._label = label
        self._slots = slots
        self._by_slot = by_slot or slots is not None
        self._batchers: dict[Address | None, Batcher] = {}
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def client(self) -> Any:
        """A client of redis-py for this event loop, for commands past the script."""
        if self._client is None and self._make_client is not None:
            self._client = self._make_client()
        return self._client

    @property
    def is_ready(self) -> bool:
        """Whether the server of each call is known."""
        return self._slots is None or not self._slots.is_empty

    def submit(self, call: Call, finish: Finish | None = None) -> asyncio.Future[Any]:
        """Decide a call. The future has the figures, or raises StoreOutage; with `finish`, that gets them instead.

        Call it only if the client is ready; `refresh_slots` makes it so.
        """
        return self._batcher_of(call).submit(call, finish)

    def submit_many(self, calls: Sequence[Call]) -> list[asyncio.Future[Any]]:
        """Decide calls together, in as few requests as possible. Call it only if the client is ready."""
        batchers = [self._batcher_of(call) for call in calls]
        futures = [batcher.enqueue(call) for batcher, call in zip(batchers, calls, strict=True)]
        for batcher in dict.fromkeys(batchers):
            batcher.flush()
        return futures

    def health(self) -> list[Health]:
        """Return what is known of each server."""
        return [batcher.breaker.health for batcher in self._batchers.values()]

    def warm(self) -> None:
        """Connect in the background."""
        if self._slots is None:
            self._batcher(None).warm()
        else:
            self._refresh_if_due(self._slots)

    async def refresh_slots(self) -> None:
        """Ask one node of the Cluster after the other where the slots are, until one of them answers."""
        for address in self._slots.nodes() if self._slots is not None else ():
            connection = self._connect(address)
            try:
                async with Deadline(self._deadline):
                    reply = await _reply_to(CLUSTER_SLOTS, connection)
            except StoreOutage:
                continue
            except connection.errors.every:
                continue
            finally:
                connection.close()
            if self._slots is not None:
                self._slots.load(reply, address)
                await self._close_all_but(self._slots.nodes())
                return

    async def aclose(self) -> None:
        """Wait for the requests in flight, and close all connections."""
        for batcher in list(self._batchers.values()):
            await batcher.aclose()
        self._batchers.clear()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
            if not self._by_slot:  # the client of a Cluster closes the pools of its nodes itself
                await client.connection_pool.disconnect()
            for sentinel in sentinels_of(client):
                await sentinel.aclose()

    def abandon(self) -> None:
        """Close all sockets, after the event loop was closed without `aclose`."""
        abandon_client(self._client)
        for batcher in self._batchers.values():
            batcher.abandon()

    def _batcher_of(self, call: Call) -> Batcher:
        if self._slots is None:
            return self._batcher(None)
        self._refresh_if_due(self._slots)
        return self._batcher(self._slots.address_of([call]))

    def _batcher(self, address: Address | None) -> Batcher:
        batcher = self._batchers.get(address)
        if batcher is None:
            label = self._label if address is None else f"{address[0]}:{address[1]}"
            connection = self._connect(address)
            batcher = Batcher(connection, self._deadline, label, self._slots, self._batcher, by_slot=self._by_slot)
            self._batchers[address] = batcher
        return batcher

    def _refresh_if_due(self, slots: SlotMap) -> None:
        if slots.is_stale and slots.is_due():
            self._refreshing = asyncio.get_running_loop().create_task(self.refresh_slots())

    async def _close_all_but(self, nodes: Sequence[Address]) -> None:
        """Close the batchers of nodes that have left the Cluster, so that nobody probes them."""
        for address in [address for address in self._batchers if address not in nodes]:
            await self._batchers.pop(address).aclose()


async def _reply_to(command: Command, connection: Connection) -> Any:
    """Connect, and return the reply to one command."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    await connection.open()
    connection.send([command], future.set_result)
    replies = await future
    reply = replies if isinstance(replies, Exception) else replies[0]
    if isinstance(reply, Exception):
        raise reply
    return reply
