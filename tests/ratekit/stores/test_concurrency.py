"""The guarantee: never one admission too many, never a false refusal, whatever the concurrency."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter

PROCESSES, TASKS = 8, 50
CLOCK_US = 1_800_000_000_000_000
TIERS = [
    Limit(500, 3600, name="a"),
    Limit(700, 7200, name="b", burst=700),
    Limit(600, 60, name="c", algorithm="sliding_window_log"),
]
CASES = {
    "fixed_window": (Policy("p", Limit(500, 3600)), 1, 500),
    "sliding_window_counter": (Policy("p", Limit(500, 3600, algorithm="sliding_window_counter")), 1, 500),
    "sliding_window_log": (Policy("p", Limit(500, 3600, algorithm="sliding_window_log")), 1, 500),
    "token_bucket": (Policy("p", Limit(500, 3600, algorithm="token_bucket")), 1, 500),
    "tiers": (Policy("p", TIERS), 1, 500),
    "costs": (Policy("p", Limit(500, 3600)), 7, 71),
}


async def check_many(url: str, policy: Policy, cost: int) -> int:
    from ratekit.core import clock

    clock.source = lambda: CLOCK_US  # frozen: nothing refills
    async with AsyncRateLimiter(url, deadline=30) as limiter:

        async def task() -> int:
            return sum([(await limiter.check(policy, "u", cost=cost)).allowed for _ in range(3)])

        return sum(await asyncio.gather(*(task() for _ in range(TASKS))))


async def hold_many(url: str, policy: Policy, number: int) -> int:
    async with AsyncRateLimiter(url, deadline=30) as limiter:
        ids = [f"{number}-{index}" for index in range(TASKS)]
        results = await asyncio.gather(*(limiter.acquire(policy, "u", slot) for slot in ids for _ in range(2)))
        return sum(result.allowed for result in results) // 2


def work(url: str, name: str) -> int:
    policy, cost, _ = CASES[name]
    return asyncio.run(check_many(url, policy, cost))


def hold(url: str, number: int) -> int:
    return asyncio.run(hold_many(url, Policy("p", Limit(100, 600, algorithm="concurrency")), number))


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize("name", CASES)
def test_processes_and_tasks_together_admit_exactly_the_maximum(server, pool, name):
    policy, cost, expected = CASES[name]
    assert sum(pool.map(work, [server.url] * PROCESSES, [name] * PROCESSES)) == expected
    with RateLimiter(server.url, deadline=30) as limiter:
        figures = limiter.peek(policy, "u").tiers
        assert figures[0].used == expected * cost


def test_processes_and_tasks_together_hold_exactly_as_many_slots(server, pool):
    assert sum(pool.map(hold, [server.url] * PROCESSES, range(PROCESSES))) == 100


def test_override_set_while_others_check_counts_from_the_next_request(server):
    policy = Policy("p", Limit(10**6, 600))
    with server.client() as client, RateLimiter(server.url, deadline=30) as limiter:
        for most in (5, 10**6, 0, 7):
            client.hset("ratelimit_override:p:{u}", mapping={"max_requests": most})
            assert limiter.check(policy, "u").max_requests == most
