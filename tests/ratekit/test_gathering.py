"""Work that is asked for in one turn of an event loop is done in one go, and everybody gets the own answer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ratekit import AsyncRateLimiter, RateLimitMode, events
from ratekit.addresses import TrustedProxies
from ratekit.asgi import RateLimitMiddleware
from ratekit.gathering import Gathering
from ratekit.requests import AsgiRequest
from ratekit.stores.memory import MemoryStore


async def _ask(gathering, number):
    item = [number, None, None]
    await gathering.do(item)
    return item[1:]


def _doing(done):
    """Return work that takes note of itself, and leaves ten times the number."""

    def work(item):
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


async def test_error_is_told_to_who_has_asked_and_to_nobody_else():
    def divide(item):
        item[1] = 6 // item[0]

    gathering = Gathering(divide)
    first, second, third = await asyncio.gather(*(_ask(gathering, divisor) for divisor in (1, 0, 2)))
    assert (first, third) == ([6, None], [3, None])
    assert isinstance(second[1], ZeroDivisionError)


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
    threads: dict[int, set[int]] = {}

    def note_thread(item):
        item[1] = threading.get_ident()

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


async def _answers(middleware, count):
    """Send some requests at once; return the status of each, with what is told to remain."""

    async def one():
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("203.0.113.9", 1)}
        await middleware(scope, _receive, send)
        (remaining,) = [value for name, value in sent[0]["headers"] if name.lower() == b"ratelimit-remaining"]
        return sent[0]["status"], int(remaining)

    return await asyncio.gather(*(one() for _ in range(count)))


async def _receive():
    return {"type": "http.request"}


async def _app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"rateLIMIT-Remaining", b"1")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("listening", [False, True])
async def test_requests_at_once_are_admitted_exactly_and_told_their_own_figures(listening):
    heard = []
    remove = events.decisions.add(heard.append) if listening else lambda: None
    try:
        middleware = RateLimitMiddleware(_app, store=MemoryStore(), default="20/min")
        first = await _answers(middleware, 1)  # from here on it is known what there is to check
        rest = await _answers(middleware, 30)
    finally:
        remove()
    assert first == [(200, 19)]
    assert rest == [(200, left) for left in range(18, -1, -1)] + [(429, 0)] * 11
    assert len(heard) == (31 if listening else 0)


async def test_refused_request_is_counted_once():
    middleware = RateLimitMiddleware(_app, store=MemoryStore(), default=["1/min", "100/h shadow"])
    await _answers(middleware, 1)
    await _answers(middleware, 4)
    (check, _), *_ = middleware.guard.checks(_request(), middleware.guard.rule("GET", "/"))
    alone = AsyncRateLimiter(MemoryStore())
    for _ in range(5):
        await alone.check(check.policy, check.subject, endpoint=check.endpoint)
    peeked = [
        await limiter.peek(check.policy, check.subject, endpoint=check.endpoint) for limiter in (middleware.limiter, alone)
    ]
    assert [tier.used for tier in peeked[0].tiers] == [tier.used for tier in peeked[1].tiers]


def _request():
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("203.0.113.9", 1)}
    return AsgiRequest(scope, TrustedProxies())


async def test_monitor_mode_lets_pass_and_keeps_counting():
    middleware = RateLimitMiddleware(_app, store=MemoryStore(), default="2/min", mode=RateLimitMode.MONITOR)
    assert [status for status, _ in await _answers(middleware, 5)] == [200] * 5


async def test_rule_that_is_closed_answers_503_where_a_key_holds_something_else():
    store = MemoryStore()
    middleware = RateLimitMiddleware(_app, store=store, default="5/min", on_outage="closed")
    await _answers(middleware, 1)
    (_, call), *_ = middleware.guard.checks(_request(), middleware.guard.rule("GET", "/"))
    for key in call.state_keys:
        store.execute("DEL", key)
        store.execute("ZADD", key, 1, "x")
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("203.0.113.9", 1)}
    await middleware(scope, _receive, send)
    assert sent[0]["status"] == 503
