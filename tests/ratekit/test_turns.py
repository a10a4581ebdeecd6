"""Threads take turns: never too many at once, nobody left out, no turn lost."""

from __future__ import annotations

import random
import threading
import time

import pytest

from ratekit.stores.turns import Turns


def in_threads(count: int, work) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


def free_turns(turns: Turns, most: int) -> int:
    """Take all that can be taken, once what was kept in vain has become free."""
    time.sleep(0.001)
    return sum(turns.take(0.02) for _ in range(most + 1))


@pytest.mark.parametrize("pause", [0, 0.0005])
def test_never_more_threads_have_a_turn_than_may_and_no_turn_is_lost(pause):
    turns, inside, most, lock = Turns(3), 0, 0, threading.Lock()

    def work(number: int) -> None:
        nonlocal inside, most
        draw = random.Random(number)
        for _ in range(150):
            assert turns.take(20)
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(draw.random() / 20_000)
            with lock:
                inside -= 1
            turns.give_back()
            if pause and draw.random() < 0.3:
                time.sleep(pause)

    in_threads(12, work)
    assert most == 3
    assert free_turns(turns, 3) == 3


def test_threads_that_do_nothing_else_do_not_starve_the_others():
    """One that has just had its turn is nearest to the next one: it may have some more, and then it is another's turn."""
    turns, counts, end = Turns(2), [0] * 8, time.monotonic() + 1

    def work(number: int) -> None:
        while time.monotonic() < end:
            assert turns.take(20)
            counts[number] += 1
            time.sleep(0)
            turns.give_back()

    in_threads(8, work)
    assert min(counts) > max(counts) / 20, counts


def test_turn_that_nobody_comes_back_for_is_taken_by_who_waits():
    turns = Turns(1)
    assert turns.take(1)
    waited = []
    others = [threading.Thread(target=lambda: waited.append(turns.take(5))) for _ in range(2)]
    others[0].start()
    time.sleep(0.02)
    turns.give_back()
    others[0].join(timeout=5)
    others[1].start()
    time.sleep(0.02)
    turns._kept[-1] = 0.0  # a thread that was in a hurry, and has ended
    others[1].join(timeout=5)
    assert waited == [True, True]


def test_who_waits_in_vain_is_told_and_leaves_no_trace():
    turns = Turns(1)
    assert turns.take(1)
    assert not turns.take(0.01)
    turns.give_back()
    assert free_turns(turns, 1) == 1
