"""The URL of a Redis store: one server, a Cluster, or a service that Sentinels watch."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlencode

Address = tuple[str, int]
_PLAIN = ("redis", "rediss", "unix")
_SEVERAL = re.compile(r"(rediss?)\+(cluster|sentinel)://(?:([^/?#]*)@)?([^/?#@]+)(?:/([^?#]*))?(?:\?([^#]*))?")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?")
_PORTS = {"cluster": 6379, "sentinel": 26379}


@dataclass(frozen=True, slots=True, repr=False)
class Location:
    """Where a store is: one server, a Cluster known by some of its nodes, or a service known by its Sentinels."""

    url: str  # of one server, in the form of redis-py: the options that all nodes share
    kind: str = "server"
    nodes: tuple[Address, ...] = ()
    service: str = ""
    sentinel_options: tuple[tuple[str, str], ...] = ()

    @property
    def is_cluster(self) -> bool:
        """Whether it is a Cluster, where all keys of one call must be in one slot."""
        return self.kind == "cluster"

    @property
    def label(self) -> str:
        """The location for logs and metrics, without secrets."""
        if self.kind == "server":
            return without_secrets(self.url)
        return f"{self.kind} {self.service or ','.join(f'{host}:{port}' for host, port in self.nodes)}"

    @property
    def place(self) -> Hashable:
        """Where the state is: equal for locations that share it."""
        database = parse_qs(self.url.partition("?")[2]).get("db", [""])[-1]
        return self.label, self.nodes, database

    def __repr__(self) -> str:
        return f"Location({self.label!r})"


def without_secrets(url: str) -> str:
    """Return a URL for people, without its user, its password and its options.

    An @ after the host says that the password may have a / ? or # that is not escaped. Then the host is not known either.
    """
    match = re.match(r"[a-z+]+://", url)
    scheme = match[0] if match else ""
    server, ending = _divided(url.removeprefix(scheme))
    if "@" in ending:
        return f"{scheme}…"
    return f"{scheme}{server.rpartition('@')[2]}{re.split('[?#]', ending)[0]}"


def _divided(rest: str) -> tuple[str, str]:
    """Return the user, password and host of a URL, and what follows them."""
    match = re.search("[/?#]", rest)
    return (rest[: match.start()], rest[match.start() :]) if match else (rest, "")


def parse(url: str) -> Location:
    """Parse the URL of a store. Raises ValueError if it is not valid, or if it is not clear where its password ends."""
    if "@" in _divided(url.partition("://")[2])[1]:
        raise ValueError("it has an @ after its host")
    if url.partition("://")[0] in _PLAIN:
        return Location(url)
    match = _SEVERAL.fullmatch(url)
    if not match:
        raise ValueError("it has no hosts of a cluster, or no service of Sentinels")
    scheme, kind, login, hosts, path, query = match.groups()
    nodes = tuple(_address(host, _PORTS[kind]) for host in hosts.split(","))
    service, _, database = (path or "").partition("/")
    if kind == "cluster":
        service, database = "", path or ""
    if bool(service) != (kind == "sentinel") or (kind == "cluster" and database.strip("/0")):
        raise ValueError("it has no hosts of a cluster, or no service of Sentinels")
    options = parse_qs(query or "", keep_blank_values=True)
    own = [(name.removeprefix("sentinel_"), options.pop(name)[-1]) for name in list(options) if name.startswith("sentinel_")]
    host, port = nodes[0]
    bracketed = f"[{host}]" if ":" in host else host
    base = f"{scheme}://{login + '@' if login else ''}{bracketed}:{port}/{database}?{urlencode(options, doseq=True)}"
    return Location(base.rstrip("?"), kind, nodes, unquote(service), tuple(own))


def _address(text: str, port: int) -> Address:
    match = _HOST.fullmatch(text)
    if not match:
        raise ValueError("it has a host or a port that is none")
    return match[1].strip("[]"), int(match[2] or port)
