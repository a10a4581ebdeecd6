"""What a check has spent is given back to the window in which it was spent, and to no other, however late that is."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua.engines import Bench, Engine

from ratekit import Algorithm, Limit, Policy
from ratekit.core.protocol import Operation, encode, returned
from ratekit.core.results import RateLimitResult

EXACT = [Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG]
WINDOWED = [*EXACT, Algorithm.TOKEN_BUCKET]


@dataclass
class Pair:
    """A store in which checks are returned, and a twin that has never seen those."""

    engine: Engine
    policy: Policy
    checked: dict[int, tuple[float, RateLimitResult]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.real, self.twin = self.engine.open(), self.engine.make()

    def decide(self, bench: Bench, operation: str, cost: int) -> RateLimitResult:
        return bench.limiter.decide(encode(self.policy, bench.subject, operation=operation, cost=cost))

    def spend(self, cost: int) -> None:
        for bench in (self.real, self.twin):
            self.decide(bench, Operation.CHARGE, cost)

    def check(self, number: int, cost: int) -> None:
        result = self.decide(self.real, Operation.CHECK, cost)
        if not result.allowed or number in self.checked:
            return
        self.checked[number] = self.engine.clock.now, result
        self.decide(self.twin, Operation.CHARGE, cost)  # a window is opened all the same
        self.decide(self.twin, Operation.REFUND, cost)

    def give_back(self, number: int, cost: int) -> None:
        at, result = self.checked.pop(number, (0.0, None))
        if result is not None:
            call = encode(self.policy, self.real.subject, cost=cost)
            indexes = range(len(self.policy.limits))
            self.real.limiter.decide(returned(call, indexes, result.figures, self.engine.clock.now - at))

    def compare(self) -> None:
        for pause in (0, 0.7, 1.3, 5, 31):
            self.engine.clock.advance(pause)
            real, twin = (self.decide(bench, Operation.PEEK, 0) for bench in (self.real, self.twin))
            for mine, other in zip(real.tiers, twin.tiers, strict=True):
                assert mine.used + (mine.limit.algorithm not in EXACT) >= other.used
                if mine.limit.algorithm in EXACT:
                    assert mine.used == other.used


PAUSES = st.sampled_from([0, 0, 0.001, 0.5, 1, 1.9, 2.5, 4, 7])
COSTS = {1: 1, 2: 5}


def policies(algorithms: list[Algorithm]) -> st.SearchStrategy[Policy]:
    limit = st.builds(
        lambda most, window, algorithm, name: Limit(most, window, algorithm=algorithm, name=name),
        st.sampled_from([50, 100]), st.sampled_from([2, 3, 6]), st.sampled_from(algorithms), st.just("one"),
    )  # fmt: skip
    return limit.map(lambda one: Policy("search", [one]))


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_state_is_that_of_a_twin_without_the_checks_that_were_returned(engine: Engine, algorithm):
    @engine.examples(150)
    @given(policies([algorithm]), st.data())
    def check(policy, data):
        pair = Pair(engine, policy)
        for _ in range(data.draw(st.integers(1, 4))):
            others = st.lists(st.tuples(PAUSES, st.integers(2, 4)), max_size=3)
            number = data.draw(st.sampled_from([1, 2]))
            for step in ("check", "return"):
                for pause, cost in data.draw(others):
                    engine.clock.advance(pause)
                    pair.spend(cost)
                engine.clock.advance(data.draw(PAUSES))
                (pair.check if step == "check" else pair.give_back)(number, COSTS[number])
        pair.compare()

    check()


@pytest.mark.parametrize("algorithm", WINDOWED)
@pytest.mark.parametrize("delay", [0, 0.04], ids=["at once", "after a slow answer"])
def test_early_return_gives_all_of_it_back(engine: Engine, algorithm, delay):
    bench, policy = engine.open(), Policy("search", [Limit(100, 3600, algorithm=algorithm)])
    bench.limiter.check(policy, bench.subject, cost=30)
    result = bench.limiter.check(policy, bench.subject, cost=7)
    engine.clock.advance(delay + 0.5)
    call = encode(policy, bench.subject, cost=7)
    bench.limiter.decide(returned(call, [0], result.figures, 0.5))
    assert bench.limiter.peek(policy, bench.subject, cost=0).request_count == 30 - (algorithm is Algorithm.TOKEN_BUCKET)


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_late_return_gives_nothing_to_another_window(engine: Engine, algorithm):
    bench, policy = engine.open(), Policy("search", [Limit(100, 60, algorithm=algorithm)])
    result = bench.limiter.check(policy, bench.subject, cost=80)
    engine.clock.advance(121)
    bench.limiter.check(policy, bench.subject, cost=80)
    before = bench.dump(policy)
    bench.limiter.decide(returned(encode(policy, bench.subject, cost=80), [0], result.figures, 121))
    assert bench.limiter.peek(policy, bench.subject, cost=0).request_count == 80
    assert bench.limiter.check(policy, bench.subject, cost=30).is_over_limit
    assert list(before) == list(bench.dump(policy))


def test_return_leaves_slots_and_unlimited_limits_alone(engine: Engine):
    bench = engine.open()
    policy = Policy("search", [Limit(5, 60, name="one"), Limit(5, 60, name="two", algorithm="concurrency")])
    result = bench.limiter.acquire(policy, bench.subject, "slot")
    bench.limiter.decide(returned(encode(policy, bench.subject), [0, 1], result.figures, 0))
    assert [tier.used for tier in bench.limiter.peek(policy, bench.subject).tiers] == [0, 1]
    bench.override({"unlimited": "1"})
    bench.limiter.decide(returned(encode(policy, bench.subject), [0], result.figures, 0))
    assert bench.limiter.peek(policy, bench.subject).unlimited is False
