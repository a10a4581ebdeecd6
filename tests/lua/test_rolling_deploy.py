"""Processes of two versions of the script share their counters, as while a new version is rolled out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from lua.agreement import assert_same
from lua.engines import FUZZ, START, Engine, redis_bench
from lua.histories import COSTS, RESET, SLOTS, WINDOWED, overrides, policies
from lua.models import PolicyModel, Request, SlidingWindowCounter

from ratekit import Algorithm
from ratekit.core.protocol import decode, encode, pack
from ratekit.stores import script

TEXTS = {"1": (Path(__file__).parent / "protocol_1.lua").read_bytes(), "2": script.read("ratekit")}
SPENDING = st.one_of(st.builds(Request, st.sampled_from(["check"] * 4 + ["peek", "charge", "refund"]), COSTS), RESET)
SAME = [algorithm for algorithm in WINDOWED if algorithm is not Algorithm.SLIDING_WINDOW_COUNTER]
UNCOUNTED = {"1": 0, "2": 1}  # how much of the previous window each version of a sliding_window_counter leaves out
HOLDING = st.one_of(SLOTS, SLOTS, st.builds(Request, st.sampled_from(["charge", "refund"]), COSTS), RESET)


@pytest.mark.parametrize("has_slots", [False, True])
def test_both_versions_of_the_script_go_on_with_each_others_state(server, clock, has_slots):
    """Whichever version decides a request, answers and stored bytes are those of one version alone.

    But for a reset of a window on the clock: version 1 deletes it, and version 2 lets it go on with another end.
    """
    algorithms = [*SAME, Algorithm.CONCURRENCY] if has_slots else SAME
    pauses = st.sampled_from([0, 0, 0.5, 5, 100, -3600])
    step = st.tuples(pauses, st.sampled_from("12"), HOLDING if has_slots else SPENDING)
    with server.client() as client:
        engine = Engine(lambda: redis_bench(client), clock, is_local=False)

        @settings(max_examples=60 * FUZZ, suppress_health_check=[HealthCheck.too_slow])
        @given(policies(engine, algorithms), overrides(engine), st.lists(step, max_size=10))
        def check(policy, override, steps):
            clock.set(START)
            mixed, alone = (redis_bench(client) for _ in range(2))
            for bench in (mixed, alone):
                bench.override(override)
            for pause, version, request in steps:
                clock.advance(pause)
                if request.operation == "reset" and any(limit.aligned for limit in policy.limits):
                    version = "2"
                answers = [
                    run(client, clock.now_us, version, policy, mixed.subject, request),
                    run(client, clock.now_us, "2", policy, alone.subject, request),
                ]
                assert answers[0] == answers[1]
                assert list(mixed.dump(policy).values()) == list(alone.dump(policy).values())

        check()


def test_both_versions_count_alike_in_a_sliding_window_counter(server, clock):
    """Each version answers by its own rule from counters that both have written: only the rule differs."""
    pauses = st.sampled_from([0, 0, 0.5, 1.9, 5, 100])
    step = st.tuples(pauses, st.sampled_from("12"), SPENDING)
    with server.client() as client:
        engine = Engine(lambda: redis_bench(client), clock, is_local=False)

        @settings(max_examples=60 * FUZZ, suppress_health_check=[HealthCheck.too_slow])
        @given(policies(engine, [Algorithm.SLIDING_WINDOW_COUNTER], most=1), st.lists(step, max_size=10))
        def check(policy, steps):
            clock.set(START)
            bench, model = redis_bench(client), PolicyModel([policy.limits], forgets=False)
            for pause, version, request in steps:
                clock.advance(pause)
                assert_version_agrees(client, clock.now_us, version, policy, bench.subject, request, model)

        check()


def assert_version_agrees(client, now_us, version, policy, subject, request, model):
    """Compare one version with the model, whose rule for the previous window is made that version's."""
    figures = run(client, now_us, version, policy, subject, request)
    result = decode(encode(policy, subject), figures)
    counter = model.tiers[0].model
    assert isinstance(counter, SlidingWindowCounter)
    counter.uncounted = UNCOUNTED[version]
    [answer] = model.decide(now_us, request, [{}])
    assume(not model.is_close_call)
    assert_same(answer, result.tiers[0], request)


def run(client, now_us, version, policy, subject, request):
    """Run one version of the script, which is told its protocol and gets the rest as every version does."""
    call = encode(policy, subject, operation=request.operation, cost=request.cost, slot=request.slot)
    keys, (_, *items) = pack([call], now_us)
    if version == "1":  # there was no override for all endpoints
        keys = [key for key in keys if b"_override:*:" not in key]
    return client.eval(TEXTS[version], len(keys), *keys, f"{version}@{now_us}", *items)
