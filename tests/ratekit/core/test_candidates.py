"""A candidate limit beside the enforced one: it tells whom it would refuse, and changes nothing."""

from __future__ import annotations

import random

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ratekit import Algorithm, Limit, Policy, RateLimiter
from ratekit.overrides import set_rate_limit_override
from ratekit.stores.memory import MemoryStore
from ratekit_fastapi import ProjectRateLimiter, install

ENFORCED = [Limit(10, 60, name="minute"), Limit(40, 3600, name="hour", algorithm="sliding_window_log")]
WINDOWED = [algorithm for algorithm in Algorithm if algorithm is not Algorithm.CONCURRENCY]
CANDIDATES = [
    Limit(most, 60, name=f"try-{most}-{algorithm.replace('_', '-')}", algorithm=algorithm, shadow=True)
    for algorithm in WINDOWED
    for most in (3, 500)
]


def traffic(seed: int) -> list[tuple[float, str, int]]:
    """Pauses, subjects and costs: some busy, some idle, some too expensive for any limit."""
    draw = random.Random(seed)
    subjects = ["a"] * 6 + ["b"] * 3 + ["c"]
    return [
        (draw.choice([0, 0, 0.3, 2, 70]), draw.choice(subjects), draw.choice([1, 1, 1, 2, 5, 0, 11])) for _ in range(140)
    ]


def answers(limiter, clock, policy: Policy, seed: int) -> list[object]:
    """What the enforced limits answer to some traffic, with an override that comes and one that has a candidate in it."""
    clock.set(1_800_000_000)
    seen = []
    for number, (pause, subject, cost) in enumerate(traffic(seed)):
        if number == 60:
            limiter.override(policy.name, "a", max_requests=4, **{"try-3-fixed-window__max_requests": 1})
        clock.advance(pause)
        result = limiter.check(policy, subject, cost=cost)
        tiers = tuple(tier for tier in result.tiers if not tier.limit.shadow)
        seen.append((result.allowed, result.limit, result.remaining, result.retry_after, result.to_headers(), tiers))
    return seen


@pytest.mark.parametrize("seed", [1])
def test_same_traffic_with_and_without_candidates_has_identical_enforced_answers(limiter, ratekit_clock, seed):
    alone = answers(limiter, ratekit_clock, Policy("alone", ENFORCED), seed)
    beside = answers(limiter, ratekit_clock, Policy("beside", [*ENFORCED, *CANDIDATES]), seed)
    between = answers(limiter, ratekit_clock, Policy("between", [ENFORCED[0], *CANDIDATES, ENFORCED[1]]), seed)
    assert beside == alone
    assert between == alone
    assert {allowed for allowed, *_ in alone} == {True, False}


def test_same_requests_with_and_without_a_candidate_have_identical_answers(ratekit_clock):
    def client(*limits: str) -> TestClient:
        app = FastAPI()
        install(app, store=MemoryStore(), identify=lambda request: request.headers["who"])

        @app.get("/x", dependencies=[Depends(ProjectRateLimiter(limits=limits))])
        async def x() -> None: ...

        return TestClient(app)

    alone, beside = client("5/min", "20/h"), client("5/min", "20/h", "2/min shadow", "1/s shadow")
    for pause, subject, _ in traffic(7):
        ratekit_clock.advance(pause)
        one, other = (each.get("/x", headers={"who": subject}) for each in (alone, beside))
        assert (one.status_code, one.headers, one.content) == (other.status_code, other.headers, other.content)


def test_candidate_tells_whom_it_would_refuse(ratekit_clock):
    limiter = RateLimiter(MemoryStore())
    policy = Policy("search", ["100/min", "2/min shadow"])
    results = [limiter.check(policy, "u") for _ in range(4)]
    assert [result.would_violate for result in results] == [(), (), ("60s-shadow",), ("60s-shadow",)]
    assert [result.violated for result in results] == [()] * 4
    assert all(result.allowed for result in results)


def test_candidate_is_tried_on_a_subject_by_an_override(ratekit_clock):
    store = MemoryStore()
    limiter = RateLimiter(store)
    policy = Policy("search", ["100/min", "60/min shadow"])
    set_rate_limit_override(store, subject="u", endpoint="search", limit="60s-shadow", max_requests=1)
    assert [limiter.check(policy, "u").would_violate for _ in range(2)] == [(), ("60s-shadow",)]
