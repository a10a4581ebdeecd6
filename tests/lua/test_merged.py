"""Checks of one request that are decided together: of different policies, subjects and costs, with slots among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lua.agreement import assert_same
from lua.engines import Bench, Engine, as_not_plain
from lua.histories import COSTS, RESET, WINDOWED, Step, histories, overrides, policies
from lua.models import PolicyModel, Request

from ratekit import Algorithm, Policy, RateLimitResult
from ratekit.core.protocol import Call, Operation, encode, merge, only
from ratekit.testing import VirtualClock

pytestmark = pytest.mark.parametrize("engine", ["memory", "memory-plain-lua", "redis"], indirect=True)
TWO_COSTS = st.tuples(COSTS, COSTS)
SPENDING = st.one_of(st.builds(Request, st.sampled_from(["check"] * 5 + ["peek", "charge", "refund"]), TWO_COSTS), RESET)
TAKING = st.builds(Request, st.sampled_from(["acquire"] * 4 + ["renew", "release"]), TWO_COSTS, st.sampled_from("abcd"))
HOLDING = st.one_of(
    TAKING, TAKING, TAKING, st.builds(Request, st.sampled_from(["peek", "charge", "refund"]), TWO_COSTS), RESET
)


@dataclass(frozen=True)
class Pair:
    """Two policies, each for a subject of its own, and all that is needed to ask them together."""

    bench: Bench
    policies: tuple[Policy, Policy]

    @property
    def benches(self) -> tuple[Bench, Bench]:
        return self.bench, replace(self.bench, subject=f"{self.bench.subject}:other")

    def call(self, request: Request) -> Call:
        """Make one call of what is asked of each policy; a policy without slots is checked where the other takes one."""
        return merge([self._part(part, request) for part in range(2)])

    def _part(self, part: int, request: Request) -> Call:
        policy, subject = self.policies[part], self.benches[part].subject
        cost = request.cost if isinstance(request.cost, int) else request.cost[part]
        if request.operation == "acquire" and not policy.has_slots:
            return encode(policy, subject, cost=cost)
        return encode(policy, subject, operation=request.operation, cost=cost, slot=request.slot)

    def send(self, request: Request) -> RateLimitResult:
        return self.bench.limiter.decide(self.call(request))

    def dump(self) -> list[object]:
        dumps = [bench.dump(policy) for bench, policy in zip(self.benches, self.policies, strict=True)]
        return [value for dump in dumps for value in dump.values()]


def replay(pair: Pair, clock: VirtualClock, steps: Sequence[Step]) -> Iterator[RateLimitResult]:
    """Take steps one by one, and yield what the store answers; an override is that of the second policy."""
    last = None
    for step in steps:
        step.pass_time(clock, last)
        if step.override is not None:
            pair.benches[1].override(step.override)
        last = pair.send(step.request)
        yield last


def assert_agrees(engine: Engine, clock: VirtualClock, both: tuple[Policy, Policy], steps: Sequence[Step]) -> None:
    model, override = PolicyModel([policy.limits for policy in both], forgets=engine.is_local), {}
    for step, result in zip(steps, replay(Pair(engine.open(), both), clock, steps), strict=True):
        override = override if step.override is None else step.override
        answers = model.decide(clock.now_us, step.request, [{}, override])
        assume(not model.is_close_call)
        for answer, tier in zip(answers, result.tiers, strict=True):
            assert_same(answer, tier, step.request)


def test_store_agrees_with_the_model_when_checks_cost_differently(engine, clock):
    """Each limit is asked for the cost of its own check, and all of them decide together."""

    @engine.examples(180)
    @given(st.tuples(policies(engine, WINDOWED), policies(engine, WINDOWED)), histories(SPENDING, overrides(engine)))
    def check(both, steps):
        assert_agrees(engine, clock, both, steps)

    check()


def test_store_agrees_with_the_model_when_slots_are_taken_beside_other_checks(engine, clock):
    """A request takes one slot whatever it costs elsewhere, and neither the slot nor the cost if one limit refuses."""
    slots = policies(engine, [Algorithm.CONCURRENCY], most=1)
    others = policies(engine, [*WINDOWED, Algorithm.CONCURRENCY], most=2)

    @engine.examples(180)
    @given(slots, others, st.booleans(), histories(HOLDING, overrides(engine)))
    def check(slots, others, is_first, steps):
        assert_agrees(engine, clock, (slots, others) if is_first else (others, slots), steps)

    check()


def test_plain_policies_are_decided_together_as_any_other_whatever_they_cost(engine, clock):
    """Checks by fixed windows alone take the fast path of the script, merged ones too: to the same answers and state."""
    plain = policies(engine, [Algorithm.FIXED_WINDOW], most=3, shadow=False)
    pauses = st.sampled_from([0, 0, 0, 0.5, 5, 100, -3600])
    steps = st.lists(st.tuples(pauses, st.none() | overrides(engine), TWO_COSTS), max_size=8)

    @engine.examples(180)
    @given(st.tuples(plain, plain), steps)
    def check(both, steps):
        short, long = Pair(engine.open(), both), Pair(engine.open(), both)
        for pause, override, costs in steps:
            clock.advance(pause)
            for pair in (short, long) if override is not None else ():
                pair.benches[1].override(override)
            short_call, long_call = (pair.call(Request("check", costs)) for pair in (short, long))
            answer = short.bench.limiter.store.run(short_call)
            assert list(answer) == list(long.bench.limiter.store.run_many([as_not_plain(long_call)])[0])
            assert short.dump() == long.dump()

    check()


def test_what_an_admitted_request_has_spent_is_given_back_in_the_limits_that_are_named(engine, clock):
    """A refund by limits that have admitted a request takes off what it has cost them, and leaves the others alone."""

    @engine.examples(150)
    @given(
        st.tuples(policies(engine, WINDOWED), policies(engine, WINDOWED)),
        histories(SPENDING, overrides(engine), most=6),
        TWO_COSTS,
        st.sets(st.integers(0, 5)),
    )
    def check(both, steps, costs, picked):
        pair = Pair(engine.open(), both)
        for _ in replay(pair, clock, steps):
            pass
        before, request = pair.send(Request("peek", 0)), Request("check", costs)
        result = pair.send(request)
        assume(result.allowed)
        indexes = [index for index, tier in enumerate(result.tiers) if tier.allowed and index in picked]
        assume(indexes)
        refunded = pair.bench.limiter.decide(only(pair.call(request), indexes, Operation.REFUND))
        after = pair.send(Request("peek", 0))
        assert [tier.used for tier in refunded.tiers] == [before.tiers[index].used for index in indexes]
        expected = [(before if index in indexes else result).tiers[index].used for index in range(len(result.tiers))]
        assert [tier.used for tier in after.tiers] == expected

    check()


def test_slots_of_a_merged_request_are_given_back_alone(engine, clock):
    """A release frees the slots of a request and leaves what it has spent; a refund leaves the slots."""

    @engine.examples(100)
    @given(policies(engine, [Algorithm.CONCURRENCY], most=1), policies(engine, WINDOWED, most=2), TWO_COSTS)
    def check(slots, others, costs):
        pair, request = Pair(engine.open(), (slots, others)), Request("acquire", costs, "a")
        taken = [tier.used for tier in pair.send(request).tiers]
        assume(taken[0])
        call = pair.call(request)
        after = [
            [tier.used for tier in pair.bench.limiter.decide(only(call, range(len(taken)), operation)).tiers]
            for operation in (Operation.RELEASE, Operation.REFUND)
        ]
        assert after == [[0, *taken[1:]], [0] * len(taken)]

    check()


def test_batch_of_merged_and_single_checks_is_decided_as_one_by_one(engine, clock):
    """Requests of a batch that share their limits may cost differently, each in one number or in several."""
    requests = st.lists(
        st.builds(Request, st.sampled_from(["check", "peek"]), st.one_of(COSTS, TWO_COSTS)), min_size=1, max_size=6
    )

    @engine.examples(150)
    @given(st.tuples(policies(engine, WINDOWED), policies(engine, WINDOWED)), overrides(engine), requests)
    def check(both, override, requests):
        together, apart = Pair(engine.open(), both), Pair(engine.open(), both)
        for pair in (together, apart):
            pair.benches[1].override(override)
        batch = together.bench.limiter.store.run_many([together.call(request) for request in requests])
        one_by_one = [apart.bench.limiter.store.run(apart.call(request)) for request in requests]
        assert list(map(list, batch)) == list(map(list, one_by_one))

    check()
