"""The script against models in exact arithmetic, and properties that hold whatever comes; in the process and in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lua.agreement import assert_same
from lua.engines import ENDPOINT, START, Bench, Engine, as_not_plain
from lua.histories import (
    COSTS,
    HOLDING,
    LONGEST_WAIT,
    SPENDING,
    WINDOWED,
    Step,
    histories,
    limits,
    overrides,
    policies,
    replay,
    spend,
)
from lua.models import SECOND_US, PolicyModel, Request

from ratekit import Algorithm, Limit, Policy, RateLimitResult
from ratekit.core.protocol import Call, encode
from ratekit.testing import VirtualClock, assert_admits


def assert_agrees(engine: Engine, clock: VirtualClock, policy: Policy, steps: Sequence[Step]) -> None:
    model, override = PolicyModel([policy.limits], forgets=engine.is_local), {}
    for step, result in zip(steps, replay(engine.open(), clock, policy, steps), strict=True):
        override = override if step.override is None else step.override
        answers = model.decide(clock.now_us, step.request, [override])
        assume(not model.is_close_call)
        for answer, tier in zip(answers, result.tiers, strict=True):
            assert_same(answer, tier, step.request)


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_store_agrees_with_the_model_whatever_is_spent_from_one_limit(engine, clock, algorithm):
    """Whatever is sent to one limit, and whatever override comes and goes, the store answers what the model says."""

    @engine.examples(180)
    @given(policies(engine, [algorithm], most=1), histories(SPENDING, overrides(engine)))
    def check(policy, steps):
        assert_agrees(engine, clock, policy, steps)

    check()


def test_store_agrees_with_the_model_whatever_is_spent_from_several_limits(engine, clock):
    """Limits of a policy are decided all or nothing, shadows aside, by the same numbers as one by one."""

    @engine.examples(180)
    @given(policies(engine, WINDOWED), histories(SPENDING, overrides(engine)))
    def check(policy, steps):
        assert_agrees(engine, clock, policy, steps)

    check()


def test_store_agrees_with_the_model_whatever_slots_are_taken(engine, clock):
    """Slots are taken, kept and freed as the model says, beside limits that count requests."""

    @engine.examples(180)
    @given(
        limits(engine, Algorithm.CONCURRENCY),
        policies(engine, [*WINDOWED, Algorithm.CONCURRENCY], most=2),
        st.integers(0, 2),
        histories(HOLDING, overrides(engine)),
    )
    def check(slots, others, position, steps):
        tiers = list(others.limits)
        tiers[position:position] = [slots]
        assert_agrees(engine, clock, Policy(ENDPOINT, tiers), steps)

    check()


def test_peek_agrees_with_the_check_that_follows(engine, clock):
    """A peek says what the check that follows answers, but for what that spends."""

    @engine.examples(150)
    @given(policies(engine, WINDOWED), histories(SPENDING, overrides(engine), most=8), COSTS)
    def check(policy, steps, cost):
        bench = engine.open()
        spend(bench, clock, policy, steps)
        peeked, checked = (bench.send(policy, Request(operation, cost)) for operation in ("peek", "check"))
        for before, after in zip(peeked.tiers, checked.tiers, strict=True):
            spent = cost if checked.allowed and before.allowed and not before.unlimited else 0
            assert (before.allowed, before.max_requests) == (after.allowed, after.max_requests)
            assert (before.retry_after, before.used + spent) == (after.retry_after, after.used)
            assert spent or after == before

    check()


def test_denial_changes_no_state(engine, clock):
    """A refused request leaves every key as it was, and makes none."""

    @engine.examples(180)
    @given(policies(engine, WINDOWED), histories(SPENDING, overrides(engine), most=8), COSTS)
    def check(policy, steps, cost):
        bench = engine.open()
        spend(bench, clock, policy, steps)
        before = bench.dump(policy)
        assume(not bench.send(policy, Request("check", cost)).allowed)
        assert bench.dump(policy) == before

    check()


def test_charge_and_refund_move_what_they_say(engine, clock):
    """A charge adds its amount to each limit whatever the maximum, and a refund of the same amount takes it off again."""

    @engine.examples(150)
    @given(policies(engine, WINDOWED), histories(SPENDING, most=8), COSTS)
    def check(policy, steps, cost):
        bench = engine.open()
        spend(bench, clock, policy, steps)
        before, charged, refunded, emptied = (
            [tier.used for tier in bench.send(policy, Request(operation, amount)).tiers]
            for operation, amount in (("peek", 0), ("charge", cost), ("refund", cost), ("refund", 10**12))
        )
        assert charged == [used + cost for used in before]
        assert refunded == before
        assert emptied == [max(used - 10**12, 0) for used in before]

    check()


@pytest.mark.parametrize("has_slots", [False, True])
def test_answer_has_the_figures_that_a_peek_gives_right_after(engine, clock, has_slots):
    """What is used and when it resets is said as it is after the request, also when something was given back."""
    algorithms = [*WINDOWED, Algorithm.CONCURRENCY] if has_slots else WINDOWED

    @engine.examples(150)
    @given(policies(engine, algorithms), histories(HOLDING if has_slots else SPENDING, overrides(engine), most=8))
    def check(policy, steps):
        assume(policy.has_slots == has_slots)
        bench = engine.open()
        for result in replay(bench, clock, policy, steps):
            assert figures(result) == figures(bench.send(policy, Request("peek", cost=0)))

    check()


def figures(result: RateLimitResult) -> list[tuple[float, ...]]:
    return [(tier.max_requests, tier.used, tier.remaining, tier.reset_after) for tier in result.tiers]


def longest_ttl_us(limit: Limit, used: int) -> float:
    """How long the key of a limit may live: as long as its state matters, and a second."""
    if limit.algorithm is Algorithm.TOKEN_BUCKET:
        return (used + 1) * limit.window_us / limit.max_requests + SECOND_US
    return limit.window_us * (2 if limit.algorithm is Algorithm.SLIDING_WINDOW_COUNTER else 1) + SECOND_US


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_key_expires_when_its_state_does_not_matter_any_more(engine, clock, algorithm):
    """Every key has a time to live, greater than zero and no longer than its state can matter."""
    requests = HOLDING if algorithm is Algorithm.CONCURRENCY else SPENDING

    @engine.examples(100)
    @given(limits(engine, algorithm), histories(requests))
    def check(limit, steps):
        bench, policy, most = engine.open(), Policy(ENDPOINT, limit), 0
        for result in replay(bench, clock, policy, steps):
            most = max(most, result.tiers[0].used)
            for key in bench.keys(policy):
                assert 0 < bench.command("PTTL", key) <= longest_ttl_us(limit, most) / 1000 + 1

    check()


@pytest.mark.parametrize("most", [1, 3])
def test_retry_after_is_honest_to_the_millisecond(engine, clock, most):
    """At the instant that a refusal names the request passes, and a millisecond earlier it does not."""

    @engine.examples(180)
    @given(policies(engine, WINDOWED, most=most, shadow=False), overrides(engine), histories(SPENDING), COSTS)
    def check(policy, override, steps, more):
        bench = engine.open()
        bench.override(override)
        spend(bench, clock, policy, [*steps, Step("now", 0, None, Request("check"))])
        tier = bench.send(policy, Request("peek")).tiers[-1]
        cost = min(tier.remaining + more, tier.max_requests)
        refused = bench.send(policy, Request("check", cost))
        assume(refused.retry_after and 0.001 <= refused.retry_after < LONGEST_WAIT)
        clock.advance(refused.retry_after - 0.001)
        assert not bench.send(policy, Request("peek", cost)).allowed
        clock.advance(0.001)
        assert bench.send(policy, Request("check", cost)).allowed

    check()


def test_no_rolling_window_of_a_log_holds_more_than_the_maximum(engine, clock):
    """Wherever a window is laid over what a sliding_window_log has admitted, it holds no more than the maximum."""
    requests = st.builds(Request, st.just("check"), COSTS)

    @engine.examples(150)
    @given(limits(engine, Algorithm.SLIDING_WINDOW_LOG), histories(requests, most=25))
    def check(limit, steps):
        admitted = []
        for step, result in zip(steps, replay(engine.open(), clock, Policy(ENDPOINT, limit), steps), strict=True):
            admitted += [(clock.now_us, step.request.cost)] if result.allowed else []
            window = [cost for at_us, cost in admitted if at_us > clock.now_us - limit.window_us]
            assert sum(window) <= limit.max_requests

    check()


def longest_wait(limit: Limit) -> float:
    """How long a request of cost 1 may have to wait; a full window of a counter has to end, and then to fade."""
    if limit.algorithm is Algorithm.TOKEN_BUCKET:
        return limit.window * limit.capacity / limit.max_requests
    return limit.window * (1 + 1 / limit.max_requests * (limit.algorithm is Algorithm.SLIDING_WINDOW_COUNTER))


@pytest.mark.parametrize("algorithm", Algorithm)
def test_clock_set_back_locks_nobody_out_for_the_hour(engine, clock, algorithm):
    """An hour that the clock is set back costs nobody more than the limit's longest wait, refusals in between or not."""
    has_slots = algorithm is Algorithm.CONCURRENCY

    @engine.examples(100)
    @given(limits(engine, algorithm), st.integers(0, 3), st.integers(1, 3), st.sampled_from([0, 1, 600]))
    def check(limit, spare, refusals, pause):
        assume(spare < limit.capacity < 1000)
        bench, policy, used = engine.open(), Policy(ENDPOINT, limit), limit.capacity - spare
        take = (Request("acquire", slot=str(number)) for number in range(limit.capacity + refusals))
        requests = take if has_slots else iter([Request("check", used)] + [Request("check")] * (spare + refusals))
        assert all(bench.send(policy, next(requests)).allowed for _ in range(used if has_slots else 1))
        clock.advance(pause - 3600)
        assert all(bench.send(policy, next(requests)).allowed for _ in range(spare))
        refused = [bench.send(policy, request) for request in requests]
        assert all(result.retry_after <= longest_wait(limit) + 2e-6 for result in refused)
        clock.advance(refused[0].retry_after)
        assert bench.send(policy, Request("acquire", slot="more") if has_slots else Request("check")).allowed

    check()


@pytest.mark.parametrize("has_slots", [False, True])
def test_shadow_limit_changes_no_enforced_answer(engine, clock, has_slots):
    """With and without shadow limits, the enforced ones answer the same."""
    algorithms = [*WINDOWED, Algorithm.CONCURRENCY] if has_slots else WINDOWED
    first = [Algorithm.CONCURRENCY] if has_slots else WINDOWED

    @engine.examples(180)
    @given(
        policies(engine, first, most=1),
        policies(engine, algorithms, most=4, shadow=True),
        histories(HOLDING if has_slots else SPENDING, overrides(engine)),
    )
    def check(enforced, shadows, steps):
        both = Policy(ENDPOINT, [*enforced.limits, *shadows.limits[1:]])
        alone = [result.tiers[0] for result in replay(engine.open(), clock, enforced, steps)]
        assert [result.tiers[0] for result in replay(engine.open(), clock, both, steps)] == alone

    check()


def calls_for(bench: Bench, policies: Sequence[Policy], requests: Sequence[tuple[int, int, Request]]) -> list[Call]:
    """Make calls for some subjects and policies, numbered in the requests."""
    return [
        encode(policies[which], f"{bench.subject}:{who}", operation=request.operation, cost=request.cost, slot=request.slot)
        for who, which, request in requests
    ]


@pytest.mark.parametrize("has_slots", [False, True])
def test_requests_of_a_batch_see_each_other(engine, clock, has_slots):
    """A batch answers what the same requests answer one by one, whatever subjects, policies and overrides meet in it."""
    algorithms = [*WINDOWED, Algorithm.CONCURRENCY] if has_slots else WINDOWED
    request = st.tuples(st.integers(0, 1), st.integers(0, 1), HOLDING if has_slots else SPENDING)
    pauses = st.sampled_from([0, 0.5, 5, 100, -3600])
    batches = st.lists(st.tuples(pauses, st.lists(request, min_size=1, max_size=8)), max_size=3)

    @engine.examples(180)
    @given(policies(engine, algorithms), policies(engine, algorithms), overrides(engine), batches)
    def check(one, other, override, batches):
        together, apart = engine.open(), engine.open()
        for bench in (together, apart):
            Bench(bench.limiter, bench.command, f"{bench.subject}:1").override(override)
        for pause, requests in batches:
            clock.advance(pause)
            batch = together.limiter.store.run_many(calls_for(together, [one, other], requests))
            calls = calls_for(apart, [one, other], requests)
            assert list(map(list, batch)) == [list(apart.limiter.store.run(call)) for call in calls]

    check()


def test_plain_policy_is_decided_as_any_other_whatever_comes(engine, clock):
    """Checks by fixed windows alone take the fast path of the script: to the same answers, and to the same state."""
    pauses = st.sampled_from([0, 0, 0, 0.5, 5, 100, -3600])
    steps = st.lists(st.tuples(pauses, st.none() | overrides(engine), COSTS), max_size=10)

    @engine.examples(180)
    @given(policies(engine, [Algorithm.FIXED_WINDOW], most=4, shadow=False), steps)
    def check(policy, steps):
        short, long = engine.open(), engine.open()
        for pause, override, cost in steps:
            clock.advance(pause)
            for bench in (short, long) if override is not None else ():
                bench.override(override)
            calls = [encode(policy, bench.subject, cost=cost) for bench in (short, long)]
            answers = short.limiter.store.run(calls[0]), long.limiter.store.run_many([as_not_plain(calls[1])])[0]
            assert list(answers[0]) == list(answers[1])
            assert list(short.dump(policy).values()) == list(long.dump(policy).values())

    check()


def test_burst_of_a_limit_stays_when_an_override_changes_its_rate(bench):
    """A burst is the capacity of the bucket, also one that happens to equal max_requests."""
    policy = Policy(ENDPOINT, Limit(10, 1, burst=10))
    bench.override({"max_requests": "100"})
    assert bench.send(policy, Request("check")).max_requests == 10


def test_figures_are_whole_numbers_when_a_bucket_is_blocked(bench, clock):
    """What is used is rounded down in the process as in Redis, also where nothing is allowed any more."""
    policy = Policy(ENDPOINT, Limit(10, 60, algorithm="token_bucket"))
    bench.send(policy, Request("check", 5))
    clock.advance(1)
    bench.send(policy, Request("check", 1))
    bench.override({"max_requests": "0"})
    assert list(bench.send(policy, Request("peek")).figures) == [2, 0, 5, 0, -1, 0]


def test_refund_forgets_nothing_else_when_a_bucket_is_blocked(engine, clock):
    """A bucket that nothing drains is kept until it is unblocked, and not for one second only."""
    bench, policy = engine.open(), Policy(ENDPOINT, Limit(10, 60, algorithm="token_bucket"))
    bench.send(policy, Request("check", 10))
    bench.override({"max_requests": "0"})
    assert bench.send(policy, Request("refund", 1)).tiers[0].used == 9
    assert bench.command("PTTL", bench.keys(policy)[0]) > 50_000


def test_retry_after_is_honest_when_the_previous_window_was_much_fuller(bench, clock):
    """How much fades at once now says nothing about the next window, in which the request has to fit."""
    policy = Policy(ENDPOINT, Limit(1_000_000, 1, algorithm="sliding_window_counter"))
    bench.send(policy, Request("check", 1_000_000))
    clock.advance(1.9)
    bench.send(policy, Request("check", 10))
    refused = bench.send(policy, Request("check", 999_995))
    assert refused.retry_after == pytest.approx(0.5, abs=2e-6)
    clock.advance(refused.retry_after)
    assert bench.send(policy, Request("check", 999_995)).allowed


def test_no_wait_is_negative_however_much_was_charged(bench):
    """A wait that does not fit into an integer of Redis is cut, not turned into its opposite."""
    policy = Policy(ENDPOINT, Limit(1, 3600, algorithm="token_bucket"))
    result = bench.send(policy, Request("charge", 10**12))
    assert result.tiers[0].reset_after > 0
    assert (bench.send(policy, Request("check")).retry_after or 0) > 0


def test_log_counts_each_request_when_much_was_spent_before(bench, clock):
    """However much a log has ever summed up, a request that costs little still counts."""
    policy = Policy(ENDPOINT, Limit(10, 60, algorithm="sliding_window_log"))
    calls = [encode(policy, bench.subject, operation="charge", cost=10**12)] * 100
    for _ in range(91):
        bench.limiter.store.run_many(calls)
    clock.advance(60)
    assert_admits(lambda: bench.send(policy, Request("check")), exactly=10)


def test_log_stays_in_order_when_its_sum_starts_again_within_one_instant(bench, clock):
    """Requests of one instant count one by one, wherever the running sum of costs happens to be, as at 2^52."""
    policy = Policy(ENDPOINT, Limit(20, 60, algorithm="sliding_window_log"))
    most, rest = divmod(2**52 - 6, 10**12)
    for cost, count in ((10**12, most), (rest, 1)):
        bench.limiter.store.run_many([encode(policy, bench.subject, operation="charge", cost=cost)] * count)
    clock.advance(60)
    assert [bench.send(policy, Request("check", 5)).tiers[0].used for _ in range(5)] == [5, 10, 15, 20, 20]


def slots(name: str, most: int, window: float, **fields: Any) -> Limit:
    return Limit(most, window, algorithm=Algorithm.CONCURRENCY, name=name, **fields)


def test_slot_is_taken_again_when_one_of_two_limits_has_freed_it(bench, clock):
    """A slot that one limit has freed needs room there again, though another limit still counts it."""
    policy = Policy(ENDPOINT, [slots("short", 1, 10), slots("long", 5, 60)])
    bench.send(policy, Request("acquire", slot="a"))
    clock.advance(11)
    assert not bench.send(policy, Request("renew", slot="a")).allowed
    again = bench.send(policy, Request("acquire", slot="a"))
    assert [(tier.allowed, tier.used) for tier in again.tiers] == [(True, 1), (True, 1)]
    assert not bench.send(policy, Request("acquire", slot="b")).allowed


def test_slot_is_taken_again_from_all_limits_or_from_none(bench, clock):
    """Of two limits that have freed a slot which a third one holds, none is spent from if one has no room."""
    policy = Policy(ENDPOINT, [slots("wide", 2, 10), slots("long", 5, 60), slots("narrow", 1, 10)])
    bench.send(policy, Request("acquire", slot="a"))
    clock.advance(11)
    assert bench.send(policy, Request("acquire", slot="b")).allowed
    again = bench.send(policy, Request("acquire", slot="a"))
    assert [(tier.allowed, tier.used) for tier in again.tiers] == [(True, 1), (True, 2), (False, 1)]


def test_shadow_slot_is_not_taken_for_an_enforced_one(bench, clock):
    """Who holds a slot by a shadow limit only has to find room by the enforced one."""
    policy = Policy(ENDPOINT, [slots("short", 1, 10), slots("long", 5, 60, shadow=True)])
    bench.send(policy, Request("acquire", slot="a"))
    clock.advance(11)
    assert bench.send(policy, Request("acquire", slot="b")).allowed
    assert not bench.send(policy, Request("acquire", slot="a")).allowed


def test_shadow_slot_that_is_held_keeps_its_end_when_the_enforced_one_is_taken_again(bench, clock):
    """An id that is held is not renewed by taking it again, in a shadow as elsewhere."""
    limits = [
        Limit(1, 1, algorithm="concurrency", name="one"),
        Limit(1, 5, algorithm="concurrency", name="two", shadow=True),
    ]
    policy = Policy(ENDPOINT, limits)
    bench.limiter.acquire(policy, bench.subject, "a")
    clock.advance(2)
    again = bench.limiter.acquire(policy, bench.subject, "a")
    assert [tier.reset_after for tier in again.tiers] == [1, 3]


def test_window_of_which_all_was_given_back_is_over(bench, clock):
    """What is given back of a window that fades leaves nothing behind, not even what rounding leaves."""
    policy = Policy(ENDPOINT, [Limit(10, 1, algorithm="sliding_window_counter")])
    for left_us in (1_995, 15_953, 257_227, 259_221, 261_215):
        clock.set(START)
        bench.limiter.reset(policy, bench.subject)
        bench.limiter.charge(policy, bench.subject, cost=1)
        clock.advance(2 - left_us / SECOND_US)
        assert bench.limiter.refund(policy, bench.subject, cost=10).reset_after == 0


def test_refused_renewal_names_no_wait(bench):
    """Waiting does not bring a slot back: the wait is 0 for an admitted request only."""
    policy = Policy(ENDPOINT, Limit(1, 10, algorithm="concurrency"))
    refused = bench.send(policy, Request("renew", slot="a"))
    assert (refused.allowed, refused.retry_after) == (False, None)


@pytest.mark.parametrize("operation", ["acquire", "renew"])
def test_unlimited_subject_of_a_batch_is_not_mixed_up_with_the_one_before(bench, operation):
    """Whether the subject before held a slot is nothing to a subject without a limit."""
    policy = Policy(ENDPOINT, [slots("slots", 2, 60), Limit(5, 60, name="minute")])
    replace(bench, subject="free").override({"unlimited": "1"})
    bench.send(policy, Request("acquire", slot="a"))
    first = encode(policy, bench.subject, operation=operation, slot="a" if operation == "acquire" else "b")
    second = encode(policy, "free", operation=operation, slot="c")
    alone, batch = bench.limiter.store.run(second), bench.limiter.store.run_many([first, second])[1]
    bench.limiter.reset(policy, "free")
    assert [flag % 2 for flag in batch[::6]] == [flag % 2 for flag in alone[::6]] == [1, 1]
    assert batch[8] == alone[8] + (operation == "acquire")


def test_unlimited_limit_is_not_written_when_the_subject_before_was_clamped(bench, clock):
    """A clamp is stored for the subject whose time lay ahead, and for nobody else."""
    one, two = Limit(5, 60, algorithm="sliding_window_counter", name="one"), Limit(1, 60, name="two")
    policy, free = Policy(ENDPOINT, [one, two]), replace(bench, subject=f"{bench.subject}:free")
    for each in (bench, free):
        each.send(Policy(ENDPOINT, two), Request("charge"))
    bench.send(policy, Request("charge", 5))
    free.override({"one.unlimited": "1"})
    clock.advance(-3600)
    bench.limiter.store.run_many([encode(policy, bench.subject), encode(policy, free.subject)])
    bench.send(policy, Request("check"))
    assert not free.send(policy, Request("check")).allowed
    assert [key.split(":")[-1] for key in free.keys(policy)] == ["two"]


def test_wait_is_the_rest_of_the_aligned_window_when_the_clock_was_set_back(bench, clock):
    """An aligned window ends on the clock, whatever time the clock shows."""
    policy = Policy(ENDPOINT, Limit(1, 60, aligned=True))
    clock.set(1_800_000_010)
    bench.send(policy, Request("check"))
    clock.set(1_800_000_010 - 3600 + 20)
    refused = bench.send(policy, Request("check"))
    assert (refused.retry_after, refused.reset_after) == (30, 30)


def test_override_of_a_subject_stays_with_it_when_its_shadow_cannot_be_read(bench):
    """The next subject gets the limit's own numbers, though the one before had others and a key of another type."""
    policy = Policy(ENDPOINT, [Limit(5, 60, name="one"), Limit(3, 60, name="two", shadow=True)])
    bench.override({"two.max_requests": "100"})
    calls = [encode(policy, subject) for subject in (bench.subject, f"{bench.subject}:next")]
    bench.command("ZADD", calls[0].keys[-1].decode(), 1, "not a hash")
    assert bench.limiter.store.run_many(calls)[1][7] == 3
    assert [bench.limiter.store.run(call)[7] for call in calls][1] == 3
