"""An application with one limited route, on an empty store; and servers that outlive a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ratekit.stores.memory import MemoryStore
from ratekit.stores.redis.async_store import AsyncRedisStore
from ratekit_fastapi import install
from ratekit_fastapi.settings import reset_default_settings
from support.servers import Server
from support.topologies import start_cluster

ADDRESS = "203.0.113.7"


@pytest.fixture(autouse=True)
def store(ratekit_store: MemoryStore) -> Iterator[MemoryStore]:
    """The empty memory:// store, with nothing left of other tests."""
    reset_default_settings()
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
    with start_cluster() as cluster:
        yield cluster.nodes[0].port
