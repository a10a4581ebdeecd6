"""Connections and clients of redis-py for the location of a store."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ratekit.core.errors import MissingExtraError
from ratekit.stores.redis.url import Address, Location

MOST_CONNECTIONS = 4  # of a process, unless the URL has ?max_connections=
_CLIENT_SECONDS = 5.0  # timeout of commands past the script: nobody's request waits for them


class Driver:
    """Makes connections and clients of redis-py, of one colour, for a location. Making one opens nothing.

    The URL may set socket_timeout, which is then the deadline, and max_connections.
    """

    def __init__(self, location: Location, deadline: float, *, asynchronous: bool) -> None:
        self.location = location
        self.asynchronous = asynchronous
        self._redis = library("redis.asyncio" if asynchronous else "redis")
        self._options = self._connection_options(deadline)
        self._pool = self._make_pool()
        self.max_connections = int(self._pool.max_connections)
        self.deadline = float(self._pool.connection_kwargs.get("socket_timeout") or deadline)
        if asynchronous:  # ratekit.stores.redis.deadline watches over the connection instead
            self._pool.connection_kwargs.update(socket_timeout=None, socket_connect_timeout=None)
        self._connection_of = self._sentinel_connection() if location.kind == "sentinel" else self._own_connection()
        self.connection(("localhost", 6379))  # refuses an unknown option now, not at the first check

    def connection(self, address: Address | None = None) -> Any:
        """Make a connection to the location, or to one node of a Cluster."""
        where = {} if address is None or not self.location.is_cluster else {"host": address[0], "port": address[1]}
        try:
            return self._connection_of(where)
        except TypeError:
            raise ValueError("it has an option that is unknown") from None

    def client(self) -> Any:
        """Make a client, for commands past the script."""
        options = self._pool.connection_kwargs | {
            "socket_timeout": _CLIENT_SECONDS,
            "socket_connect_timeout": _CLIENT_SECONDS,
        }
        if self.location.is_cluster:
            return self._cluster_client(options)
        if self.location.kind == "sentinel":
            return self._redis.Redis(connection_pool=self._sentinel_pool(options))
        pool = self._redis.BlockingConnectionPool
        return self._redis.Redis(
            connection_pool=pool(connection_class=self._pool.connection_class, max_connections=1, **options)
        )

    def _cluster_client(self, options: dict[str, Any]) -> Any:
        cluster = importlib.import_module("redis.asyncio.cluster" if self.asynchronous else "redis.cluster")
        nodes = [cluster.ClusterNode(host, port) for host, port in self.location.nodes]
        foreign = ("host", "port", "db", "retry", "himport_registry")  # of one server; the pool adds the last one
        kept = {name: value for name, value in options.items() if name not in foreign}
        return cluster.RedisCluster(startup_nodes=nodes, **kept, **self._tls())

    def _make_pool(self) -> Any:
        pool = self._redis.BlockingConnectionPool
        return pool.from_url(self.location.url, max_connections=MOST_CONNECTIONS, timeout=5, **self._options)

    def _own_connection(self) -> Callable[[dict[str, Any]], Any]:
        pool = self._pool
        return lambda where: pool.connection_class(**{**pool.connection_kwargs, **where})

    def _sentinel_connection(self) -> Callable[[dict[str, Any]], Any]:
        """Return a function that makes connections, each with Sentinel clients that belong to its event loop."""

        def make(where: dict[str, Any]) -> Any:
            pool = self._sentinel_pool(self._pool.connection_kwargs)
            connection = pool.connection_class(**pool.connection_kwargs)
            connection.pool_of_sentinels = pool  # keeps the pool alive: redis-py refers to it weakly
            return connection

        return make

    def _sentinel_pool(self, options: dict[str, Any]) -> Any:
        sentinel = importlib.import_module("redis.asyncio.sentinel" if self.asynchronous else "redis.sentinel")
        kept = {name: value for name, value in options.items() if name not in ("host", "port")}
        asked = self._options | dict(self.location.sentinel_options)
        manager = sentinel.Sentinel(self.location.nodes, sentinel_kwargs=asked, **self._tls())
        return manager.master_for(self.location.service, **kept, **self._tls()).connection_pool

    def _tls(self) -> dict[str, bool]:
        return {"ssl": True} if self.location.url.startswith("rediss:") else {}

    def _connection_options(self, deadline: float) -> dict[str, Any]:
        """Return options without retries, since a retried charge counts twice, and with RESP2, which needs no handshake."""
        retry = importlib.import_module("redis.asyncio.retry" if self.asynchronous else "redis.retry")
        backoff = importlib.import_module("redis.backoff")
        keepalive = {} if self.location.url.startswith("unix:") else {"socket_keepalive": True}
        return {
            **keepalive,
            "socket_timeout": deadline,
            "socket_connect_timeout": deadline,
            "retry": retry.Retry(backoff.NoBackoff(), 0),
            "protocol": 2,
            **self._no_client_info(),
        }

    def _no_client_info(self) -> dict[str, None]:
        """Leave out CLIENT SETINFO, two round trips of every new connection. The option's name depends on the release."""
        connections = importlib.import_module(f"{self._redis.__name__}.connection")
        known = inspect.signature(connections.AbstractConnection.__init__).parameters
        return {"driver_info": None} if "driver_info" in known else {"lib_name": None, "lib_version": None}


def sentinels_of(owner: Any) -> Sequence[Any]:
    """Return the clients by which a connection or a client has asked Sentinels, so that they can be closed."""
    pool = getattr(owner, "pool_of_sentinels", None) or getattr(owner, "connection_pool", None)
    manager = getattr(pool, "sentinel_manager", None)
    return () if manager is None else manager.sentinels


def library(name: str) -> Any:
    """Import a module of redis-py, or name the extra that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError("redis://", "redis") from None
