"""Several identities in one decision: on a Cluster, where each slot decides for itself, and in great numbers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import pytest
import redis

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.core.protocol import Extra, Operation, encode
from ratekit.limiter.identities import reserve_all
from ratekit.stores.memory import MemoryStore
from support.counters import cluster_client
from support.servers import Server
from support.topologies import Cluster, start_cluster

EVERYONE, BY_IP, BY_USER = Policy("everyone", "1000/min"), Policy("by_ip", "100/min"), Policy("by_user", "2/min")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with start_cluster() as cluster:
        yield cluster


@pytest.fixture(params=["waiting", "awaiting"])
def asked(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[object]:
    """Asks a limiter of a Cluster, in either colour: `asked(method, …)`."""
    if request.param == "waiting":
        with RateLimiter(cluster.url, deadline=2, on_outage="closed") as limiter:
            yield lambda method, *arguments: getattr(limiter, method)(*arguments)
        return
    with asyncio.Runner() as runner:
        limiter = AsyncRateLimiter(cluster.url, deadline=2, on_outage="closed")
        yield lambda method, *arguments: runner.run(getattr(limiter, method)(*arguments))
        runner.run(limiter.aclose())


@pytest.fixture
def subjects(cluster: Cluster, request: pytest.FixtureRequest) -> list[str]:
    """A subject of this test on each node, in the order of the nodes."""
    with cluster_client(cluster.url) as client:
        found: dict[int, str] = {}
        for number in range(200):
            name = f"{request.node.name}-{number}".translate(str.maketrans("[]", "--"))
            found.setdefault(client.get_node_from_key(name).port, name)
    return [found[node.port] for node in cluster.nodes]


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop a server for a block, as if it hung."""
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


def used(asked, checks):
    return [tier.used for tier in asked("peek_all", checks).tiers]


def test_refused_request_has_spent_nothing_in_other_slots(asked, subjects):
    one, two, three = subjects
    checks = [(EVERYONE, one), (BY_IP, two, 5), (BY_USER, three)]
    assert [asked("check_all", checks).allowed for _ in range(5)] == [True, True, False, False, False]
    assert used(asked, checks) == [2, 10, 2]


def test_policies_of_one_subject_are_decided_together_beside_another_subject(asked, subjects):
    one, two, _ = subjects
    checks = [(EVERYONE, one), (BY_IP, one, 3), (BY_USER, two)]
    result = asked("check_all", checks)
    assert [(tier.policy, tier.subject, tier.used) for tier in result.tiers] == [
        ("everyone", one, 1),
        ("by_ip", one, 3),
        ("by_user", two, 1),
    ]
    asked("check_all", checks)
    assert asked("check_all", checks).is_over_limit
    assert used(asked, checks) == [2, 6, 2]


async def test_many_at_once_are_admitted_no_more_than_each_slot_allows_and_leave_nothing_behind(cluster, subjects):
    """Each refusal returns what other slots had reserved for it, while others ask for the same."""
    one, two, three = (Policy(name, Limit(most, 3600)) for name, most in (("one", 90), ("two", 60), ("three", 75)))
    limiter = AsyncRateLimiter(cluster.url, deadline=10, on_outage="closed")

    async def ask(number: int) -> int:
        checks = [(one, subjects[0]), (two, subjects[1]), (three, subjects[2])]
        results = [await limiter.check_all(checks[number % 3 :] + checks[: number % 3]) for _ in range(8)]
        return sum(result.allowed for result in results)

    admitted = sum(await asyncio.gather(*(ask(number) for number in range(30))))
    places = zip((one, two, three), subjects, strict=True)
    assert [(await limiter.peek(policy, subject)).request_count for policy, subject in places] == [admitted] * 3
    assert 0 < admitted <= 60
    await limiter.aclose()


def test_records_of_checks_are_soon_forgotten(asked, cluster, subjects):
    """Nobody settles them: what a check has reserved returns at once, or stays."""
    asked("check_all", [(EVERYONE, subjects[0]), (BY_IP, subjects[1])])
    with redis.Redis(port=cluster.nodes[0].port) as client:
        (record,) = client.keys(f"*{{{subjects[0]}}}:~*")
        assert 0 < client.pttl(record) <= 60_000


def test_request_that_one_node_cannot_decide_has_spent_nothing_on_others(cluster, subjects):
    """on_outage="closed": the request does not pass, so nothing of it may stay."""
    checks = [(EVERYONE, subjects[0]), (BY_IP, subjects[1]), (BY_USER, subjects[2])]
    with RateLimiter(cluster.url, deadline=0.2, on_outage="closed") as limiter:
        limiter.check_all(checks)
        with stopped(cluster.nodes[2]), pytest.raises(RateLimitUnavailable):
            limiter.check_all(checks)
        assert [limiter.peek(policy, subject).request_count for policy, subject in checks[:2]] == [1, 1]


async def test_reservation_that_one_node_cannot_settle_is_settled_on_others(cluster, subjects):
    checks = [(EVERYONE, subjects[0], 5), (BY_IP, subjects[1], 5), (BY_USER, subjects[2], 2)]
    limiter = AsyncRateLimiter(cluster.url, deadline=0.2, on_outage="closed")
    async with AsyncExitStack() as stack:
        reservation = await stack.enter_async_context(limiter.reserve_all(checks))
        reservation.settle(0)
        with stopped(cluster.nodes[0]):
            await stack.aclose()
    assert [(await limiter.peek(policy, subject)).request_count for policy, subject, _ in checks[1:]] == [0, 0]
    await limiter.aclose()


async def test_reservation_that_is_cancelled_while_it_is_settled_is_settled_in_every_slot(cluster, subjects):
    limiter = AsyncRateLimiter(cluster.url, deadline=5)
    checks = [(EVERYONE, subject, 1) for subject in subjects]
    in_block = asyncio.Event()

    async def hold() -> None:
        async with limiter.reserve_all(checks) as reservation:
            reservation.settle(0)
            in_block.set()

    for turns in range(8):
        in_block.clear()
        task = asyncio.create_task(hold())
        await in_block.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(10):
        while [(await limiter.peek(policy, subject)).request_count for policy, subject, _ in checks] != [0, 0, 0]:
            pass  # the settles are under way
    await limiter.aclose()


def test_what_cannot_be_returned_keeps_nothing_else_from_being_returned():
    """The third of three slots refuses; the first cannot be told, and the second is told all the same."""
    store = RateLimiter(MemoryStore())
    options = {"operation": Operation.RESERVE, "slot": "id", "extra": Extra(hold_ms=1000)}
    calls = [encode(policy, f"s{at}", **options) for at, policy in enumerate((EVERYONE, BY_IP, Policy("no", "0/s")))]
    flow = reserve_all(calls, "ratelimit", one_slot=True)
    call = next(flow)
    for _ in range(2):
        call = flow.send(store.decide(call))
    returned = [flow.send(store.decide(call)), flow.throw(RateLimitUnavailable("connection: gone"))]
    assert [(call.operation, call.cost, call.keys[-1]) for call in returned] == [
        (Operation.SETTLE, 0, b"ratelimit:everyone:{s0}:60s"),
        (Operation.SETTLE, 0, b"ratelimit:by_ip:{s1}:60s"),
    ]
    with pytest.raises(StopIteration) as end:
        flow.send(store.decide(returned[1]))
    assert end.value.value.is_over_limit


@pytest.mark.parametrize("place", ["memory", "redis"])
def test_thousand_identities_are_one_decision(place, request):
    url = "memory://" if place == "memory" else request.getfixturevalue("redis_server").url
    with RateLimiter(url, deadline=10) as limiter:
        checks = [(BY_USER, f"user:{number}") for number in range(1000)]
        assert [limiter.check_all(checks).allowed for _ in range(3)] == [True, True, False]
        assert {tier.used for tier in limiter.peek_all(checks).tiers} == {2}
        several = Policy("several", [Limit(5, 60), Limit(50, 3600)])
        with pytest.raises(ConfigurationError, match="checks have 1002 limits: one decision takes at most 1000"):
            limiter.check_all([(several, f"user:{number}") for number in range(501)])


@pytest.mark.parametrize("checks", [None, 5])
def test_checks_that_are_none_are_an_error(checks):
    with pytest.raises(ConfigurationError, match=f"checks {checks} are not several policies"):
        RateLimiter(MemoryStore()).check_all(checks)
