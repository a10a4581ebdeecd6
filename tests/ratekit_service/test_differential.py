"""The same checks through /v1/check and through the library give the same decisions."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratekit import RateLimiter
from ratekit.stores.memory import MemoryStore
from ratekit_service.plans.definitions import terms_of
from support import databases
from tests.ratekit_service.conftest import running

PLANS = {
    "fixed": {"algorithm": "fixed_window", "limit": 5, "window_seconds": 10},
    "log": {"algorithm": "sliding_window", "limit": 5, "window_seconds": 10},
    "counter": {"algorithm": "sliding_window_counter", "limit": 5, "window_seconds": 10},
    "bucket": {"algorithm": "token_bucket", "bucket_capacity": 5, "refill_rate_per_sec": 0.7},
    "several": {"limits": ["3/5s", "7/min burst 9", "4/h shadow"]},
}
steps = st.lists(
    st.tuples(st.sampled_from(sorted(PLANS)), st.sampled_from("ab"), st.integers(0, 4), st.sampled_from([0, 0, 0.3, 2, 7])),
    min_size=5,
    max_size=60,
)


@pytest.fixture
def service(tmp_path, ratekit_clock):
    with asyncio.Runner() as runner:
        context = running(databases.new_database("sqlite", tmp_path), "memory://differential")
        found = runner.run(context.__aenter__())

        async def prepare():
            caller = await found.caller()
            ids = {name: await found.plan(caller.tenant_id, name, **definition) for name, definition in PLANS.items()}
            return caller, ids

        yield runner, *runner.run(prepare())
        runner.run(context.__aexit__(None, None, None))


def test_service_and_library_decide_alike(service, ratekit_clock):
    runner, caller, ids = service
    library = RateLimiter(MemoryStore(for_one=False))
    policies = {name: terms_of(name, definition).policy for name, definition in PLANS.items()}
    refused = 0

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(steps)
    def decide(history):
        nonlocal refused
        for plan, subject, cost, pause in history:
            ratekit_clock.advance(pause)
            ours = library.check(policies[plan], subject, cost=cost, endpoint=f"{caller.tenant_id}:{plan}")
            answer = runner.run(caller.check(plan, subject, cost=cost, plan_id=ids[plan]))
            body = answer.json()
            assert (body["allowed"], body["remaining"], body["limit"]) == (ours.allowed, ours.remaining, ours.max_requests)
            assert body["rule"] == f"{plan}/{ours.limit}"
            assert answer.headers["x-ratelimit-remaining"] == ours.to_headers("x-ratelimit")["X-RateLimit-Remaining"]
            refused += not ours.allowed

    decide()
    assert refused > 50
