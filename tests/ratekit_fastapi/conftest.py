"""An application with one limited route, on an empty store; and servers that outlive a test."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ratekit.stores.memory import MemoryStore
from ratekit.stores.redis_asyncio import AsyncRedisStore
from ratekit_fastapi import install
from ratekit_fastapi.dependencies import anonymous_passes
from ratekit_fastapi.settings import reset_default_settings
from support.servers import Server, wheel_server

ADDRESS = "203.0.113.7"


@pytest.fixture(autouse=True)
def store(ratekit_store: MemoryStore) -> Iterator[MemoryStore]:
    """The empty memory:// store, with nothing left of other tests."""
    reset_default_settings()
    anonymous_passes.clear()
    yield ratekit_store
    reset_default_settings()


@pytest.fixture
def limited() -> Callable[..., TestClient]:
    """Make a client of an application whose GET /x has some limiters."""

    def make(*limiters: Any, **options: Any) -> TestClient:
        app = FastAPI()
        install(app, **options)

        @app.get("/x", dependencies=[Depends(limiter) for limiter in limiters])
        async def x() -> dict[str, str]:
            return {"hello": "world"}

        return TestClient(app, raise_server_exceptions=False, client=(ADDRESS, 50000))

    return make


@pytest.fixture
def keys(store: MemoryStore) -> Callable[[], list[str]]:
    """List the keys of the store: counters, without overrides."""
    return lambda: sorted(name.decode() for name in store.execute("KEYS", "ratelimit:"))


@pytest.fixture
def redis_store(redis_server: Server) -> AsyncRedisStore:
    """The server from the wheel, empty, with a generous deadline: these tests are about answers, not about time."""
    return AsyncRedisStore.from_url(redis_server.url, deadline=5)


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """The same, for applications in other processes."""
    return f"{redis_server.url}?socket_timeout=5"


@pytest.fixture(scope="session")
def cluster_port() -> Iterator[int]:
    """A port of a Redis Cluster of three nodes, started from the wheel."""
    folder = Path(tempfile.mkdtemp(prefix="ratekit-cluster-"))
    ports = _cluster_ports()
    nodes = [_start_node(folder / str(port), port) for port in ports]
    try:
        _wait_for_all(ports, lambda client: client.ping())
        cli = Path(wheel_server()).with_name("redis-cli")
        addresses = [f"127.0.0.1:{port}" for port in ports]
        command = [str(cli), "--cluster", "create", *addresses, "--cluster-replicas", "0", "--cluster-yes"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        _wait_for_all(ports, lambda client: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        yield ports[0]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _cluster_ports() -> list[int]:
    """Three ports that are free, with 10 000 more free too: that is where the nodes talk to each other.

    Below those that the system hands out by itself, and at random, as other test processes look for some too.
    """
    candidates = random.sample(range(11000, 22000), 200)
    return [port for port in candidates if _is_free(port) and _is_free(port + 10000)][:3]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _start_node(folder: Path, port: int) -> subprocess.Popen[bytes]:
    folder.mkdir()
    command = [wheel_server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    options = ["--appendonly", "no", "--cluster-enabled", "yes", "--cluster-node-timeout", "5000"]
    return subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait_for_all(ports: list[int], is_ready: Callable[[Any], Any]) -> None:
    deadline = time.monotonic() + 30
    for port in ports:
        while True:
            try:
                with redis.Redis(port=port) as client:
                    if is_ready(client):
                        break
            except redis.RedisError:
                pass
            assert time.monotonic() < deadline, f"node {port} is not ready"
            time.sleep(0.05)
