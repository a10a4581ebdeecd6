"""Work that is asked for in one turn of an event loop is done in one go, and everybody gets the own answer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ratekit.gathering import Gathering


async def _ask(gathering, number):
    item = [number, None, None]
    await gathering.do(item)
    return item[1:]


def _doing(done):
    """Return work that takes note of itself, and leaves ten times the number."""

    def work(items):
        for item in items:
            done.append(f"does {item[0]}")
            item[1] = item[0] * 10

    return Gathering(work)


async def test_work_of_one_turn_is_done_in_one_go_and_in_order():
    done = []
    gathering = _doing(done)

    async def ask(number):
        done.append(f"asks {number}")
        answer, _ = await _ask(gathering, number)
        done.append(f"has {answer}")

    await asyncio.gather(*(ask(number) for number in range(3)))
    asked, did = [f"asks {number}" for number in range(3)], [f"does {number}" for number in range(3)]
    assert done == [*asked, *did, "has 0", "has 10", "has 20"]


async def test_error_is_told_to_all_who_have_asked_in_that_turn_and_to_nobody_else():
    def divide(items):
        for item in items:
            item[1] = 6 // item[0]

    gathering = Gathering(divide)
    answers = await asyncio.gather(*(_ask(gathering, divisor) for divisor in (1, 0, 2)))
    assert [type(error) for _, (error, _) in answers] == [ZeroDivisionError] * 3
    assert await _ask(gathering, 2) == [3, None]


@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_who_is_cancelled_harms_no_neighbour(cancelled):
    gathering = _doing([])
    tasks = [asyncio.ensure_future(_ask(gathering, number)) for number in range(3)]
    await asyncio.sleep(0)
    tasks[cancelled].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers.pop(cancelled), asyncio.CancelledError)
    assert answers == [[number * 10, None] for number in range(3) if number != cancelled]
    assert await _ask(gathering, 7) == [70, None]


async def test_work_is_not_done_for_who_is_cancelled_before():
    done = []
    gathering = _doing(done)
    tasks = [asyncio.ensure_future(_ask(gathering, number)) for number in (1, 2, 2)]  # two ask for the same
    await asyncio.sleep(0)
    for task in tasks[:2]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert done == ["does 2"]
    assert answers[2] == [20, None]


async def test_nothing_is_kept_of_what_all_have_given_up():
    done = []
    gathering = _doing(done)
    task = asyncio.ensure_future(_ask(gathering, 1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not gathering._asked
    await _ask(gathering, 2)
    assert done == ["does 2"]


def test_event_loops_in_several_threads_do_their_own_work():
    threads: dict[int, set[threading.Thread]] = {}

    def note_thread(items):
        for item in items:
            item[1] = threading.current_thread()  # the number of a thread that has ended is given to another

    gathering = Gathering(note_thread)

    async def many(name):
        for _ in range(200):
            answers = await asyncio.gather(*(_ask(gathering, 0) for _ in range(5)))
            threads.setdefault(name, set()).update(thread for thread, _ in answers)

    workers = [threading.Thread(target=lambda name=name: asyncio.run(many(name))) for name in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert len(threads) == 4
    assert all(len(where) == 1 for where in threads.values())
    assert len(set().union(*threads.values())) == 4
    assert not gathering._asked


def test_work_is_done_at_once_without_an_event_loop_of_asyncio():
    coroutine = _ask(_doing([]), 5)
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    assert end.value.value == [50, None]
