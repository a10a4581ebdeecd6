"""Calls that are asked for together: everybody gets his own answer, and nobody pays for another's fate."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import signal
from concurrent.futures import ProcessPoolExecutor

import pytest

from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.core.protocol import encode
from ratekit.overrides import set_rate_limit_override
from support.servers import start_server, stop_server, wheel_server

PROCESSES, TASKS, CHECKS = 8, 64, 5
MOST = 1000
CROWD = Policy("crowd", Limit(MOST, 3600))


async def evalsha_calls(client) -> int:
    return (await client.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"]


async def test_checks_that_come_while_a_call_is_under_way_go_out_in_the_next(redis_server):
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        await limiter.check(CROWD, "u")
        client = await limiter.store.client()
        await client.config_resetstat()
        await asyncio.gather(*(limiter.check(CROWD, f"u{number}") for number in range(60)))
        assert await evalsha_calls(client) == 3  # the first one waits for nobody; 2 keys each, at most 64 in a call
        await client.config_resetstat()
        await asyncio.gather(*(limiter.check(CROWD, f"u{number}") for number in range(1000)))
        assert await evalsha_calls(client) == 1 + 32


async def test_every_caller_gets_his_own_answer_whoever_is_cancelled(redis_server):
    """Each task has a subject, a limit and a cost of its own, by which its answers are known."""
    draw = random.Random(1)

    async def forget_script(client):
        for _ in range(20):
            await client.script_flush()
            await asyncio.sleep(0.002)

    async def one(limiter, number):
        policy, cost = Policy(f"own{number}", Limit(10**6 + number, 3600)), number + 1
        for turn in range(1, CHECKS + 1):
            answer = await limiter.check(policy, f"user:{number}", cost=cost)
            assert (answer.request_count, answer.max_requests, answer.degraded) == (cost * turn, 10**6 + number, None)
            await asyncio.sleep(draw.random() / 500)

    async with AsyncRateLimiter(redis_server.url, deadline=10) as limiter:
        flushing = asyncio.ensure_future(forget_script(await limiter.store.client()))
        tasks = [asyncio.ensure_future(one(limiter, number)) for number in range(300)]
        for task in draw.sample(tasks, 150):
            await asyncio.sleep(draw.random() / 2000)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await flushing
    assert {type(result) for result in results} == {type(None), asyncio.CancelledError}
    assert sum(result is None for result in results) >= 150


async def test_order_of_the_checks_of_one_key_is_kept(redis_server):
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        answers = await asyncio.gather(*(limiter.check(CROWD, "u") for _ in range(500)))
    assert [answer.request_count for answer in answers] == list(range(1, 501))


async def test_fault_of_one_check_is_not_its_neighbours(redis_server):
    with redis_server.client() as client:
        client.set("ratelimit:crowd:{bad}:3600s", "text")
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        subjects = ["a", "bad", "b"] * 10
        answers = await asyncio.gather(*(limiter.check(CROWD, subject) for subject in subjects))
        assert [answer.degraded for answer in answers] == [None, "wrongtype", None] * 10
        assert (await limiter.peek(CROWD, "a")).request_count == 10


async def test_check_that_cannot_be_encoded_fails_alone(redis_server):
    slots = Policy("slots", Limit(100, 60, algorithm="concurrency"))
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        calls = [encode(slots, f"u{number}", operation="acquire", slot=f"s{number}") for number in range(20)]
        calls[7] = calls[7]._replace(slot="\ud800")
        answers = await asyncio.gather(*(limiter.decide(call) for call in calls), return_exceptions=True)
    assert isinstance(answers.pop(7), UnicodeEncodeError)
    assert all(answer.allowed and answer.degraded is None for answer in answers)


async def hammer(url: str, cached: bool) -> tuple[int, int, int]:
    """Check with many tasks, some of them cancelled: how many were admitted, how many refused, of how many nobody knows."""
    draw, known, unknown = random.Random(), [], 0
    async with AsyncRateLimiter(url, deadline=0.2, on_outage="closed", refusal_cache=cached) as limiter:

        async def one() -> None:
            for _ in range(CHECKS):
                known.append((await limiter.check(CROWD, "u")).allowed)
                await asyncio.sleep(draw.random() / 100)

        tasks = [asyncio.ensure_future(one()) for _ in range(TASKS)]
        for task in draw.sample(tasks, TASKS // 4):
            await asyncio.sleep(draw.random() / 200)
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        unknown = sum(end is not None for end in ends)
        assert all(isinstance(end, asyncio.CancelledError | RateLimitUnavailable | None) for end in ends)
    return sum(known), len(known) - sum(known), unknown


def work(url: str, cached: bool) -> tuple[int, int, int]:
    return asyncio.run(hammer(url, cached))


@pytest.mark.parametrize("cached", [False, True])
def test_exactly_the_maximum_is_spent_whatever_happens_in_between(cached):
    """Checks are cancelled, the script is forgotten, the server stands still for longer than the deadline."""
    server = start_server(wheel_server())
    try:
        with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(abs, range(PROCESSES)))  # all have started
            runs = [pool.submit(work, server.url, cached) for _ in range(PROCESSES)]
            with server.client() as client:
                for turn in range(20):
                    client.script_flush()
                    if turn == 10:
                        server.process.send_signal(signal.SIGSTOP)
                        signal.sigtimedwait([], 0.3)
                        server.process.send_signal(signal.SIGCONT)
            figures = [run.result(timeout=60) for run in runs]
        admitted, refused, unknown = (sum(column) for column in zip(*figures, strict=True))
        with RateLimiter(server.url, deadline=10) as limiter:
            used = limiter.peek(CROWD, "u").request_count
        assert admitted <= used <= MOST
        assert used - admitted <= unknown
        assert used == MOST or not refused
        assert admitted > MOST // 2
    finally:
        server.process.send_signal(signal.SIGCONT)
        stop_server(server)


async def test_refusal_cache_forgets_when_overrides_are_raised_in_between(redis_server):
    """In one process a raise counts at once; elsewhere within a second, which the clock of this test does not let pass."""
    policy = Policy("raised", Limit(10, 3600))
    async with AsyncRateLimiter(redis_server.url, deadline=5, refusal_cache=True) as limiter:
        admitted = 0
        for most in (10, 15, 40):
            await set_rate_limit_override(limiter, endpoint="raised", subject="u", max_requests=most)
            answers = await asyncio.gather(*(limiter.check(policy, "u") for _ in range(100)))
            again = await asyncio.gather(*(limiter.check(policy, "u") for _ in range(100)))
            admitted += sum(answer.allowed for answer in answers)
            assert admitted == most
            assert not any(answer.allowed for answer in again)
