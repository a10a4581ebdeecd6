"""Where a Redis is, by the URL of its store, and how redis-py connects to it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode

from ratekit.errors import MissingExtraError

MOST_CONNECTIONS = 4  # of a process, unless the URL has ?max_connections=
_CLIENT_SECONDS = 5.0  # for what is not a decision
Address = tuple[str, int]
_PLAIN = ("redis", "rediss", "unix")
_SEVERAL = re.compile(r"(rediss?)\+(cluster|sentinel)://(?:([^@/]*)@)?([^/?]+)(?:/([^?]*))?(?:\?(.*))?")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?")
_PORTS = {"cluster": 6379, "sentinel": 26379}


@dataclass(frozen=True, slots=True)
class Location:
    """One server, a Cluster by some of its nodes, or a service by its Sentinels."""

    url: str  # of one server, as redis-py reads it: what all nodes share
    kind: str = "server"
    nodes: tuple[Address, ...] = ()
    service: str = ""
    sentinel_options: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """Say where it is, without secrets."""
        if self.kind == "server":
            return re.sub(r"//[^@/]*@", "//", self.url.partition("?")[0])
        return f"{self.kind} {self.service or ','.join(f'{host}:{port}' for host, port in self.nodes)}"


def parse(url: str) -> Location:
    """Read the URL of a store. Raises ValueError if it makes no sense."""
    if url.partition("://")[0] in _PLAIN:
        return Location(url)
    match = _SEVERAL.fullmatch(url)
    if not match:
        raise ValueError(url)
    scheme, kind, login, hosts, path, query = match.groups()
    nodes = tuple(_address(host, _PORTS[kind]) for host in hosts.split(","))
    service, _, database = (path or "").partition("/")
    if kind == "cluster":
        service, database = "", path or ""
    if bool(service) != (kind == "sentinel") or (kind == "cluster" and database.strip("/0")):
        raise ValueError(url)
    options = parse_qs(query or "", keep_blank_values=True)
    own = [(name.removeprefix("sentinel_"), options.pop(name)[-1]) for name in list(options) if name.startswith("sentinel_")]
    host, port = nodes[0]
    shown = f"[{host}]" if ":" in host else host
    base = f"{scheme}://{login + '@' if login else ''}{shown}:{port}/{database}?{urlencode(options, doseq=True)}"
    return Location(base.rstrip("?"), kind, nodes, unquote(service), tuple(own))


def _address(text: str, port: int) -> Address:
    match = _HOST.fullmatch(text)
    if not match:
        raise ValueError(text)
    return match[1].strip("[]"), int(match[2] or port)


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
        if asynchronous:  # the line watches over its connection
            self._pool.connection_kwargs.update(socket_timeout=None, socket_connect_timeout=None)
        self._connection_of = self._sentinel_connection() if location.kind == "sentinel" else self._own_connection()
        self.connection(("localhost", 6379))  # an option that connections do not know is refused now

    def connection(self, address: Address | None = None) -> Any:
        """Make a connection: to the location, or to one node of it."""
        where = {} if address is None or self.location.kind != "cluster" else {"host": address[0], "port": address[1]}
        try:
            return self._connection_of(where)
        except TypeError:
            raise ValueError("it has an option that is unknown") from None

    def client(self) -> Any:
        """Make a client, for what is not a decision: overrides, reports, looking around."""
        options = self._pool.connection_kwargs | {
            "socket_timeout": _CLIENT_SECONDS,
            "socket_connect_timeout": _CLIENT_SECONDS,
        }
        if self.location.kind == "cluster":
            cluster = importlib.import_module("redis.asyncio.cluster" if self.asynchronous else "redis.cluster")
            nodes = [cluster.ClusterNode(host, port) for host, port in self.location.nodes]
            foreign = ("host", "port", "db", "retry", "himport_registry")  # of one server; the last is put in by its pool
            kept = {name: value for name, value in options.items() if name not in foreign}
            secure = {"ssl": True} if self.location.url.startswith("rediss:") else {}
            return cluster.RedisCluster(startup_nodes=nodes, **kept, **secure)
        if self.location.kind == "sentinel":
            return self._redis.Redis(connection_pool=self._sentinel_pool(options))
        pool = self._redis.BlockingConnectionPool
        return self._redis.Redis(
            connection_pool=pool(connection_class=self._pool.connection_class, max_connections=1, **options)
        )

    def _make_pool(self) -> Any:
        pool = self._redis.BlockingConnectionPool
        return pool.from_url(self.location.url, max_connections=MOST_CONNECTIONS, timeout=5, **self._options)

    def _own_connection(self) -> Callable[[dict[str, Any]], Any]:
        pool = self._pool
        return lambda where: pool.connection_class(**{**pool.connection_kwargs, **where})

    def _sentinel_connection(self) -> Callable[[dict[str, Any]], Any]:
        """Each connection asks the sentinels by clients of its own, which belong to its event loop as it does."""

        def make(where: dict[str, Any]) -> Any:
            pool = self._sentinel_pool(self._pool.connection_kwargs)
            connection = pool.connection_class(**pool.connection_kwargs)
            connection.pool_of_sentinels = pool  # by itself it knows it weakly
            return connection

        return make

    def _sentinel_pool(self, options: dict[str, Any]) -> Any:
        sentinel = importlib.import_module("redis.asyncio.sentinel" if self.asynchronous else "redis.sentinel")
        kept = {name: value for name, value in options.items() if name not in ("host", "port")}
        secure = {"ssl": True} if self.location.url.startswith("rediss:") else {}
        asked = self._options | dict(self.location.sentinel_options)
        manager = sentinel.Sentinel(self.location.nodes, sentinel_kwargs=asked, **secure)
        return manager.master_for(self.location.service, **kept, **secure).connection_pool

    def _connection_options(self, deadline: float) -> dict[str, Any]:
        """No retries: a retried charge counts twice. RESP2: no handshake, and a faster parser. No introduction either."""
        retry = importlib.import_module("redis.asyncio.retry" if self.asynchronous else "redis.retry")
        backoff = importlib.import_module("redis.backoff")
        keepalive = {} if self.location.url.startswith("unix:") else {"socket_keepalive": True}
        return {
            **keepalive,
            "socket_timeout": deadline,
            "socket_connect_timeout": deadline,
            "retry": retry.Retry(backoff.NoBackoff(), 0),
            "protocol": 2,
            **self._no_introduction(),
        }

    def _no_introduction(self) -> dict[str, None]:
        """Leave out CLIENT SETINFO, which costs a new connection two round trips; it has had two names."""
        connections = importlib.import_module(f"{self._redis.__name__}.connection")
        known = inspect.signature(connections.AbstractConnection.__init__).parameters
        return {"driver_info": None} if "driver_info" in known else {"lib_name": None, "lib_version": None}


def sentinels_of(owner: Any) -> Sequence[Any]:
    """Return the clients by which a connection or a client has asked sentinels, to be closed; none where there are none."""
    pool = getattr(owner, "pool_of_sentinels", None) or getattr(owner, "connection_pool", None)
    manager = getattr(pool, "sentinel_manager", None)
    return () if manager is None else manager.sentinels


def library(name: str) -> Any:
    """Import redis-py, or say which extra brings it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError("redis://", "redis") from None
