"""The blocking Redis stores: on connections of their own, or on a client that the application brings."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import Call
from ratekit.stores.circuit_breaker import Breaker, Health, worst_health
from ratekit.stores.contract import Answer, Command, Figures, Reply
from ratekit.stores.redis import client as clients
from ratekit.stores.redis.client_errors import ClientErrors, errors_of, raise_outage
from ratekit.stores.redis.cluster import CLUSTER_SLOTS, SlotMap, decide_by_slot
from ratekit.stores.redis.driver import Driver, sentinels_of
from ratekit.stores.redis.evalsha import Exchange, Request, figures_in
from ratekit.stores.redis.pool import ConnectionPool
from ratekit.stores.redis.thread_batcher import ThreadBatcher
from ratekit.stores.redis.url import Address, parse


class RedisStore:
    """Decides calls in a server, or in a Cluster. Safe to use from several threads, and after a fork."""

    is_local = False

    def __init__(self, driver: Driver) -> None:
        self.one_slot = driver.location.is_cluster
        self.place = driver.location.place
        self._driver = driver
        self._client: Any = None
        self._slots = SlotMap(driver.location.nodes) if self.one_slot else None
        self._batchers: dict[Address | None, ThreadBatcher] = {}
        self._lock = threading.Lock()
        self._errors = errors_of(driver.connection())

    @classmethod
    def from_url(cls, url: str, deadline: float, most: int | None = None) -> RedisStore:
        """Make a store of a URL, with at most so many connections. Nothing is opened yet."""
        driver = Driver(parse(url), deadline, asynchronous=False)
        driver.max_connections = most or driver.max_connections
        return cls(driver)

    @property
    def client(self) -> Any:
        """A client of redis-py, for commands past the script."""
        if self._client is None:
            self._client = self._driver.client()
        return self._client

    def run(self, call: Call) -> Figures:
        """Decide one call, together with those of other threads. Raises StoreOutage if the server cannot."""
        return self._batcher_of((call,)).run(call)

    def run_many(self, calls: Sequence[Call]) -> list[Answer]:
        """Decide calls in one request, or in one for each slot of a Cluster. Raises StoreOutage if none could be decided."""
        return self._decide(calls) if self._slots is None else decide_by_slot(calls, self._decide)

    def execute_many(self, commands: Sequence[Command], node: str = "") -> list[Reply]:
        """Run commands past the script, through a client of redis-py."""
        return clients.execute_many(self._connected_client(), commands, node)

    def nodes(self) -> list[str]:
        """Return the sorted names of a Cluster's primaries, or [""]. Raises StoreOutage."""
        return clients.nodes(self._connected_client())

    def health(self) -> Health:
        """Return the worst of what is known of the servers."""
        return worst_health([batcher.pool.breaker.health for batcher in list(self._batchers.values())])

    def warm(self) -> None:
        """Open a connection in the background."""
        if self._slots is None:
            self._batcher(None).pool.warm()
        else:
            self._refresh_if_due(self._slots)

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        for batcher in list(self._batchers.values()):
            batcher.pool.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()
            if self._slots is None:
                client.connection_pool.disconnect()
            for sentinel in sentinels_of(client):
                sentinel.close()

    def _connected_client(self) -> Any:
        """Return the client. That of a Cluster connects when it is made: then there may be an outage."""
        try:
            return self.client
        except self._errors.every as error:
            raise_outage(error, self._errors)

    def _decide(self, calls: Sequence[Call]) -> list[Answer]:
        return self._batcher_of(calls).run_many(calls)

    def _batcher_of(self, calls: Sequence[Call]) -> ThreadBatcher:
        """Return the batcher of the server that has the slot of some calls. Raises StoreOutage if it is not known."""
        return self._batcher(None if self._slots is None else self._known_slots(self._slots).address_of(calls))

    def _batcher(self, address: Address | None) -> ThreadBatcher:
        batcher = self._batchers.get(address)
        if batcher is None:
            with self._lock:
                batcher = self._batchers.get(address) or self._batchers.setdefault(address, self._new_batcher(address))
        return batcher

    def _new_batcher(self, address: Address | None) -> ThreadBatcher:
        label = self._driver.location.label if address is None else f"{address[0]}:{address[1]}"
        pool = ConnectionPool(lambda: self._driver.connection(address), label)
        return ThreadBatcher(pool, self._driver.max_connections, self._slots, self._batcher)

    def _known_slots(self, slots: SlotMap) -> SlotMap:
        """Return the map of the Cluster, which is asked for first if it is empty."""
        if slots.is_empty:
            self._refresh_slots(slots)
        else:
            self._refresh_if_due(slots)
        return slots

    def _refresh_if_due(self, slots: SlotMap) -> None:
        if slots.is_stale and slots.is_due():
            threading.Thread(target=self._refresh_slots, args=(slots,), name="ratekit-slots", daemon=True).start()

    def _refresh_slots(self, slots: SlotMap) -> None:
        """Ask one node of the Cluster after the other where the slots are, until one of them answers."""
        for address in slots.nodes():
            try:
                reply = self._batcher(address).send([CLUSTER_SLOTS])[0]
            except StoreOutage:
                continue
            if not isinstance(reply, Exception):
                slots.load(reply, address)
                self._close_all_but(slots.nodes())
                return

    def _close_all_but(self, nodes: Sequence[Address]) -> None:
        """Close the connections to nodes that have left the Cluster, so that nobody probes them."""
        for address in [address for address in self._batchers if address not in nodes]:
            self._batchers.pop(address).pool.close()


class ClientStore:
    """Decides calls through a client that the application brings, on its pool, without its retries, and left open."""

    is_local = False

    def __init__(self, client: Any) -> None:
        clients.check_client(client)
        self.client = client
        self.one_slot = clients.is_cluster(client)
        self.place = id(client)
        self._errors: ClientErrors = errors_of(client)

    def run(self, call: Call) -> Figures:
        """Decide one call. Raises StoreOutage if the server cannot."""
        return figures_in(self.run_many([call])[0])

    def run_many(self, calls: Sequence[Call]) -> list[Answer]:
        """Decide calls in one request, or in one for each slot of a Cluster. Raises StoreOutage if none could be decided."""
        return decide_by_slot(calls, self._decide) if self.one_slot else self._decide(calls)

    def execute_many(self, commands: Sequence[Command], node: str = "") -> list[Reply]:
        """Run commands past the script."""
        return clients.execute_many(self.client, commands, node)

    def nodes(self) -> list[str]:
        """Return the sorted names of a Cluster's primaries, or [""]."""
        return clients.nodes(self.client)

    def health(self) -> Health:
        """Return that the store is up: the state of the client is its own."""
        return Breaker("").health

    def warm(self) -> None:
        """Do nothing: the client opens its connections itself."""

    def close(self) -> None:
        """Do nothing: the client stays open."""

    def _decide(self, calls: Sequence[Call]) -> list[Answer]:
        exchange = Exchange(calls, self._errors)
        while True:
            answers = exchange.receive(self._send(exchange.request))
            if answers is not None:
                return answers

    def _send(self, request: Request) -> list[Any]:
        try:
            return [self._reply(command) for command in request.commands]
        except self._errors.every as error:
            raise_outage(error, self._errors)

    def _reply(self, command: Command) -> Any:
        try:
            return clients.send_once(self.client, command)
        except self._errors.response as error:
            return error
