"""When a store is left alone, and when it is asked again."""

from __future__ import annotations

import time

import pytest

from ratekit.core.events import StoreState
from ratekit.core.outages import Outage, StoreOutage
from ratekit.stores.circuit_breaker import LONGEST_PROBE, Breaker, probe_pauses

SILENCE = Outage("timeout", "no answer")


def fail(breaker: Breaker, times: int) -> list[bool]:
    """Let calls fail one after the other, each begun when the one before had failed."""
    return [breaker.failed(SILENCE, began=time.monotonic()) for _ in range(times)]


def test_third_failure_in_a_row_opens_it_and_asks_for_one_probe():
    breaker = Breaker("store")
    assert fail(breaker, 5) == [False, False, True, False, False]
    assert (breaker.health.state, breaker.health.reason) == (StoreState.DOWN, "timeout")
    with pytest.raises(StoreOutage):
        breaker.check()


def test_calls_that_fail_together_are_one_failure():
    breaker = Breaker("store")
    assert [breaker.failed(SILENCE, began=1.0) for _ in range(50)] == [False] * 50
    assert breaker.health.state is StoreState.UP


def test_answer_in_between_begins_the_count_anew():
    breaker = Breaker("store")
    fail(breaker, 2)
    breaker.succeeded()
    assert fail(breaker, 2) == [False, False]
    breaker.check()


def test_probe_that_is_answered_closes_it(caplog):
    breaker = Breaker("store")
    fail(breaker, 3)
    breaker.probing()
    assert breaker.health.state is StoreState.PROBING
    breaker.probed(Outage("loading", "still"))
    assert (breaker.health.state, breaker.health.reason) == (StoreState.DOWN, "loading")
    breaker.succeeded()
    breaker.check()
    assert breaker.health.state is StoreState.UP
    assert len(caplog.records) == 2  # down, and up again


def test_store_that_is_down_is_looked_at_often_enough():
    pauses = probe_pauses()
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PROBE < 1
