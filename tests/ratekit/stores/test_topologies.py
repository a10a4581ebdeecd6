"""Cluster, Sentinel, TLS: the same answers wherever the script runs, and whoever says where that is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter
from ratekit.core.outages import Outage, StoreOutage
from ratekit.core.protocol import encode
from ratekit.stores.redis.cluster import SlotMap, decide_by_slot, slot_of
from ratekit.stores.redis.url import parse
from support.topologies import Cluster, start_cluster, start_watched

TEN = Policy("ten", [Limit(10, 600), Limit(1000, 3600, algorithm="token_bucket")])
SUBJECTS = [f"user:{number}" for number in range(60)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_cluster() as cluster:
        yield cluster


async def ask_all(limiter: AsyncRateLimiter, times: int) -> list[int]:
    answers = await asyncio.gather(*(limiter.check(TEN, subject) for subject in SUBJECTS for _ in range(times)))
    assert {answer.degraded for answer in answers} == {None}
    return [sum(answer.allowed for answer in answers[start : start + times]) for start in range(0, len(answers), times)]


@pytest.fixture
def empty(cluster: Cluster) -> Cluster:
    for node in cluster.nodes:
        cluster.command(node.port, "FLUSHALL")
        cluster.command(node.port, "SCRIPT", "FLUSH")
    return cluster


async def test_each_subject_of_a_cluster_is_counted_by_its_node_when_calls_are_batched(empty):
    async with AsyncRateLimiter(empty.url, deadline=5) as limiter:
        assert await ask_all(limiter, 12) == [10] * len(SUBJECTS)
    sizes = [empty.command(node.port, "DBSIZE") for node in empty.nodes]
    assert sum(sizes) == 2 * len(SUBJECTS)
    assert min(sizes) > 0


async def test_calls_of_one_slot_share_one_script_call(empty):
    async with AsyncRateLimiter(empty.url, deadline=5) as limiter:
        await asyncio.gather(*(limiter.check(TEN, "user:1") for _ in range(2)))
        for node in empty.nodes:
            empty.command(node.port, "CONFIG", "RESETSTAT")
        await asyncio.gather(*(limiter.check(TEN, "user:1") for _ in range(20)))
        infos = [empty.command(node.port, "INFO", "commandstats") for node in empty.nodes]
    assert sum(info.get("cmdstat_evalsha", {"calls": 0})["calls"] for info in infos) == 2  # the first one left alone


def test_each_subject_of_a_cluster_is_counted_by_its_node_when_calls_wait(empty):
    with RateLimiter(empty.url, deadline=5) as limiter:
        for subject in SUBJECTS:
            assert [limiter.check(TEN, subject).allowed for _ in range(11)] == [True] * 10 + [False]
        answers = limiter.store.run_many([encode(TEN, subject) for subject in SUBJECTS])
        assert all(answer[0] % 2 == 0 for answer in answers)


def test_calls_of_one_slot_are_decided_together_and_those_of_a_slot_that_fails_have_its_error():
    calls, asked = [encode(TEN, subject) for subject in ("a", "b", "a", "c", "b")], []

    def decide(group):
        asked.append(len(group))
        if slot_of(group[0]) == slot_of(calls[1]):
            raise StoreOutage(Outage("timeout", "no answer"))
        return [[number] for number in range(len(group))]

    assert decide_by_slot(calls, decide) == [[0], "timeout: no answer", [1], [0], "timeout: no answer"]
    assert asked == [2, 2, 1]
    with pytest.raises(StoreOutage, match="no answer"):
        decide_by_slot(calls[1:2], decide)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_warm_asks_a_cluster_for_its_slots_in_the_background(empty, colour):
    def asked() -> int:
        infos = [empty.command(node.port, "INFO", "commandstats") for node in empty.nodes]
        return sum(info["calls"] for stats in infos for name, info in stats.items() if name.startswith("cmdstat_cluster"))

    async def waited():
        async with AsyncRateLimiter(empty.url, deadline=5) as limiter:
            await limiter.warm()
            await asyncio.to_thread(wait_until, lambda: asked() > 0)

    for node in empty.nodes:
        empty.command(node.port, "CONFIG", "RESETSTAT")
    if colour == "async":
        asyncio.run(waited())
        return
    with RateLimiter(empty.url, deadline=5) as limiter:
        limiter.warm()
        wait_until(lambda: asked() > 0)


def wait_until(is_so) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_cluster_client_that_was_brought_is_used(empty, colour):
    port = empty.nodes[0].port

    async def waited():
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=port)
        async with AsyncRateLimiter(client, deadline=5) as limiter:
            assert await ask_all(limiter, 12) == [10] * len(SUBJECTS)
        await client.aclose()

    if colour == "async":
        asyncio.run(waited())
        return
    client = redis.RedisCluster(host="127.0.0.1", port=port)
    with RateLimiter(client) as limiter:
        for subject in SUBJECTS:
            assert [limiter.check(TEN, subject).allowed for _ in range(11)] == [True] * 10 + [False]
    client.close()


def move_slot(cluster: Cluster, slot: int, source: int, target: int, *, keys: list[str], done: bool) -> None:
    ids = {port: cluster.command(port, "CLUSTER", "MYID") for port in (source, target)}
    cluster.command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    cluster.command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    if keys:
        cluster.command(source, "MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *keys)
    if done:
        for node in cluster.nodes:
            cluster.command(node.port, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])


@pytest.mark.parametrize("overrides", [True, False])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_slot_that_moves_takes_its_counts_along(cluster, colour, overrides):
    """Asked for where it was, the slot is found where it is: while it moves (ASK) and after (MOVED).

    With overrides there are two keys, of which one does not exist: while it moves, no node has both (TRYAGAIN).
    """
    policy, subject = Policy("moving", Limit(10, 600)), f"mover:{colour}:{overrides}"
    slots = SlotMap([])
    call = encode(policy, subject, overrides=False)
    slots.load(cluster.command(cluster.nodes[0].port, "CLUSTER", "SLOTS"), ("127.0.0.1", 0))
    source = slots.address_of([call])[1]
    target = next(node.port for node in cluster.nodes if node.port != source)
    limiter = (RateLimiter if colour == "sync" else AsyncRateLimiter)(cluster.url, deadline=5)
    with asyncio.Runner() as runner:

        def check():
            async def waited():
                answer = limiter.check(policy, subject, overrides=overrides)
                return answer if colour == "sync" else await answer

            answer = runner.run(waited())
            assert answer.degraded is None
            return answer.request_count

        assert [check(), check()] == [1, 2]
        move_slot(cluster, slot_of(call), source, target, keys=[], done=False)
        assert check() == 3  # still there
        move_slot(cluster, slot_of(call), source, target, keys=[key.decode() for key in call.keys], done=False)
        assert [check(), check()] == [4, 5]
        move_slot(cluster, slot_of(call), source, target, keys=[], done=True)
        assert [check(), check()] == [6, 7]
        if colour == "async":
            runner.run(limiter.aclose())
        else:
            limiter.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_sentinels_say_where_the_primary_is(colour):
    with start_watched(sentinels=1) as watched, asyncio.Runner() as runner:
        limiter = (RateLimiter if colour == "sync" else AsyncRateLimiter)(watched.url, deadline=5)

        async def check():
            answer = limiter.check(TEN, "u")
            return answer if colour == "sync" else await answer

        answers = [runner.run(check()) for _ in range(11)]
        assert [answer.allowed for answer in answers] == [True] * 10 + [False]
        assert {answer.degraded for answer in answers} == {None}
        with watched.primary.client() as client:
            assert client.dbsize() == 2
        if colour == "async":
            runner.run(limiter.aclose())
        else:
            limiter.close()


@pytest.mark.parametrize(
    ("url", "kind", "nodes", "service"),
    [
        ("redis://h:1/2", "server", (), ""),
        ("redis+cluster://a:7000,b", "cluster", (("a", 7000), ("b", 6379)), ""),
        ("redis+cluster://u:p@[::1]:7000/?max_connections=2", "cluster", (("::1", 7000),), ""),
        ("redis+sentinel://a,b:5/service/3", "sentinel", (("a", 26379), ("b", 5)), "service"),
        ("rediss+sentinel://:secret@a/the%20service", "sentinel", (("a", 26379),), "the service"),
    ],
)
def test_url_says_where_the_servers_are(url, kind, nodes, service):
    location = parse(url)
    assert (location.kind, location.nodes, location.service) == (kind, nodes, service)
    assert "secret" not in location.label


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://host/1",
        "redis+cluster://host:port",
        "redis+cluster://host:99999999",
        "redis+sentinel://host",
        "redis+sentinel:///service",
        "redis+galaxy://host",
        "redis+cluster://host?unheard_of=1",
    ],
)
@pytest.mark.parametrize("kind", [RateLimiter, AsyncRateLimiter])
def test_url_that_makes_no_sense_is_refused_when_the_limiter_is_made(url, kind):
    with pytest.raises(ConfigurationError, match="store URL"):
        kind(url)
