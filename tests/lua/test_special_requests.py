"""What few requests bring: a share of each capacity, a cost that may shrink, a calendar; and overrides with an end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from lua.engines import START, Bench

from ratekit import Algorithm, Calendar, Limit, Policy
from ratekit.core.figures import STALE
from ratekit.core.keys import wide_override_key
from ratekit.core.protocol import Extra, Operation, encode

WINDOWED = [algorithm for algorithm in Algorithm if algorithm is not Algorithm.CONCURRENCY]


def decide(bench: Bench, policy: Policy, cost=1, operation=Operation.CHECK, **options):
    return bench.limiter.decide(encode(policy, bench.subject, operation=operation, cost=cost, **options))


def set_wide(bench: Bench, **fields: object) -> None:
    bench.command("HSET", wide_override_key("ratelimit", bench.subject), *(str(x) for pair in fields.items() for x in pair))


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_share_leaves_room_for_those_who_see_all_of_the_capacity(bench: Bench, clock, algorithm):
    policy = Policy("search", Limit(10, 100, algorithm=algorithm))
    low = Extra(share=0.8)
    assert [decide(bench, policy, extra=low).allowed for _ in range(9)] == [True] * 8 + [False]
    refused = decide(bench, policy, extra=low)
    assert (refused.max_requests, refused.request_count, refused.remaining) == (8, 8, 0)
    assert decide(bench, policy).remaining == 1
    assert decide(bench, policy).remaining == 0
    wait = decide(bench, policy, extra=low).retry_after
    clock.advance(wait - 0.001)
    assert not decide(bench, policy, extra=low, operation=Operation.PEEK).allowed
    clock.advance(0.001)
    assert decide(bench, policy, extra=low).allowed


def test_share_of_a_small_capacity_is_at_least_one(bench: Bench):
    policy = Policy("search", Limit(1, 60))
    assert decide(bench, policy, extra=Extra(share=0.01)).max_requests == 1


def test_share_of_slots_keeps_slots_free(bench: Bench):
    policy = Policy("search", Limit(4, 60, algorithm="concurrency"))
    low = Extra(share=0.5)
    taken = [decide(bench, policy, operation=Operation.ACQUIRE, slot=f"{n}", extra=low).allowed for n in range(3)]
    assert taken == [True, True, False]
    assert decide(bench, policy, operation=Operation.ACQUIRE, slot="9").allowed


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_take_spends_as_much_as_fits_in_every_limit(bench: Bench, algorithm):
    policy = Policy("search", [Limit(10, 60, algorithm=algorithm, name="one"), Limit(7, 60, name="two")])
    assert decide(bench, policy, 3, Operation.TAKE).taken == 3
    result = decide(bench, policy, 30, Operation.TAKE)
    assert (result.taken, [tier.used for tier in result.tiers]) == (4, [7, 7])
    refused = decide(bench, policy, 30, Operation.TAKE)
    assert (refused.taken, refused.allowed) == (0, False)


def test_take_by_units_shrinks_each_unit_by_its_own_limits(bench: Bench):
    policy = Policy("search", ["60/min", Limit(100, 60, unit="tokens")])
    assert decide(bench, policy, {"tokens": 800}, Operation.TAKE).taken == {"requests": 1, "tokens": 100}


def test_until_refuses_everything_with_the_honest_wait_and_is_forgotten_after(bench: Bench, clock):
    policy = Policy("search", [Limit(5, 60), Limit(50, 3600)])
    bench.override({"until": f"{START + 30:.6f}", "max_requests": "0"})
    for cost in (0, 1):
        refused = decide(bench, policy, cost)
        assert (refused.allowed, refused.retry_after, refused.overridden) == (False, 30.0, True)
        assert (refused.tiers[0].reset_after, refused.tiers[1].reset_after) == (30.0, 0.0)
    clock.advance(29.999999)
    assert decide(bench, policy).retry_after == pytest.approx(0.000001)
    clock.advance(0.000001)
    assert decide(bench, policy).tiers[0].remaining == 4


def test_until_does_not_shorten_the_wait_of_an_exhausted_limit(bench: Bench):
    policy = Policy("search", Limit(1, 60))
    decide(bench, policy)
    bench.override({"until": f"{START + 5:.6f}"})
    assert decide(bench, policy).retry_after == 60
    assert decide(bench, policy, 2).retry_after is None


def test_override_for_all_endpoints_applies_where_the_exact_one_says_nothing_of_a_limit(bench: Bench):
    policy = Policy("search", [Limit(5, 60, name="minute"), Limit(50, 3600, name="hour")])
    set_wide(bench, max_requests=9, **{"hour.max_requests": 90})
    assert [tier.max_requests for tier in decide(bench, policy).tiers] == [9, 90]
    bench.override({"hour.max_requests": "70"})
    assert [tier.max_requests for tier in decide(bench, policy).tiers] == [9, 70]
    bench.override({"unlimited": "1"})
    assert [tier.unlimited for tier in decide(bench, policy).tiers] == [True, False]
    assert decide(bench, policy).tiers[1].max_requests == 90
    bench.override({"max_requests": "2"})
    assert [tier.max_requests for tier in decide(bench, policy).tiers] == [2, 90]


def test_until_of_all_endpoints_applies_beside_an_exact_override(bench: Bench):
    policy = Policy("search", Limit(5, 60))
    set_wide(bench, until=START + 30)
    bench.override({"max_requests": "9"})
    assert decide(bench, policy).retry_after == 30


def test_override_for_all_endpoints_that_is_no_hash_is_told(bench: Bench):
    bench.command("ZADD", wide_override_key("ratelimit", bench.subject), 1, "x")
    assert decide(bench, Policy("search", Limit(5, 60))).tiers[0].unreadable


@pytest.mark.parametrize("path", ["fast", "general"])
def test_window_of_a_calendar_ends_at_its_boundary(bench: Bench, clock, path):
    clock.set(datetime(2027, 2, 27, 22, tzinfo=UTC).timestamp())
    soft = 0.9 if path == "general" else None
    policy = Policy("quota", Limit(10, Calendar("month", tz="UTC"), soft=soft))
    result = decide(bench, policy, 3)
    assert (result.allowed, result.remaining, result.reset_after) == (True, 7, 26 * 3600)
    clock.advance(26 * 3600 - 1)
    assert decide(bench, policy, 8).retry_after == 1
    clock.advance(1)
    assert (decide(bench, policy, 8).remaining, decide(bench, policy, 0).reset_after) == (2, 31 * 86400)


def test_processes_whose_clocks_are_a_period_apart_share_one_window(bench: Bench, clock):
    """Only the server's clock picks: boundaries that a wrong clock has made contain the right one."""
    calendar = Calendar("day", tz="Europe/Berlin")
    right = datetime(2027, 3, 27, 12, tzinfo=UTC).timestamp()
    plans = []
    for skew in (0, -86400, 86400, -2 * 86400):
        clock.set(right + skew)
        plans.append(encode(Policy("quota", Limit(100, calendar)), bench.subject))
    clock.set(right)
    results = [bench.limiter.decide(plan) for plan in plans]
    assert [result.request_count for result in results] == [1, 2, 3, 4]
    assert {result.reset_after for result in results} == {11 * 3600}


def test_boundaries_that_are_all_past_are_told_and_made_anew(bench: Bench, clock):
    policy = Policy("quota", Limit(100, Calendar("day", tz="UTC")))
    clock.set(datetime(2027, 3, 1, tzinfo=UTC).timestamp())
    call = encode(policy, bench.subject)
    now = datetime(2027, 3, 9, 12, tzinfo=UTC)
    clock.set(now.timestamp())
    result = bench.limiter.decide(call)
    assert (result.figures[0] & STALE, result.reset_after) == (STALE, 12 * 3600)
    clock.set(datetime(2027, 3, 1, tzinfo=UTC).timestamp())  # this process's clock is wrong, and it knows that now
    later = encode(policy, bench.subject)
    assert later.compiled.rows[0].boundaries > call.compiled.rows[0].boundaries


def test_override_of_the_window_replaces_a_calendar(bench: Bench, clock):
    clock.set(datetime(2027, 2, 27, 22, tzinfo=UTC).timestamp())
    bench.override({"expiry": "10"})
    policy = Policy("search", Limit(10, Calendar("month", tz="UTC")))
    assert decide(bench, policy).reset_after == 10


def test_calendar_goes_on_with_its_boundaries_after_the_clock_was_set_back(bench: Bench, clock):
    policy = Policy("quota", Limit(10, Calendar("day", tz="UTC")))
    clock.set(datetime(2027, 3, 9, 12, tzinfo=UTC).timestamp())
    decide(bench, policy, 3)
    clock.set(datetime(2027, 3, 6, 12, tzinfo=UTC).timestamp())
    result = bench.limiter.decide(encode(policy, bench.subject))
    assert (result.request_count, result.reset_after <= 3 * 86400) == (4, True)
