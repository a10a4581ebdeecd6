"""Refusals that are answered without the store."""

from __future__ import annotations

import pytest

from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter
from ratekit.admin.counters import delete_counters
from ratekit.core.protocol import Operation, encode, merge, only
from ratekit.limiter.refusal_cache import MOST_REFUSALS, RefusalCache
from ratekit.overrides import set_rate_limit_override

TWO = Policy("two", Limit(2, 60))
BOTH = merge([encode(TWO, "u"), encode(Policy("ten", Limit(10, 60)), "v")])


@pytest.fixture
def limiter(redis_server):
    with RateLimiter(redis_server.url, deadline=5, refusal_cache=True) as limiter:
        yield limiter


@pytest.fixture
def calls(redis_server):
    """How often the script has run since the last time."""
    with redis_server.client() as client:

        def count():
            number = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
            client.config_resetstat()
            return number

        yield count


def exhaust(limiter, policy=TWO, subject="u"):
    while not (result := limiter.check(policy, subject)).is_over_limit:
        pass
    return result


def test_flood_of_refused_requests_asks_the_store_once(limiter, calls):
    exhaust(limiter)
    calls()
    assert all(limiter.check(TWO, "u").is_over_limit for _ in range(100))
    assert calls() == 0


def test_refusal_is_asked_for_again_after_a_second(limiter, calls, ratekit_clock):
    first = exhaust(limiter)
    calls()
    ratekit_clock.advance(0.999)
    aged = limiter.check(TWO, "u")
    assert calls() == 0
    assert (first.retry_after, aged.retry_after, aged.reset_after) == (60, 59.001, 59.001)
    ratekit_clock.advance(0.001)
    assert limiter.check(TWO, "u").retry_after == 59
    assert calls() == 1


def test_refusal_is_forgotten_when_its_wait_is_over(limiter, ratekit_clock):
    fast = Policy("fast", Limit(2, 0.5))
    wait = exhaust(limiter, fast).retry_after
    ratekit_clock.advance(wait - 0.001)
    assert limiter.check(fast, "u").is_over_limit
    ratekit_clock.advance(0.001)
    assert limiter.check(fast, "u").allowed


def test_refusal_is_forgotten_when_an_override_changes(limiter):
    exhaust(limiter)
    set_rate_limit_override(limiter, endpoint="two", subject="u", max_requests=5)
    assert limiter.check(TWO, "u").allowed


@pytest.mark.parametrize("operation", ["refund", "reset"])
def test_refusal_is_forgotten_when_something_is_given_back(limiter, operation):
    exhaust(limiter)
    getattr(limiter, operation)(TWO, "u")
    assert limiter.check(TWO, "u").allowed


def _refund_by_another(limiter: RateLimiter) -> None:
    with RateLimiter(limiter.store) as other:
        other.refund(TWO, "u")


def _give_back_a_part(limiter: RateLimiter) -> None:
    limiter.give_back([only(BOTH, [0], Operation.REFUND)])


GIVING_BACK = {
    "another limiter": _refund_by_another,
    "a sibling": lambda limiter: limiter.with_on_outage("closed").refund(TWO, "u"),
    "without overrides": lambda limiter: limiter.refund(TWO, "u", overrides=False),
    "a part of a merged call": _give_back_a_part,
    "in a batch": lambda limiter: limiter.decide_in([encode(TWO, "u", operation=Operation.REFUND), encode(TWO, "other")], 1),
    "deleted": lambda limiter: delete_counters(limiter, endpoint="two", subject="u"),
}


@pytest.mark.parametrize("way", GIVING_BACK)
def test_refusal_is_forgotten_whoever_gives_back_and_how(limiter, way):
    sibling = limiter.with_on_outage("local")
    exhaust(limiter)
    assert sibling.check(TWO, "u").is_over_limit
    assert limiter.decide(BOTH).is_over_limit
    GIVING_BACK[way](limiter)
    assert limiter.peek(TWO, "u").allowed
    assert limiter.decide(BOTH).allowed
    limiter.refund(TWO, "u")
    assert limiter.check(TWO, "u").allowed
    limiter.refund(TWO, "u")
    assert sibling.check(TWO, "u").allowed


async def test_refusal_is_forgotten_when_an_async_limiter_gives_back(limiter, redis_server):
    exhaust(limiter)
    async with AsyncRateLimiter(redis_server.url, deadline=5) as other:
        await other.refund(TWO, "u")
    assert limiter.check(TWO, "u").allowed


def test_memory_is_bounded_when_refusals_share_a_counter():
    cache = RefusalCache(most=10)
    everybody = Policy("everybody", Limit(1, 60))
    for number in range(1000):
        call = merge([encode(TWO, f"u{number}"), encode(everybody, "*")])
        cache.learn(call, (0, 2, 2, 0, 60_000_000, 60_000_000) * 2)
        assert cache.find(call)
        cache.forget(call.state_keys[:1])
        assert not cache.find(call)
    assert cache._by_counter == {}


def test_refusal_is_nobody_elses(limiter):
    exhaust(limiter)
    assert limiter.check(TWO, "other").allowed
    assert limiter.check(TWO, "u", endpoint="elsewhere").allowed
    assert limiter.check(TWO, "u", cost=0).allowed
    assert limiter.check(Policy("two", Limit(3, 60)), "u").allowed
    assert limiter.peek(TWO, "u").retry_after


def test_refusal_by_chance_is_drawn_anew(limiter, calls):
    soft = Policy("soft", Limit(1000, 60, soft=0.01))
    limiter.charge(soft, "u", cost=900)
    calls()
    refused = sum(limiter.check(soft, "u").is_over_limit for _ in range(20))
    assert refused > 10
    assert calls() == 20


def test_refusals_are_bounded():
    cache = RefusalCache(most=10)
    for number in range(30):
        cache.learn(encode(TWO, f"u{number}"), (0, 2, 2, 0, 60_000_000, 60_000_000))
    assert len(cache) <= 10
    assert MOST_REFUSALS == 10_000
