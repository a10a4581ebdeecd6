"""Independent calls in one go: each decides for itself, in order, in few round trips."""

from __future__ import annotations

import pytest

from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.core.events import on_decision
from ratekit.core.protocol import encode
from support.servers import free_port

POLICY = Policy("many", Limit(3, 60))


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
