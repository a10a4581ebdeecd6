"""Clients that the application brings: what may have been charged is not sent again, whatever the client's own retries."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import valkey
from redis.backoff import NoBackoff
from redis.retry import Retry

from faults.proxy import Proxy
from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter
from support.servers import start_server, stop_server, wait_until, wheel_server
from support.topologies import free_cluster_ports

TEN = Policy("ten", Limit(10, 600))
CLIENTS: dict[str, Callable[[int], Any]] = {
    "redis": lambda port: redis.Redis(port=port),
    "redis, retries": lambda port: redis.Redis(
        port=port, retry=Retry(NoBackoff(), 5), retry_on_error=[redis.ConnectionError]
    ),
    "redis, one connection": lambda port: redis.Redis(port=port, single_connection_client=True),
    "redis, text": lambda port: redis.Redis(port=port, decode_responses=True),
    "redis, blocking pool": lambda port: redis.Redis(connection_pool=redis.BlockingConnectionPool(port=port)),
    "redis.asyncio": lambda port: redis.asyncio.Redis(port=port),
    "valkey": lambda port: valkey.Valkey(port=port, retry_on_error=[valkey.ConnectionError]),
    "valkey.asyncio": lambda port: valkey.asyncio.Valkey(port=port, retry_on_error=[valkey.ConnectionError]),
}
CLUSTER_CLIENTS: dict[str, Callable[[int], Any]] = {
    "redis": lambda port: redis.RedisCluster(host="127.0.0.1", port=port),
    "redis.asyncio": lambda port: redis.asyncio.RedisCluster(host="127.0.0.1", port=port),
    "valkey": lambda port: valkey.ValkeyCluster(host="127.0.0.1", port=port),
    "valkey.asyncio": lambda port: valkey.asyncio.ValkeyCluster(host="127.0.0.1", port=port),
}


class Brought:
    """A limiter of either colour on a client, which is made on the event loop."""

    def __init__(self, make: Callable[[int], Any], port: int, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._client = self._finish(lambda: make(port))
        is_async = inspect.iscoroutinefunction(self._client.execute_command)
        self.limiter: Any = (AsyncRateLimiter if is_async else RateLimiter)(self._client, deadline=5)

    def check(self) -> Any:
        return self._finish(lambda: self.limiter.check(TEN, "u"))

    def close(self) -> None:
        is_async = isinstance(self.limiter, AsyncRateLimiter)
        self._finish(self.limiter.aclose if is_async else self.limiter.close)
        self._finish(self._client.aclose if is_async else self._client.close)

    def _finish(self, act: Callable[[], Any]) -> Any:
        async def finish() -> Any:
            answer = act()
            return await answer if inspect.iscoroutine(answer) else answer

        return self._runner.run(finish())


@pytest.fixture
def bring() -> Iterator[Callable[..., Brought]]:
    made: list[Brought] = []
    with asyncio.Runner() as runner:

        def make(client: Callable[[int], Any], port: int) -> Brought:
            made.append(Brought(client, port, runner))
            return made[-1]

        yield make
        for one in made:
            one.close()
    made.clear()
    gc.collect()  # what a client has forgotten warns here, and not in another test


@pytest.mark.parametrize("name", CLIENTS)
def test_call_whose_reply_is_lost_runs_once(redis_server, bring, name):
    with Proxy(redis_server.port) as proxy:
        one = bring(CLIENTS[name], proxy.port)
        assert one.check().request_count == 1
        proxy.behave(lost=True)
        assert one.check().degraded == "connection"
        proxy.behave()
        assert one.check().request_count == 3


@pytest.fixture
def clustered() -> Iterator[Proxy]:
    """A proxy in front of a Cluster of one node, which tells clients the proxy's port."""
    (port,) = free_cluster_ports(1)
    with Proxy(port) as proxy:
        options = ("--cluster-enabled", "yes", "--cluster-announce-port", str(proxy.port))
        server = start_server(wheel_server(), *options, port=port)
        try:
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
                wait_until(lambda: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")), "no cluster")
            yield proxy
        finally:
            stop_server(server)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # valkey-py forgets nodes whose connection was reset
@pytest.mark.parametrize("name", CLUSTER_CLIENTS)
def test_call_to_a_cluster_whose_reply_is_lost_runs_once(clustered, bring, name):
    one = bring(CLUSTER_CLIENTS[name], clustered.port)
    assert one.check().request_count == 1
    clustered.behave(lost=True)
    assert one.check().degraded == "connection"
    clustered.behave()
    with RateLimiter(clustered.url, deadline=5) as limiter:
        assert limiter.peek(TEN, "u").request_count == 2


def test_client_without_a_pool_is_refused_with_the_remedy():
    class Wrapped(redis.Redis):
        def __init__(self) -> None:
            """Have no pool."""

        def __del__(self) -> None:
            """Close nothing."""

    with pytest.raises(ConfigurationError, match="'Wrapped' has no connection_pool"):
        RateLimiter(Wrapped())
