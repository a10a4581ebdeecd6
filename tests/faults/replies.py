"""What a server, or what is between, can answer in place of a decision: each by the proxy, most by a real server too."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from prometheus_client import CollectorRegistry

from faults.drive import Driver, Maker, Request
from faults.proxy import Proxy
from faults.serving import serving
from faults.table import Figures
from ratekit import Limit, Policy
from ratekit.telemetry import prometheus
from support.servers import Server, executable_of, wheel_server
from support.topologies import free_cluster_ports

MANY = Policy("many", Limit(10**6, 3600))
KEY = "ratelimit:many:{u}:3600s"
FAULTS = ("noauth", "noperm", "wrongtype")  # of configuration: an operator has to be told


@dataclass(frozen=True, slots=True)
class Reply:
    """How the proxy behaves, and the reason that results tell then."""

    reason: str
    behaviour: dict[str, Any] = field(default_factory=dict)


def _to_all(error: str, reason: str) -> Reply:
    return Reply(reason, {"error": error})


def _to_scripts(error: str, reason: str) -> Reply:
    return Reply(reason, {"error": error, "scripts_only": True})


REPLIES = {
    "LOADING": _to_all("LOADING Redis is loading the dataset in memory", "loading"),
    "READONLY": _to_scripts("READONLY You can't write against a read only replica.", "readonly"),
    "CLUSTERDOWN": _to_scripts("CLUSTERDOWN The cluster is down", "clusterdown"),
    "MOVED": _to_scripts("MOVED 11958 127.0.0.1:1", "moved"),
    "ASK": _to_scripts("ASK 11958 127.0.0.1:1", "ask"),
    "TRYAGAIN": _to_scripts("TRYAGAIN Multiple keys request during rehashing of slot", "tryagain"),
    "MASTERDOWN": _to_all("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "masterdown"),
    "MISCONF": _to_all("MISCONF Redis is configured to save RDB snapshots, but is unable to persist.", "misconf"),
    "BUSY": _to_all("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "busy"),
    "OOM": _to_scripts("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
    "NOAUTH": _to_all("NOAUTH Authentication required.", "noauth"),
    "NOPERM": _to_scripts("NOPERM this user has no permissions to run the 'evalsha' command", "noperm"),
    "WRONGTYPE": _to_scripts("WRONGTYPE Operation against a key holding the wrong kind of value", "wrongtype"),
    "max clients": Reply("max_clients", {"full": True}),
    "garbage": Reply("protocol", {"garbage": True}),
    "half a reply": Reply("timeout", {"half": "silence"}),
    "half a reply, then the end": Reply("connection", {"half": "close"}),
    "reset": Reply("connection", {"reset": True}),
}


def answered(maker: Maker, reply: Reply) -> Figures:
    """Let the proxy answer so; check one after the other and at once, and wait until the store decides again."""
    with serving() as server, Proxy(server.port) as proxy, maker.open(proxy.url) as driver:

        @contextlib.contextmanager
        def broken() -> Iterator[None]:
            proxy.behave(**reply.behaviour)
            time.sleep(0.05)  # connections that are closed now are known to be
            yield
            proxy.behave()

        return _measure(driver, broken, reply.reason)


def in_state(maker: Maker, state: str) -> Figures:
    """Bring a real server into a state, and the same."""
    # Redis 6.2 looks up from loading every 2 MB only, which takes longer than the deadline.
    executable = executable_of("path-redis-server") if state == "loading" else wheel_server()
    with (
        serving(*OPTIONS.get(state, ()), port=free_cluster_ports(1)[0], executable=executable) as server,
        maker.open(server.url) as driver,
        server.client() as client,
    ):
        return _measure(driver, lambda: STATES[state](server, client), state)


def _measure(driver: Driver, broken: Callable[[], contextlib.AbstractContextManager[None]], reason: str) -> Figures:
    driver.checks([Request(MANY)] * 20, width=4)
    with _counted() as registry, _errors_logged() as records, broken():
        samples = driver.checks([Request(MANY)] * 15, width=1)
        samples += driver.checks([Request(MANY)] * 12, width=4)
        time.sleep(0.3)
        samples += driver.checks([Request(MANY)] * 5, width=1)
    return {
        "exceptions": sum(sample.is_error for sample in samples),
        "wrong reasons": sum(sample.degraded != reason for sample in samples),
        "slowest ms": max(sample.took for sample in samples) * 1000,
        "not in the metric": abs(len(samples) - _counted_for(registry, reason)),
        "silent faults": reason in FAULTS and not records,
        "back s": _until_decided(driver),
    }


def _until_decided(driver: Driver) -> float:
    started = time.monotonic()
    while not driver.check(MANY).is_decided and time.monotonic() < started + 3:
        time.sleep(0.02)
    return time.monotonic() - started


@contextlib.contextmanager
def _counted() -> Iterator[CollectorRegistry]:
    """Count decisions in a registry of our own for a block."""
    registry = CollectorRegistry()
    end = prometheus.install(registry)
    try:
        yield registry
    finally:
        end()


def _counted_for(registry: CollectorRegistry, reason: str) -> float:
    labels = {"policy": MANY.name, "reason": reason}
    return registry.get_sample_value("ratekit_degraded_admissions_total", labels) or 0


@contextlib.contextmanager
def _errors_logged() -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler = Keep(logging.ERROR)
    logging.getLogger("ratekit").addHandler(handler)
    try:
        yield records
    finally:
        logging.getLogger("ratekit").removeHandler(handler)


def _kill_others(client: redis.Redis) -> None:
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    time.sleep(0.05)  # they know of it now


@contextlib.contextmanager
def _loading(server: Server, client: redis.Redis) -> Iterator[None]:
    """Reload a dataset so slowly that it takes seconds, then quickly."""
    client.config_set("rdbcompression", "no")
    client.mset({f"filler:{number}": "x" * 1024 for number in range(300)})
    client.config_set("key-load-delay", 10_000)
    loader = threading.Thread(target=lambda: server.client(socket_timeout=30).execute_command("DEBUG", "RELOAD"))
    loader.start()
    _wait_for(lambda: _is_refused(client, "LOADING"))
    yield
    loader.join(30)


def _is_refused(client: redis.Redis, word: str) -> bool:
    try:
        client.get("filler:0")
    except redis.RedisError as error:
        return word in str(error) or word.lower() in type(error).__name__.lower()
    return False


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline, "the server does not get into the state"
        time.sleep(0.005)


@contextlib.contextmanager
def _replica(server: Server, client: redis.Redis, stale: str) -> Iterator[None]:
    client.config_set("replica-serve-stale-data", stale)
    client.replicaof("127.0.0.1", 1)
    yield
    client.replicaof("NO", "ONE")


@contextlib.contextmanager
def _misconf(server: Server, client: redis.Redis) -> Iterator[None]:
    """Let a snapshot fail: where it goes to, there is no folder any more."""
    folder = Path(str(client.config_get("dir")["dir"])) / "gone"
    folder.mkdir()
    client.config_set("dir", str(folder))
    folder.rmdir()
    client.config_set("save", "3600 1000000")
    client.bgsave()
    _wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield
    client.config_set("stop-writes-on-bgsave-error", "no")


@contextlib.contextmanager
def _busy(server: Server, client: redis.Redis) -> Iterator[None]:
    client.config_set("lua-time-limit", 1)

    def spin() -> None:
        with contextlib.suppress(redis.RedisError):
            server.client(socket_timeout=30).eval("while true do end", 0)

    spinner = threading.Thread(target=spin)
    spinner.start()
    _wait_for(lambda: _is_refused(client, "BUSY"))
    yield
    client.script_kill()
    spinner.join(30)


@contextlib.contextmanager
def _oom(server: Server, client: redis.Redis) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    yield
    client.config_set("maxmemory", 0)


@contextlib.contextmanager
def _noauth(server: Server, client: redis.Redis) -> Iterator[None]:
    client.config_set("requirepass", "secret")
    _kill_others(client)
    yield
    client.config_set("requirepass", "")


@contextlib.contextmanager
def _noperm(server: Server, client: redis.Redis) -> Iterator[None]:
    client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    yield
    client.execute_command("ACL", "SETUSER", "default", "+evalsha", "+eval")


@contextlib.contextmanager
def _wrongtype(server: Server, client: redis.Redis) -> Iterator[None]:
    client.set(KEY, "text")
    yield
    client.delete(KEY)


@contextlib.contextmanager
def _max_clients(server: Server, client: redis.Redis) -> Iterator[None]:
    client.config_set("maxclients", 1)
    _kill_others(client)
    yield
    client.config_set("maxclients", 1000)


@contextlib.contextmanager
def _clusterdown(server: Server, client: redis.Redis) -> Iterator[None]:
    """A node of no cluster serves no slot; once it has all of them, it serves."""
    yield
    client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
    _wait_for(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))


OPTIONS = {
    "clusterdown": ("--cluster-enabled", "yes"),
    "loading": ("--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"),
}
STATES: dict[str, Callable[[Server, redis.Redis], contextlib.AbstractContextManager[None]]] = {
    "loading": _loading,
    "readonly": lambda server, client: _replica(server, client, "yes"),
    "masterdown": lambda server, client: _replica(server, client, "no"),
    "misconf": _misconf,
    "busy": _busy,
    "oom": _oom,
    "noauth": _noauth,
    "noperm": _noperm,
    "wrongtype": _wrongtype,
    "max_clients": _max_clients,
    "clusterdown": _clusterdown,
}
