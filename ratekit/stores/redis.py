"""`redis://`, `rediss://`, `unix://`, Cluster and Sentinel: the script in a Redis or Valkey server."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ratekit.breaker import Breaker, Health
from ratekit.events import StoreState
from ratekit.outage import StoreOutage
from ratekit.protocol import Call
from ratekit.stores.asking import (
    ClientErrors,
    Command,
    Conversation,
    deciding,
    errors_of,
    evaluation,
    figures_in,
    is_plain,
    raise_outage,
)
from ratekit.stores.cluster import SLOTS, SlotMap
from ratekit.stores.locations import Address, Driver, Location, parse, sentinels_of
from ratekit.stores.pool import Pool


def is_async(client: object) -> bool:
    """Whether a client's commands are awaited."""
    return inspect.iscoroutinefunction(getattr(client, "execute_command", None))


def is_cluster(client: object) -> bool:
    """Whether a client, or a location, is that of a Cluster, where a call has one slot only."""
    return hasattr(client, "get_node_from_key") or getattr(client, "kind", None) == "cluster"


def worst(healths: Sequence[Health]) -> Health:
    """Return the health of a store of several nodes: that of the one that has been down for longest."""
    down = [health for health in healths if health.state is not StoreState.UP]
    return min(down or healths, key=lambda health: health.since)


class RedisStore:
    """Decides calls in a server, or in a Cluster of them, waiting. Safe to use from several threads, and after a fork."""

    is_local = False

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._client: Any = None
        self._slots = SlotMap(driver.location.nodes) if is_cluster(driver.location) else None
        self._pools: dict[Address | None, Pool] = {}
        self._lock = threading.Lock()
        self._errors = errors_of(driver.connection())

    @classmethod
    def from_url(cls, url: str, deadline: float, most: int | None = None) -> RedisStore:
        """Make a store of a URL, with at most so many connections. Nothing is opened yet."""
        driver = Driver(parse(url), deadline, asynchronous=False)
        driver.max_connections = most or driver.max_connections
        return cls(driver)

    @property
    def location(self) -> Location:
        """Where it is."""
        return self._driver.location

    @property
    def client(self) -> Any:
        """A client, for what is not a decision."""
        if self._client is None:
            self._client = self._driver.client()
        return self._client

    def run(self, call: Call) -> Sequence[int]:
        """Decide one call. Raises StoreOutage if the server cannot."""
        if self._slots is not None:
            return figures_in(self._decide([call])[0])
        replies = self._pool(None).ask((evaluation((call,)),))
        if is_plain(call, replies[0]):
            return replies[0]  # type: ignore[no-any-return]
        return figures_in(self._decide([call], replies)[0])

    def run_many(self, calls: Sequence[Call]) -> list[Sequence[int] | str]:
        """Decide a batch of calls, in one round trip unless it is a Cluster: for each its figures, or the server's error."""
        if self._slots is None or len(calls) == 1:
            return self._decide(calls)
        return [self._decide([call])[0] for call in calls]

    def health(self) -> Health:
        """Return what is known of the servers."""
        return worst([pool.breaker.health for pool in list(self._pools.values())] or [Breaker("").health])

    def warm(self) -> None:
        """Open a connection in the background."""
        if self._slots is None:
            self._pool(None).warm()
        elif self._slots.is_due():
            threading.Thread(target=self._look, name="ratekit-slots", daemon=True).start()

    def close(self) -> None:
        """Close the connections."""
        for pool in list(self._pools.values()):
            pool.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()
            if self._slots is None:
                client.connection_pool.disconnect()
            for sentinel in sentinels_of(client):
                sentinel.close()

    def _decide(self, calls: Sequence[Call], replies: list[Any] | None = None) -> list[Sequence[int] | str]:
        """Hold a conversation, of which the first question may have been answered already."""
        if self._slots is not None and self._slots.is_empty:
            self._look()
        conversation = deciding(calls, self._errors, self._slots)
        try:
            return _talk(conversation, self._ask, replies)
        except StoreOutage as error:
            self._doubt(error)
            raise

    def _ask(self, address: Address | None, commands: Sequence[Command]) -> list[Any]:
        return self._pool(address).ask(commands)

    def _pool(self, address: Address | None) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            with self._lock:
                pool = self._pools.get(address) or self._pools.setdefault(address, self._new_pool(address))
        return pool

    def _new_pool(self, address: Address | None) -> Pool:
        label = self.location.label if address is None else f"{address[0]}:{address[1]}"
        return Pool(lambda: self._driver.connection(address), self._driver.max_connections, label)

    def _doubt(self, error: StoreOutage) -> None:
        """A server that is away or not the primary any more may have a successor."""
        if error.outage.reason == "readonly":
            for pool in list(self._pools.values()):
                pool.forget()
        if self._slots is not None:
            self._slots.is_stale = True
            self.warm()

    def _look(self) -> None:
        """Ask the nodes where the slots are, until one knows."""
        for address in self._slots.nodes() if self._slots is not None else ():
            try:
                reply = self._pool(address).ask([SLOTS])[0]
            except StoreOutage:
                continue
            if self._slots is not None and not isinstance(reply, Exception):
                self._slots.load(reply, address)
                self._forget_all_but(self._slots.nodes())
                return

    def _forget_all_but(self, nodes: Sequence[Address]) -> None:
        """Do not look for nodes that the cluster has parted with."""
        for address in [address for address in self._pools if address not in nodes]:
            self._pools.pop(address).close()


def _talk(
    conversation: Conversation,
    ask: Callable[[Address | None, Sequence[Command]], list[Any]],
    replies: list[Any] | None = None,
) -> list[Sequence[int] | str]:
    question = next(conversation)
    while True:
        try:
            question = conversation.send(ask(*question) if replies is None else replies)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        replies = None


class ClientStore:
    """Decides calls through a client that the application has brought, as it is."""

    is_local = False

    def __init__(self, client: Any) -> None:
        self.client = client
        self._errors: ClientErrors = errors_of(client)
        self._is_cluster = is_cluster(client)

    def run(self, call: Call) -> Sequence[int]:
        """Decide one call. Raises StoreOutage if the server cannot."""
        return figures_in(self.run_many([call])[0])

    def run_many(self, calls: Sequence[Call]) -> list[Sequence[int] | str]:
        """Decide a batch of calls: for each its figures, or the server's error."""
        groups = [[call] for call in calls] if self._is_cluster else [calls]
        return [answer for group in groups for answer in _talk(deciding(group, self._errors), self._ask)]

    def health(self) -> Health:
        """Return that it is up: the client's own life is not looked into."""
        return Breaker("").health

    def warm(self) -> None:
        """Leave it to the client."""

    def close(self) -> None:
        """Leave the client open."""

    def _ask(self, address: Address | None, commands: Sequence[Command]) -> list[Any]:
        try:
            return [self._reply(command) for command in commands]
        except (self._errors.every, OSError) as error:
            raise_outage(error, self._errors)

    def _reply(self, command: Command) -> Any:
        try:
            return self.client.execute_command(*command)
        except self._errors.response as error:
            return error
