"""Independent calls in one go: each decides for itself, in order, in few round trips."""

from __future__ import annotations

import asyncio

import pytest

from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.core.events import on_decision
from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import encode
from support.servers import free_port

POLICY = Policy("many", Limit(3, 60))
ON = RateLimitMode.ON


def calls(*subjects: str):
    return [encode(POLICY, subject) for subject in subjects]


async def decided(url: str, *subjects: str, **options):
    limiter = AsyncRateLimiter(url, **options)
    answers = await limiter.decide_many(calls(*subjects))
    await limiter.aclose()
    return answers


async def test_each_call_decides_for_itself_in_order(redis_server):
    for url in ("memory://many", redis_server.url):
        answers = await decided(url, *["a"] * 5, "b")
        assert [answer.allowed for answer in answers] == [True, True, True, False, False, True]
    with RateLimiter(redis_server.url, prefix="other") as limiter:
        batch = [encode(POLICY, "a", prefix="other") for _ in range(4)]
        assert [answer.allowed for answer in limiter.decide_many(batch)] == [True, True, True, False]


@pytest.mark.parametrize("on_outage", ["open", "closed", "local"])
async def test_each_call_follows_on_outage_when_the_store_is_away(on_outage):
    answers = await decided(f"redis://127.0.0.1:{free_port()}", *["a"] * 5, on_outage=on_outage)
    if on_outage == "closed":
        assert all(isinstance(answer, RateLimitUnavailable) for answer in answers)
    else:
        assert all(answer.degraded for answer in answers)
        assert [answer.allowed for answer in answers] == [True] * 3 + [on_outage == "open"] * 2


async def test_fault_stays_with_its_call(redis_server):
    with redis_server.client() as client:
        client.set("ratelimit:many:{bad}:60s", "x")
    answers = await decided(redis_server.url, "good", "bad", "good")
    assert [bool(answer.degraded) for answer in answers] == [False, True, False]


async def test_listeners_are_told_of_each(redis_server):
    told = []
    remove = on_decision(lambda decision: told.append(decision.outcome))
    await decided(redis_server.url, *["a"] * 4)
    remove()
    assert told == ["allowed"] * 3 + ["denied"]


async def test_batch_that_finds_nothing_in_flight_is_one_round_trip(redis_server):
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        await limiter.check(POLICY, "warm")
        client = await limiter.store.client()
        await client.config_resetstat()
        await limiter.decide_many([encode(POLICY, f"user:{number}") for number in range(20)])
        assert (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] == 1


async def test_batch_that_is_cancelled_before_it_is_sent_charges_nothing(redis_server):
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        await limiter.check(POLICY, "warm")
        first = asyncio.ensure_future(limiter.check(POLICY, "warm"))  # the batch has to wait for its reply
        batch = asyncio.ensure_future(limiter.decide_many([encode(POLICY, "u")] * 5))
        await asyncio.sleep(0)
        batch.cancel()
        await first
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert (await limiter.peek(POLICY, "u")).request_count == 0


async def test_result_is_passed_on_where_it_arrives_and_what_that_raises_is_the_callers(redis_server):
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        call = encode(POLICY, "u")
        counts = await asyncio.gather(
            *(limiter.decide_then(call, ON, lambda result: result.request_count) for _ in range(3))
        )
        assert counts == [1, 2, 3]

        def fail(_result):
            raise LookupError("mine")

        failing, fine = await asyncio.gather(
            limiter.decide_then(call, ON, fail), limiter.decide_then(call, ON, str), return_exceptions=True
        )
        assert isinstance(failing, LookupError)
        assert isinstance(fine, str)


@pytest.mark.parametrize("on_outage", ["open", "local"])
async def test_result_without_the_store_is_passed_on_as_well(on_outage):
    async with AsyncRateLimiter(f"redis://127.0.0.1:{free_port()}", on_outage=on_outage) as limiter:
        assert await limiter.decide_then(encode(POLICY, "u"), ON, lambda result: result.degraded)
    async with AsyncRateLimiter(f"redis://127.0.0.1:{free_port()}", on_outage="closed") as limiter:
        with pytest.raises(RateLimitUnavailable):
            await limiter.decide_then(encode(POLICY, "u"), ON, str)
