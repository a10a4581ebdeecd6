"""What the limiters do around the store's answer: slots, outages, errors that travel."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from ratekit import (
    AsyncRateLimiter,
    Limit,
    Policy,
    RateLimiter,
    RateLimitExceeded,
    RateLimitUnavailable,
)
from ratekit.core.errors import MissingExtraError, UnusableRequestError
from ratekit.core.protocol import encode, merge
from ratekit.stores.memory import MemoryStore
from support.servers import free_port, start_server, stop_server, wheel_server

SLOTS = Policy("jobs", Limit(3, 600, algorithm="concurrency"))


async def test_slot_whose_acquiring_was_cancelled_is_not_held(redis_server):
    limiter = AsyncRateLimiter(redis_server.url, deadline=5)
    policy = Policy("jobs", Limit(1000, 600, algorithm="concurrency"))

    async def hold() -> None:
        async with limiter.slot(policy, "u"):
            await asyncio.sleep(60)

    await limiter.peek(policy, "u")
    for turns in range(60):
        task = asyncio.create_task(hold())
        for _ in range(turns % 12):
            await asyncio.sleep(0)
        while not task.done():  # redis-py may finish a call that is under way, and forget that it was cancelled
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
    assert (await limiter.peek(policy, "u")).request_count <= 1
    await limiter.aclose()


def test_slot_that_cannot_be_released_does_not_hide_what_the_block_raised(caplog):
    server = start_server(wheel_server())
    limiter = RateLimiter(server.url, on_outage="closed", deadline=5)

    def hold_until_the_server_is_gone() -> None:
        with limiter.slot(SLOTS, "u"):
            stop_server(server)
            raise KeyError

    with pytest.raises(KeyError):
        hold_until_the_server_is_gone()
    assert "not released" in caplog.text
    limiter.close()


def test_slot_that_is_refused_is_not_released_for_nothing(redis_server):
    with redis_server.client() as client, RateLimiter(redis_server.url, deadline=5) as limiter:
        for slot in "abc":
            limiter.acquire(SLOTS, "u", slot)
        client.config_resetstat()
        with pytest.raises(RateLimitExceeded), limiter.slot(SLOTS, "u"):
            raise AssertionError
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


def test_errors_travel_between_processes():
    result = RateLimiter(MemoryStore()).check(Policy("p", "1/min"), "u", cost=5)
    exceeded = pickle.loads(pickle.dumps(RateLimitExceeded(result)))
    assert (exceeded.result, str(exceeded)) == (result, result.describe())
    unavailable = RateLimitUnavailable("timeout", 2.0)
    copy = pickle.loads(pickle.dumps(unavailable))
    assert (str(copy), copy.reason, copy.retry_after) == (str(unavailable), "timeout", 2.0)
    missing = MissingExtraError("redis://", "redis")
    assert str(pickle.loads(pickle.dumps(missing))) == str(missing)
    assert pickle.loads(pickle.dumps(UnusableRequestError("why", 413))).status == 413


def test_policy_of_shadows_alone_is_in_no_header():
    limiter = RateLimiter(MemoryStore())
    policy = Policy("p", Limit(1, 60, shadow=True))
    results = [limiter.check(policy, "u") for _ in range(3)]
    assert [result.allowed for result in results] == [True] * 3
    assert [result.to_headers(style) for result in results for style in ("ratelimit", "draft-11")] == [{}] * 6


def test_fallback_decides_what_was_merged_by_the_right_keys():
    limiter = RateLimiter(f"redis://127.0.0.1:{free_port()}", on_outage="local")
    one, other = Policy("one", Limit(2, 60)), Policy("other", Limit(5, 60))
    call = merge([encode(one, "u"), encode(other, "u", overrides=False)])
    answers = [limiter.decide(call) for _ in range(4)]
    assert [answer.allowed for answer in answers] == [True, True, False, False]
    assert limiter.check(other, "u").tiers[0].used == 3


def test_fallback_decides_what_was_merged_by_the_cost_of_each():
    limiter = RateLimiter(f"redis://127.0.0.1:{free_port()}", on_outage="local")
    requests, tokens = Policy("requests", Limit(9, 60)), Policy("tokens", Limit(1000, 60))
    call = merge([encode(requests, "u"), encode(tokens, "u", cost=400)])
    answers = [limiter.decide(call) for _ in range(4)]
    assert [answer.allowed for answer in answers] == [True, True, False, False]
    assert [tier.used for tier in answers[-1].tiers] == [2, 800]


@pytest.mark.parametrize("cost", [1, 3])
def test_merged_checks_are_all_or_nothing_each_with_its_own_override(cost):
    store = MemoryStore()
    limiter = RateLimiter(store)
    store.execute("HSET", "ratelimit_override:other:{u}", "max_requests", "4")
    one, other = Policy("one", Limit(9, 60)), Policy("other", Limit(50, 60))
    call = merge([encode(one, "u", cost=cost), encode(other, "u", cost=cost)])
    answers = [limiter.decide(call) for _ in range(6)]
    admitted = 4 // cost
    assert [answer.allowed for answer in answers] == [True] * admitted + [False] * (6 - admitted)
    assert [tier.used for tier in answers[-1].tiers] == [admitted * cost] * 2
    assert [tier.max_requests for tier in answers[-1].tiers] == [9, 4]


@pytest.mark.parametrize("kind", [RateLimiter, AsyncRateLimiter])
def test_limiters_that_differ_in_an_outage_only_share_a_store(kind):
    limiter = kind("redis://localhost", deadline=1, prefix="mine")
    other = limiter.with_on_outage("closed")
    assert (other.on_outage, other.prefix, other.deadline) == ("closed", "mine", 1)
    assert other.store is limiter.store
    assert limiter.with_on_outage("closed") is other
    assert limiter.with_on_outage(None) is limiter.with_on_outage("open") is limiter
