"""What a sliding_window_counter admits: the maximum per window to a client that asks all the time, and its overshoot.

The rule is also tried in exact arithmetic by the model, which test_models.py compares with the script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lua.engines import ENDPOINT, FUZZ, START
from lua.models import Numbers, Request, SlidingWindowCounter

from ratekit import Limit, Policy

WINDOW_US = 60_000_000


def saturate(most: int, cost: int, windows: int) -> Iterator[int]:
    """Yield when the model admits a request, in us, to a client that always asks again at the first instant that fits."""
    model, numbers, now_us = SlidingWindowCounter(), Numbers(most, most, WINDOW_US), 0
    while now_us < windows * WINDOW_US:
        if model.fits(now_us, numbers, cost):
            model.add(now_us, numbers, cost)
            yield now_us
        else:
            now_us += model.wait_us(now_us, numbers, cost)


def per_window(times_us: list[int], windows: int) -> list[int]:
    return [sum(at_us // WINDOW_US == window for at_us in times_us) for window in range(windows)]


@pytest.mark.parametrize("cost", [1, 2, 3, 7, 50])
def test_saturated_traffic_gets_the_maximum_in_each_window_of_the_model(cost):
    """However small the maximum, each window admits as many requests of a cost as fit into it."""
    for most in range(cost, 51):
        assert per_window(list(saturate(most, cost, 4)), 4) == [most // cost] * 4


@pytest.mark.parametrize("cost", [1, 3])
@pytest.mark.parametrize("most", [3, 4, 5, 10, 50])
def test_saturated_traffic_gets_the_maximum_in_each_window(bench, clock, most, cost):
    """The script admits as much as the model, and nothing a microsecond before the wait that it names."""
    policy, windows, admitted = Policy(ENDPOINT, Limit(most, 60, algorithm="sliding_window_counter")), 4, []
    start_us = clock.now_us
    while (at_us := clock.now_us - start_us) < windows * WINDOW_US:
        result = bench.send(policy, Request("check", cost))
        if result.allowed:
            admitted.append(at_us)
        else:
            clock.advance(result.retry_after - 0.000001)
            assert not bench.send(policy, Request("peek", cost)).allowed
            clock.advance(0.000001)
    assert per_window(admitted, windows) == [most // cost] * windows


@pytest.mark.parametrize("most", [1, 2])
def test_smallest_limits_are_served_in_full(bench, clock, most):
    """One or two a minute are one or two a minute, and a client waits for a window at most."""
    policy = Policy(ENDPOINT, Limit(most, 60, algorithm="sliding_window_counter"))
    admitted = 0
    for _ in range(10 * 60):
        result = bench.send(policy, Request("check"))
        admitted += result.allowed
        assert (result.retry_after or 0) <= 60
        clock.advance(1)
    assert admitted == 10 * most


def most_admitted(most: int, interval_us: int) -> int:
    """The bound that docs/algorithms.md states, for an interval no longer than the window."""
    return min(2 * most, math.floor(most + 1 + most * interval_us / WINDOW_US))


@settings(max_examples=300 * FUZZ)
@given(
    st.integers(1, 50),
    st.lists(
        st.tuples(st.sampled_from([0, 0, 1, WINDOW_US // 12, WINDOW_US // 5, WINDOW_US - 2]), st.integers(1, 4)), max_size=60
    ),
)
def test_no_interval_admits_more_than_is_stated(most, requests):
    """In no interval up to a window does the model admit more than the maximum, one, and the interval's share of it."""
    model, numbers, now_us, admitted = SlidingWindowCounter(), Numbers(most, most, WINDOW_US), 0, []
    for pause_us, cost in requests:
        now_us += pause_us
        if model.fits(now_us, numbers, cost):
            model.add(now_us, numbers, cost)
            admitted.append((now_us, cost))
    for start_us, _ in admitted:
        within = [(at_us - start_us, cost) for at_us, cost in admitted if 0 <= at_us - start_us < WINDOW_US]
        for length_us, _ in within:
            total = sum(cost for at_us, cost in within if at_us <= length_us)
            assert total <= most_admitted(most, length_us)


@pytest.mark.parametrize("most", range(1, 51))
def test_twice_the_maximum_passes_within_a_window_that_is_chosen_against_it(bench, clock, most):
    """The stated bound is reached: all at the end of one window, then as fast as the next one admits."""
    policy = Policy(ENDPOINT, Limit(most, 60, algorithm="sliding_window_counter"))
    clock.set(START)
    bench.send(policy, Request("charge", most))
    clock.advance(119.999999)
    end, admitted = clock.now + 60, []
    while clock.now < end:
        result = bench.send(policy, Request("check"))
        admitted += [clock.now] if result.allowed else []
        clock.advance(result.retry_after or 0)
    assert len(admitted) == 2 * most
