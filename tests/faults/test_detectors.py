"""The detectors themselves: a limiter as one writes it on a first day has to fail the rows that it should fail."""

from __future__ import annotations

import os

import pytest

from faults import down, exact, full, late
from faults.drive import Maker
from faults.machine import hogs
from faults.table import ROWS, Figures


@pytest.fixture
def naive(colour: str) -> Maker:
    return Maker(colour, naive=True)


AWAITED = Maker("async", naive=True)


def assert_caught(row: str, figure: str, figures: Figures) -> None:
    """A row is missed by that figure, whatever else."""
    with pytest.raises(AssertionError, match=f"{figure} is "):
        ROWS[row].verify(figures)


def test_limiter_without_a_breaker_is_caught_when_the_server_is_killed(naive):
    assert_caught("killed", "p99 ms", down.killed(naive))


def test_full_limit_in_each_process_is_caught(crowd):
    assert_caught("share", "admitted", down.share(AWAITED, crowd))


def test_limiter_that_waits_for_a_frozen_server_is_caught(naive):
    assert_caught("frozen", "hundred s", late.frozen(naive))


def test_deadline_around_everything_is_caught_by_a_blocked_loop():
    assert_caught("blocked", "degraded", late.blocked(AWAITED))


def test_deadline_around_everything_is_caught_by_busy_processors(crowd, shared_server):
    with hogs(8 * (os.cpu_count() or 1)):  # as busy as it takes for the fastest of machines to be late
        figures = exact.together(AWAITED, crowd, shared_server, runs=3)
    assert_caught("hogs", "most", figures)


def test_connection_given_up_with_each_cancellation_is_caught():
    assert_caught("cancelled", "connections each", exact.cancelled(AWAITED))


def test_retried_charge_is_caught(naive):
    assert_caught("client kill", "charged twice", exact.client_kill(naive))


def test_pool_without_an_end_is_caught_by_few_clients(crowd):
    assert_caught("max clients", "degraded", exact.max_clients(AWAITED, crowd))


def test_memory_without_an_end_is_caught_by_a_flood():
    assert_caught("flood", "bytes each beyond 300 000", full.flood(AWAITED))
