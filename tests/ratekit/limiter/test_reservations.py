"""Reservations, shares, units, calendars and several identities by the limiters: every store, both colours."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from ratekit import (
    AsyncRateLimiter,
    Calendar,
    ConfigurationError,
    Limit,
    Policy,
    RateLimiter,
    RateLimitExceeded,
    RateLimitUnavailable,
)
from ratekit.core.events import Unsettled, on_decision, on_settlement, on_unsettled
from ratekit.stores.memory import MemoryStore

LLM = Policy("llm", ["60/min", Limit(1000, 60, unit="tokens"), Limit(2, 300, algorithm="concurrency")])
PLAIN = Policy("search", "10/min")
AWAY = "redis://127.0.0.1:1"


def in_block(limiter, body, *arguments, method="reserve", **options):
    """Run a function in the block of a reservation, in either colour."""
    block = getattr(limiter.limiter, method)(*arguments, **options)
    if isinstance(limiter.limiter, RateLimiter):
        with block as reservation:
            return body(reservation)

    async def run():
        async with block as reservation:
            return body(reservation)

    return limiter.finish(run())


def used(limiter, policy=LLM, subject="u"):
    cost = dict.fromkeys(policy.units, 0) if policy.units != ("requests",) else 0
    return [tier.used for tier in limiter.peek(policy, subject, cost=cost).tiers]


def test_estimate_is_spent_in_the_block_and_the_rest_returns_at_its_end(limiter):
    def body(reservation):
        reservation.settle(tokens=523)
        return reservation.estimate

    assert in_block(limiter, body, LLM, "u", estimate={"tokens": 800}) == {"requests": 1, "tokens": 800}
    assert used(limiter) == [1, 523, 0]


def test_actual_cost_above_the_estimate_is_charged_whatever_the_maximum(limiter):
    in_block(limiter, lambda r: r.settle(tokens=1800), LLM, "u", estimate={"tokens": 800})
    assert used(limiter) == [1, 1800, 0]
    with pytest.raises(RateLimitExceeded) as caught:
        in_block(limiter, lambda r: None, LLM, "u", estimate={"tokens": 1})
    assert caught.value.result.violated == ("tokens-60s",)


def test_block_that_ends_without_a_word_keeps_the_estimate_and_frees_its_slot(limiter):
    in_block(limiter, lambda r: None, LLM, "u", estimate={"tokens": 800})
    assert used(limiter) == [1, 800, 0]


def test_what_a_stream_has_added_is_its_cost(limiter):
    in_block(limiter, lambda r: [r.add(tokens=n) for n in (5, 7)], LLM, "u", estimate={"tokens": 800})
    assert used(limiter) == [1, 12, 0]


def raising(*steps):
    def body(reservation):
        for step in steps:
            step(reservation)
        raise ValueError("upstream")

    return body


def test_all_returns_when_the_block_raises(limiter):
    with pytest.raises(ValueError, match="upstream"):
        in_block(limiter, raising(), LLM, "u", estimate={"tokens": 800})
    assert used(limiter) == [0, 0, 0]


def test_what_was_added_stays_when_the_block_raises(limiter):
    with pytest.raises(ValueError, match="upstream"):
        in_block(limiter, raising(lambda r: r.add(tokens=12)), LLM, "u", estimate={"tokens": 800})
    assert used(limiter) == [1, 12, 0]


def test_estimate_stays_when_the_block_is_cancelled():
    async def main():
        limiter = AsyncRateLimiter(MemoryStore())

        async def work():
            async with limiter.reserve(PLAIN, "u", estimate=4):
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await limiter.peek(PLAIN, "u")).request_count

    assert asyncio.run(main()) == 4


def test_estimate_above_the_limit_never_fits_unless_it_is_clamped(limiter):
    with pytest.raises(RateLimitExceeded) as caught:
        in_block(limiter, lambda r: None, PLAIN, "u", estimate=30)
    assert caught.value.result.retry_after is None
    assert in_block(limiter, lambda r: r.estimate, PLAIN, "u", estimate=30, clamp=True) == 10
    assert used(limiter, PLAIN) == [10]
    assert in_block(limiter, lambda r: r.settle(4) or r.estimate, PLAIN, "v", estimate=30, clamp=True) == 10
    assert used(limiter, PLAIN, "v") == [4]


def test_reservation_travels_by_its_id_and_is_settled_once(limiter):
    reservation = limiter.reserve_now(LLM, "u", estimate={"tokens": 800})
    assert (reservation.allowed, reservation.estimate) == (True, {"requests": 1, "tokens": 800})
    settle = {"actual": {"tokens": 523}, "known": reservation.estimate}
    assert limiter.settle(LLM, "u", reservation.id, **settle).repeated is False
    assert limiter.settle(LLM, "u", reservation.id, **settle).repeated is True
    assert used(limiter) == [1, 523, 0]


def test_reserve_that_is_sent_again_spends_once(limiter):
    for _ in range(2):
        assert limiter.reserve_now(PLAIN, "u", estimate=3, reservation="abc1").allowed
    assert used(limiter, PLAIN) == [3]


def test_settle_that_overtakes_its_reserve_charges_the_actual_cost_once(limiter):
    limiter.settle(PLAIN, "u", "abc1", actual=2)
    assert limiter.reserve_now(PLAIN, "u", estimate=3, reservation="abc1").result.repeated
    assert used(limiter, PLAIN) == [2]


def test_settle_in_another_window_gives_nothing_back(limiter, ratekit_clock):
    reservation = limiter.reserve_now(PLAIN, "u", estimate=8)
    ratekit_clock.advance(61)
    limiter.charge(PLAIN, "u", cost=5)
    limiter.settle(PLAIN, "u", reservation.id, actual=0, known=8)
    assert used(limiter, PLAIN) == [5]


@pytest.mark.parametrize(
    "limit",
    [
        Limit(9, 3600),
        Limit(9, 3600, aligned=True),
        Limit(9, Calendar("day")),
        Limit(9, 3600, algorithm="token_bucket"),
        Limit(9, 3600, algorithm="sliding_window_counter"),
        Limit(9, 3600, algorithm="sliding_window_log"),
    ],
    ids=str,
)
def test_what_was_reserved_before_a_reset_gives_back_nothing_that_was_spent_since(limiter, ratekit_clock, limit):
    """Right logins that are under way when one of them forgets the failures must not return those that follow."""
    policy = Policy("logins", limit)
    ratekit_clock.advance(60)
    reserved = [limiter.reserve_now(policy, "u", estimate=1) for _ in range(4)]
    ratekit_clock.advance(0.01)
    limiter.reset(policy, "u")
    assert used(limiter, policy) == [0]
    for _ in range(3):
        limiter.check(policy, "u")
    for reservation in reserved:
        limiter.settle(policy, "u", reservation.id, actual=0, known=1)
    assert used(limiter, policy) == [3]
    limiter.reset(policy, "u")
    late = limiter.reserve_now(policy, "u", estimate=1)
    assert used(limiter, policy) == [1]
    limiter.settle(policy, "u", late.id, actual=0, known=1)
    assert used(limiter, policy) == [0]


def test_settle_after_hold_gives_nothing_back_and_charges_an_excess(ratekit_clock):
    limiter, policy = RateLimiter(MemoryStore()), Policy("q", "100/day")
    reservation = limiter.reserve_now(policy, "u", estimate=8, hold=10)
    ratekit_clock.advance(3600)
    assert limiter.settle(policy, "u", reservation.id, actual=2, known=8, hold=10).request_count == 8
    other = limiter.reserve_now(policy, "u", estimate=8, hold=10)
    ratekit_clock.advance(3600)
    for _ in range(2):
        assert limiter.settle(policy, "u", other.id, actual=9, known=8, hold=10).request_count == 17


@pytest.mark.parametrize("changed", ["9/min", "9/s; 10/min", "9/s; 10/min; 99/h", "9/s burst 20; 10/min"])
@pytest.mark.parametrize("before", ["10/min", "10/min; 20/h", "10/min; 20/h; 30/day", "10/min; 20/h burst 30"])
def test_policy_with_other_limits_at_the_settle_gives_nothing_back_and_charges_an_excess(limiter, before, changed):
    old, new = Policy("jobs", before), Policy("jobs", changed)
    reservation = limiter.reserve_now(old, "org:7", estimate=5)
    settled = limiter.settle(new, "org:7", reservation.id, actual=7, known=5)
    if before.count(";") != changed.count(";"):
        minute = next(tier for tier in settled.tiers if tier.name == "60s")
        assert minute.used == 7
    assert limiter.settle(new, "org:7", reservation.id, actual=7, known=5).repeated


def test_policy_with_other_units_at_the_settle_charges_what_is_known_to_be_new(limiter):
    old, new = Policy("llm", ["60/min", "1000 tokens/min"]), Policy("llm", ["60/min", "1000 tokens/min", "9 pages/min"])
    reservation = limiter.reserve_now(old, "org:7", estimate={"tokens": 800})
    known = {"requests": 1, "tokens": 800, "pages": 0}
    settled = limiter.settle(new, "org:7", reservation.id, actual={"tokens": 900, "pages": 2}, known=known)
    assert [tier.used for tier in settled.tiers] == [1, 900, 2]


def test_unlimited_subject_spends_nothing_and_a_shadow_is_settled_like_the_others(limiter):
    policy = Policy("search", [Limit(10, 60, name="one"), Limit(10, 60, name="two", shadow=True)])
    limiter.override("search", "vip", one__unlimited=1)
    for subject, expected in (("vip", [0, 3]), ("u", [3, 3])):
        in_block(limiter, lambda r: r.settle(3), policy, subject, estimate=8)
        assert used(limiter, policy, subject) == expected


@pytest.mark.parametrize("colour", ["sync"])
@pytest.mark.parametrize("store_name", ["memory"])
def test_nonsense_is_refused_by_name(limiter):
    def in_reservation(step):
        return lambda: in_block(limiter, step, LLM, "u", estimate={"tokens": 1})

    cases = {
        "unit 'bytes' of actual is unknown: the limits count requests, tokens": in_reservation(lambda r: r.settle(bytes=1)),
        "actual -1 of tokens is not a whole number": in_reservation(lambda r: r.settle(tokens=-1)),
        "amount 1.5 of tokens is not a whole number": in_reservation(lambda r: r.add(tokens=1.5)),
        "actual 1 cannot be taken note of: what reserve_now has reserved is settled by the limiter": lambda: (
            limiter.reserve_now(PLAIN, "u").settle(1)
        ),
        "actual 1 cannot be taken note of: it was settled when its block ended": lambda: in_block(
            limiter, lambda r: r, PLAIN, "u"
        ).settle(1),
        "actual 5 says no unit, and the limits count tokens, bytes": lambda: in_block(
            limiter,
            lambda r: r.settle(5),
            Policy("two", [Limit(9, 60, unit="tokens"), Limit(9, 60, unit="bytes")]),
            "u",
            estimate={"tokens": 1, "bytes": 1},
        ),
        "hold 0 is not a number of seconds": lambda: limiter.reserve_now(PLAIN, "u", hold=0),
        "share 1.5 is not a fraction": lambda: limiter.check(PLAIN, "u", share=1.5),
        "id 'a b' of a reservation is not": lambda: limiter.settle(PLAIN, "u", "a b", actual=1),
        "estimate 'many' is not a whole number": lambda: limiter.reserve_now(PLAIN, "u", estimate="many"),
        "known -1 is not a whole number": lambda: limiter.settle(PLAIN, "u", "abc", actual=1, known=-1),
        "check ('x',) is not a policy and a subject": lambda: limiter.check_all([("x",)]),
        "checks are empty": lambda: limiter.check_all([]),
        "is a concurrency limit: use slot()": lambda: limiter.check_all([(LLM, "u", {"tokens": 1})]),
        "cost 1 says no unit": lambda: limiter.check_all([(LLM, "u")]),
    }
    for message, ask in cases.items():
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            ask()


def test_threads_that_work_for_one_request_add_to_one_sum():
    """Without a lock, a quarter of it was lost."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with RateLimiter(MemoryStore()) as limiter, limiter.reserve(LLM, "u", estimate={"tokens": 1}) as reservation:
            with ThreadPoolExecutor(8) as threads:
                for _ in range(8):
                    threads.submit(lambda: [reservation.add(tokens=1) for _ in range(5000)])
            assert reservation.costs == (1, 40_000)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("method", ["reserve", "reserve_now", "reserve_all", "check_all"])
async def test_cancelled_reservation_is_cancelled_even_if_the_store_cannot_take_it_back(redis_server, method):
    """asyncio.timeout and task groups have to see their own cancellation, and no RateLimitUnavailable in its place."""
    limiter = AsyncRateLimiter(redis_server.url, deadline=0.1, on_outage="closed")
    await limiter.check(PLAIN, "u")

    async def ask() -> None:
        if method.endswith("all"):
            checks = [(PLAIN, "u"), (PLAIN, "v")]
            await (limiter.check_all(checks) if method == "check_all" else entered(limiter.reserve_all(checks)))
        else:
            await (limiter.reserve_now(PLAIN, "u") if method == "reserve_now" else entered(limiter.reserve(PLAIN, "u")))

    os.kill(redis_server.process.pid, signal.SIGSTOP)
    try:
        task = asyncio.create_task(ask())
        await asyncio.sleep(0.02)  # the reserve is sent, and not answered
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        os.kill(redis_server.process.pid, signal.SIGCONT)
    await limiter.aclose()


async def entered(block) -> None:
    async with block:
        pytest.fail("it was reserved")


def test_take_says_how_much_was_there(limiter):
    assert limiter.take(PLAIN, "u", cost=4).taken == 4
    result = limiter.take(PLAIN, "u", cost=40)
    assert (result.allowed, result.taken, result.remaining) == (True, 6, 0)
    assert limiter.take(PLAIN, "u", cost=40).is_over_limit
    tokens = Policy("llm", ["60/min", Limit(1000, 60, unit="tokens")])
    assert limiter.take(tokens, "u", cost={"tokens": 5000}).taken == {"requests": 1, "tokens": 1000}


def test_take_says_what_passes_when_the_store_is_away(ratekit_clock):
    """A job that takes as much as fits gets a number, whatever happens."""
    tokens = Policy("llm", ["60/min", Limit(1000, 60, unit="tokens")])
    with RateLimiter(AWAY) as limiter:
        assert limiter.take(PLAIN, "u", cost=40).taken == 40
        assert limiter.take(tokens, "u", cost={"tokens": 5000}).taken == {"requests": 1, "tokens": 5000}
    with RateLimiter(AWAY, on_outage="local") as limiter:
        assert [limiter.take(PLAIN, "u", cost=7).taken for _ in range(3)] == [7, 3, 0]


def test_share_keeps_room_for_others(limiter):
    results = [limiter.check(PLAIN, "u", share=0.5).allowed for _ in range(6)]
    assert results == [True] * 5 + [False]
    assert limiter.check(PLAIN, "u").remaining == 4


def test_anchor_of_a_subject_decides_when_its_month_ends(limiter, ratekit_clock):
    ratekit_clock.set(datetime(2027, 2, 3, tzinfo=UTC).timestamp())
    quota = Policy("quota", Limit(100, Calendar("month", tz="UTC")))
    assert limiter.check(quota, "a").reset_after == 26 * 86400
    assert limiter.check(quota, "b", anchor=datetime(2024, 1, 5, 12, tzinfo=UTC)).reset_after == 2.5 * 86400
    assert limiter.check(quota, "c", anchor=31).reset_after == 25 * 86400


EVERYONE, BY_IP, BY_USER = Policy("everyone", "100/min"), Policy("by_ip", "10/min"), Policy("by_user", "4/min")


def test_several_identities_are_decided_together(limiter):
    checks = [(EVERYONE, "*"), (BY_IP, "ip:1"), (BY_USER, "user:42", 2)]
    result = limiter.check_all(checks)
    assert [(tier.policy, tier.subject, tier.used) for tier in result.tiers] == [
        ("everyone", "*", 1),
        ("by_ip", "ip:1", 1),
        ("by_user", "user:42", 2),
    ]
    assert limiter.check_all(checks).allowed
    assert limiter.check_all(checks).violated == ("60s",)
    assert [tier.used for tier in limiter.peek_all(checks).tiers] == [2, 2, 4]
    limiter.charge_all(checks)
    assert [tier.used for tier in limiter.peek_all(checks).tiers] == [3, 3, 6]


def test_several_identities_are_reserved_and_settled_together(limiter):
    checks = [(EVERYONE, "*"), (BY_IP, "ip:1"), (BY_USER, "user:42")]
    in_block(limiter, lambda r: r.settle(0), checks, method="reserve_all")
    assert [tier.used for tier in limiter.peek_all(checks).tiers] == [0, 0, 0]
    in_block(limiter, lambda r: None, checks, method="reserve_all")
    assert [tier.used for tier in limiter.peek_all(checks).tiers] == [1, 1, 1]


@pytest.mark.parametrize(("on_outage", "raises"), [("open", False), ("local", False), ("closed", True)])
def test_reservation_follows_on_outage_when_the_store_is_away(on_outage, raises, caplog):
    unsettled: list[Unsettled] = []
    remove = on_unsettled(unsettled.append)
    try:
        follow_on_outage(on_outage, raises)
    finally:
        remove()
    assert len(unsettled) == (1 if on_outage == "open" else 0)  # a local share tells the store when it is back
    assert ("a reservation is not settled" in caplog.text) is (on_outage == "open")


def follow_on_outage(on_outage, raises):
    with RateLimiter(AWAY, on_outage=on_outage) as limiter:
        if raises:
            with pytest.raises(RateLimitUnavailable):
                limiter.reserve_now(PLAIN, "u")
            return
        with limiter.reserve(PLAIN, "u", estimate=8) as reservation:
            assert reservation.result.degraded is not None
            assert reservation.estimate == 0
            reservation.settle(5)
        if on_outage == "local":
            assert limiter.peek(PLAIN, "u").request_count == 5
            assert limiter.reserve_now(PLAIN, "u", estimate=6).is_over_limit


def test_what_was_reserved_while_the_store_was_away_is_charged_when_it_is_back():
    """The store that is back does not know the reservation: its actual cost is charged, once."""
    store = MemoryStore()
    with RateLimiter(AWAY) as away, RateLimiter(store) as back:
        reservation = away.reserve_now(PLAIN, "u", estimate=8)
        for _ in range(2):
            back.settle(PLAIN, "u", reservation.id, actual=5, known=reservation.estimate)
        assert back.peek(PLAIN, "u").request_count == 5


def test_listeners_are_told_of_a_reserve_as_a_decision_and_of_its_settle():
    decisions, settlements = [], []
    removers = [on_decision(decisions.append), on_settlement(settlements.append)]
    try:
        limiter = RateLimiter(MemoryStore())
        with limiter.reserve(LLM, "u", estimate={"tokens": 800}) as reservation:
            reservation.settle(tokens=523)
    finally:
        for remove in removers:
            remove()
    assert [(decision.endpoint, decision.subject, str(decision.outcome)) for decision in decisions] == [
        ("llm", "u", "allowed")
    ]
    (settlement,) = settlements
    assert (settlement.units, settlement.estimate, settlement.actual) == (("requests", "tokens"), (1, 800), (1, 523))


def test_settle_makes_a_remembered_refusal_forgotten():
    limiter = RateLimiter(MemoryStore(), refusal_cache=True)
    reservation = limiter.reserve_now(PLAIN, "u", estimate=10)
    assert limiter.check(PLAIN, "u").is_over_limit
    limiter.settle(PLAIN, "u", reservation.id, actual=0, known=10)
    assert limiter.check(PLAIN, "u").allowed


@pytest.mark.parametrize("method", ["reserve", "reserve_all"])
async def test_reservation_that_is_cancelled_while_it_is_made_leaves_no_slot_and_no_estimate(redis_server, method):
    limiter = AsyncRateLimiter(redis_server.url, deadline=5)
    many = Policy("jobs", [Limit(10**6, 600, unit="tokens"), Limit(1000, 600, algorithm="concurrency")])

    async def hold() -> None:
        checks = [(many, "u", {"tokens": 10}), (PLAIN, "v")]
        block = limiter.reserve(many, "u", estimate={"tokens": 10}) if method == "reserve" else limiter.reserve_all(checks)
        async with block as reservation:
            reservation.settle(tokens=0, requests=0)
            await asyncio.sleep(60)

    await limiter.peek(many, "u", cost={"tokens": 1})
    for turns in range(60):
        task = asyncio.create_task(hold())
        for _ in range(turns % 12):
            await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # what was shielded ends
    assert [tier.used for tier in (await limiter.peek(many, "u", cost={"tokens": 1})).tiers] == [0, 0]
    assert (await limiter.peek(PLAIN, "v")).request_count == 0
    await limiter.aclose()
