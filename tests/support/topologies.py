"""Several servers together, of real processes on the loopback: a cluster, and a primary watched by sentinels."""

from __future__ import annotations

import random
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis

from support.servers import Server, start_server, stop_server, wait_until, wheel_server

_BUS = 10_000  # what a node adds to its port, to talk to the others


@dataclass(frozen=True)
class Cluster:
    """A running cluster: a server for each node, the primaries first."""

    nodes: list[Server]

    @property
    def url(self) -> str:
        """The URL that names every node."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def node_of(self, port: int) -> Server:
        """Return the node on a port."""
        return next(node for node in self.nodes if node.port == port)

    def command(self, port: int, *words: Any) -> Any:
        """Run a command on the node on a port."""
        with redis.Redis(port=port, socket_timeout=5, decode_responses=True) as client:
            return client.execute_command(*words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for node in self.nodes:
            stop_server(node)


def start_cluster(primaries: int = 3, replicas: int = 0, node_timeout_ms: int = 5000) -> Cluster:
    """Start a cluster with so many replicas for each primary, and wait until every node says that it is up."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(node_timeout_ms), "--repl-diskless-sync-delay", "0")
    ports = free_cluster_ports(primaries * (1 + replicas))
    cluster = Cluster([start_server(wheel_server(), *options, port=port) for port in ports])
    with ExitStack() as unless_up:
        unless_up.push(cluster)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        _cli("--cluster", "create", *addresses, "--cluster-replicas", str(replicas), "--cluster-yes")
        for port in ports:
            wait_until(lambda port=port: _is_up(cluster, port, len(ports)), f"node {port} is not up")
        unless_up.pop_all()
    return cluster


def _is_up(cluster: Cluster, port: int, nodes: int) -> bool:
    """Whether a node knows all others and, if it is a replica, has its primary's data."""
    state = cluster.command(port, "CLUSTER", "INFO").split()
    role = cluster.command(port, "ROLE")
    linked = role[0] == "master" or role[3] == "connected"
    return "cluster_state:ok" in state and f"cluster_known_nodes:{nodes}" in state and linked


@dataclass(frozen=True)
class Watched:
    """A primary, its replica, and the sentinels that promote it."""

    primary: Server
    replica: Server
    sentinels: list[Server]
    service: str = "limits"

    @property
    def url(self) -> str:
        """The URL that names every sentinel."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.service}/0"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for server in (*self.sentinels, self.replica, self.primary):
            stop_server(server)


def start_watched(sentinels: int = 3, down_after_ms: int = 500) -> Watched:
    """Start a primary, a replica and sentinels, and wait until the replica has the data and the sentinels know of it."""
    primary = start_server(wheel_server(), "--repl-diskless-sync-delay", "0")
    replica = start_server(wheel_server(), "--replicaof", "127.0.0.1", str(primary.port))
    watched = Watched(primary, replica, [_start_sentinel(primary.port, down_after_ms) for _ in range(sentinels)])
    with ExitStack() as unless_up, replica.client() as client:
        unless_up.push(watched)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica has no data")
        for sentinel in watched.sentinels:
            wait_until(lambda sentinel=sentinel: _knows_all(sentinel, sentinels), "a sentinel does not know the others")
        unless_up.pop_all()
    return watched


def _start_sentinel(port: int, down_after_ms: int) -> Server:
    lines = (
        f"sentinel monitor limits 127.0.0.1 {port} 2",
        f"sentinel down-after-milliseconds limits {down_after_ms}",
        "sentinel failover-timeout limits 3000",
    )
    return start_server(wheel_server(), "--sentinel", configuration="\n".join(lines) + "\n")


def _knows_all(sentinel: Server, sentinels: int) -> bool:
    with sentinel.client(decode_responses=True) as client:
        state = client.sentinel_master("limits")
    return int(state["num-slaves"]) == 1 and int(state["num-other-sentinels"]) == sentinels - 1


def _cli(*words: str) -> None:
    program = Path(wheel_server()).with_name("redis-cli")
    subprocess.run([str(program), *words], check=True, capture_output=True, timeout=60)


def free_cluster_ports(count: int) -> list[int]:
    """Ports that are free, with 10 000 more free too: that is where the nodes talk to each other.

    Below those that the system hands out by itself, and at random, as other test processes look for some too.
    """
    candidates = random.sample(range(11_000, 22_000), 200)
    return [port for port in candidates if _is_free(port) and _is_free(port + _BUS)][:count]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
