"""What comes to a limiter: limits, overrides, requests and the time between them, drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from lua.engines import ENDPOINT, Bench, Engine
from lua.models import SECOND_US, Request

from ratekit import Algorithm, Limit, Policy, RateLimitResult
from ratekit.testing import VirtualClock

WINDOWED = [algorithm for algorithm in Algorithm if algorithm is not Algorithm.CONCURRENCY]
LONGEST_WAIT = 10**8  # seconds; no key is kept for longer than a hundred years
NAMES = ("one", "two", "three", "four", "five")


@dataclass(frozen=True)
class Step:
    """Time passes, perhaps an override changes, a request is sent."""

    since: str  # now, or the wait that the last answer gave: retry or reset
    us: int
    override: dict[str, str] | None  # None leaves it as it is
    request: Request

    def pass_time(self, clock: VirtualClock, last: RateLimitResult | None) -> None:
        waits = {"retry": last.retry_after, "reset": last.reset_after} if last else {}
        wait = waits.get(self.since) or 0
        clock.advance(max((wait if wait < LONGEST_WAIT else 0) + self.us / SECOND_US, 0))


COSTS = st.one_of(st.integers(0, 7), st.sampled_from([1, 1, 10, 99, 100, 150, 999, 1000, 10**6]))
PAUSES = st.one_of(
    st.just(("now", 0)),
    st.just(("now", 0)),
    st.tuples(st.sampled_from(["retry", "reset"]), st.sampled_from([0, 0, -1, 1])),
    st.tuples(st.just("now"), st.integers(1, 2 * SECOND_US)),
    st.tuples(st.just("now"), st.sampled_from([500, 250_000, 500_000, 10**6, 5 * 10**6, 6 * 10**7, 10**9, 10**11])),
)
RESET = st.just(Request("reset", cost=0))
SPENDING = st.one_of(st.builds(Request, st.sampled_from(["check"] * 5 + ["peek", "charge", "refund"]), COSTS), RESET)
SLOTS = st.builds(Request, st.sampled_from(["acquire"] * 4 + ["renew", "release"]), st.just(1), st.sampled_from("abcd"))
HOLDING = st.one_of(
    SLOTS, SLOTS, SLOTS, SLOTS, st.builds(Request, st.sampled_from(["peek", "charge", "refund"]), COSTS), RESET
)


def limits(engine: Engine, algorithm: Algorithm, **fields: Any) -> st.SearchStrategy[Limit]:
    if algorithm is Algorithm.TOKEN_BUCKET:
        fields["burst"] = st.sampled_from([None, None, 1, 3, 10, 200])
    if algorithm is Algorithm.FIXED_WINDOW:
        fields["aligned"] = st.booleans()
    most = st.sampled_from([1, 2, 3, 5, 10, 100, 1000, 10**6])
    return st.builds(Limit, most, st.sampled_from(engine.windows), algorithm=st.just(algorithm), **fields)


def policies(
    engine: Engine, algorithms: Sequence[Algorithm], most: int = 3, shadow: bool | None = None
) -> st.SearchStrategy[Policy]:
    """Policies of limits with names, the first one enforced, the others perhaps not."""

    def tier(index: int) -> st.SearchStrategy[Limit]:
        is_shadow = st.just(False) if index == 0 else st.booleans() if shadow is None else st.just(shadow)
        one_of = [limits(engine, algorithm, name=st.just(NAMES[index]), shadow=is_shadow) for algorithm in algorithms]
        return st.one_of(one_of)

    tiers = [tier(index) for index in range(most)]
    return st.one_of([st.tuples(*tiers[: index + 1]) for index in range(most)]).map(lambda limits: Policy(ENDPOINT, limits))


def overrides(engine: Engine) -> st.SearchStrategy[dict[str, str]]:
    numbers = {
        "max_requests": st.sampled_from(["0", "1", "2", "7", "50", "2000", "many"]),
        "expiry": st.sampled_from(["2", "3.5", "120", "-1"] + ["0.02", "1"] * engine.is_local),
        "burst": st.sampled_from(["1", "4", "300", "0"]),
        "unlimited": st.sampled_from(["0", "1"]),
    }
    tiers = {f"{name}.{field}": values for name in NAMES[:3] for field, values in numbers.items()}
    items = [st.tuples(st.just(name), values) for name, values in (numbers | tiers).items()]
    plain = [st.tuples(st.just(name), values) for name, values in numbers.items()]
    return st.one_of(st.just({}), *(st.lists(st.one_of(some), max_size=3).map(dict) for some in (plain, items)))


def histories(requests: st.SearchStrategy[Request], override: Any = None, most: int = 12) -> st.SearchStrategy[list[Step]]:
    """Steps; with a strategy for overrides, some of them change it."""
    change = st.none() if override is None else st.one_of(st.none(), st.none(), override)
    step = st.builds(lambda pause, *rest: Step(*pause, *rest), PAUSES, change, requests)
    return st.lists(step, min_size=1, max_size=most)


def replay(bench: Bench, clock: VirtualClock, policy: Policy, steps: Sequence[Step]) -> Iterator[RateLimitResult]:
    """Take steps one by one, and yield what the store answers."""
    last = None
    for step in steps:
        step.pass_time(clock, last)
        if step.override is not None:
            bench.override(step.override)
        last = bench.send(policy, step.request)
        yield last


def spend(bench: Bench, clock: VirtualClock, policy: Policy, steps: Sequence[Step]) -> None:
    for _ in replay(bench, clock, policy, steps):
        pass
