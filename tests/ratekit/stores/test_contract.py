"""What limiters and administration ask of a store, asked of every Redis store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import redis

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, stores
from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import encode
from ratekit.stores.contract import AsyncStore, Store
from support.servers import Server, free_port
from support.topologies import Cluster, start_cluster

TEN = Policy("ten", Limit(10, 600))
DEADLINE = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_cluster() as cluster:
        yield cluster


@pytest.fixture(params=["server", "server's client", "cluster", "cluster's client"])
def kind(request) -> str:
    return request.param


def given(kind: str, server: Server, cluster: Cluster, *, asynchronous: bool):
    """A URL, or a client that the application brings."""
    library = redis.asyncio if asynchronous else redis
    return {
        "server": lambda: server.url,
        "server's client": lambda: library.Redis.from_url(server.url),
        "cluster": lambda: cluster.url,
        "cluster's client": lambda: library.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port),
    }[kind]()


@pytest.fixture
def store(kind, redis_server, cluster) -> Iterator[Store]:
    value = given(kind, redis_server, cluster, asynchronous=False)
    store = stores.open_store(value, DEADLINE)
    yield store
    store.close()
    if not isinstance(value, str):
        value.close()


@pytest.fixture
def in_loop(kind, redis_server, cluster) -> Iterator:
    """Runs a function of an asynchronous store in an event loop."""

    async def run(work):
        value = given(kind, redis_server, cluster, asynchronous=True)
        store = stores.open_async_store(value, DEADLINE)
        try:
            return await work(store)
        finally:
            await store.aclose()
            if not isinstance(value, str):
                await value.aclose()

    return lambda work: asyncio.run(run(work))


def test_store_is_a_store_of_the_contract(store, kind):
    assert isinstance(store, Store)
    assert not isinstance(store, AsyncStore)
    assert (store.is_local, store.one_slot) == (False, kind.startswith("cluster"))


def test_asynchronous_store_is_one_of_the_contract(in_loop, kind):
    async def work(store):
        assert isinstance(store, AsyncStore)
        assert not isinstance(store, Store)
        assert (store.is_local, store.one_slot) == (False, kind.startswith("cluster"))

    in_loop(work)


def test_commands_that_fail_have_an_outage_in_place_of_their_replies(store, in_loop):
    commands = [("SET", "text{c}", "x"), ("HGETALL", "text{c}"), ("GET", "text{c}"), ("DEL", "text{c}")]

    def check(replies):
        assert [replies[0], replies[2], replies[3]] == [True, b"x", 1]
        assert replies[1].outage.reason == "wrongtype"

    async def work(store):
        return await store.execute_many(commands)

    check(store.execute_many(commands))
    check(in_loop(work))


def test_single_command_that_fails_has_an_outage_in_place_of_its_reply(store, in_loop):
    async def work(store):
        return [(await store.execute_many([command]))[0] for command in commands]

    commands = [("SET", "text{c}", "x"), ("HGETALL", "text{c}"), ("DEL", "text{c}")]
    for replies in ([store.execute_many([command])[0] for command in commands], in_loop(work)):
        assert [replies[0], replies[2]] == [True, 1]
        assert replies[1].outage.reason == "wrongtype"


def test_commands_without_a_key_run_on_each_node(store, in_loop, kind):
    async def work(store):
        return [(name, (await store.execute_many([("PING",)], name))[0]) for name in await store.nodes()]

    replies = [(name, store.execute_many([("PING",)], name)[0]) for name in store.nodes()]
    assert replies == in_loop(work) == sorted(replies)
    assert len(replies) == (3 if kind.startswith("cluster") else 1)
    assert all(reply for _, reply in replies)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_store_that_cannot_be_reached_is_an_outage(scheme):
    url = f"{scheme}://127.0.0.1:{free_port()}"
    store = stores.open_store(url, DEADLINE)

    async def work(store):
        with pytest.raises(StoreOutage):
            await store.nodes() if scheme == "redis+cluster" else await store.execute_many([("PING",)])
        with pytest.raises(StoreOutage):
            await store.run_many([encode(TEN, "u")] * 2)
        await store.aclose()

    with pytest.raises(StoreOutage):
        store.nodes() if scheme == "redis+cluster" else store.execute_many([("PING",)])
    with pytest.raises(StoreOutage):
        store.run_many([encode(TEN, "u")] * 2)
    store.close()
    asyncio.run(work(stores.open_async_store(url, DEADLINE)))


def test_submitted_calls_are_finished_from_the_first_one_on(in_loop, kind):
    """Whether the event loop has a connection yet or not, and whether the slots of the Cluster are known or not."""

    async def work(store):
        finished = []
        await store.submit(encode(TEN, f"{kind}, first"), finished.append)
        for _ in range(2):
            await asyncio.gather(*(store.submit(encode(TEN, f"{kind} {number}"), finished.append) for number in range(10)))
        return finished

    assert [figures[2] for figures in in_loop(work)] == [1] + [1] * 10 + [2] * 10


def test_calls_submitted_on_event_loops_beyond_the_bound_are_finished(redis_server):
    store, finished = stores.open_async_store(f"{redis_server.url}?max_connections=2", DEADLINE), []
    barrier = threading.Barrier(4)

    async def work():
        barrier.wait(timeout=20)
        for _ in range(3):
            await store.submit(encode(TEN, "u"), finished.append)
        barrier.wait(timeout=20)
        await store.aclose()

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(figures[0] & 1 for figures in finished) == [0] * 2 + [1] * 10


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_outage_reaches_finish_from_the_first_call_to_the_open_breaker(scheme):
    store, finished = stores.open_async_store(f"{scheme}://127.0.0.1:{free_port()}", DEADLINE), []
    for _ in range(6):
        await store.submit(encode(TEN, "u"), finished.append)
    assert [type(answer) for answer in finished] == [StoreOutage] * 6
    assert {answer.outage.reason for answer in finished} == {"connection"}
    await store.aclose()


async def test_finish_that_raises_on_the_first_call_raises_in_its_awaitable(redis_server):
    store = stores.open_async_store(redis_server.url, DEADLINE)

    def finish(answer):
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await store.submit(encode(TEN, "u"), finish)
    await store.aclose()


async def test_blocking_store_has_the_state_of_the_asynchronous_one(redis_server, cluster):
    for url in (redis_server.url, cluster.url):
        async with AsyncRateLimiter(url, deadline=DEADLINE) as limiter:
            before = await limiter.check(TEN, "shared")
            with RateLimiter(limiter.store.blocking(DEADLINE)) as other:
                assert other.check(TEN, "shared").request_count == before.request_count + 1


async def test_blocking_store_of_a_brought_client_is_refused(redis_server):
    client = redis.asyncio.Redis.from_url(redis_server.url)
    with pytest.raises(ConfigurationError, match="'Redis' cannot be used outside its event loop"):
        stores.open_async_store(client, DEADLINE).blocking(1)
    await client.aclose()


def test_store_of_the_other_colour_is_refused(redis_server):
    with pytest.raises(ConfigurationError, match="'AsyncRedisStore' does not fit a RateLimiter"):
        RateLimiter(stores.open_async_store(redis_server.url, 1))
    with pytest.raises(ConfigurationError, match="'RedisStore' does not fit an AsyncRateLimiter"):
        AsyncRateLimiter(stores.open_store(redis_server.url, 1))
