"""Writes reach other instances at once, by Postgres or else by Redis; what is lost on the way is polled."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from support import databases
from tests.ratekit_service.conftest import running

NEVER = 600.0  # seconds between two polls: whatever is seen earlier was told


async def seconds_until(condition, most: float = 20) -> float:
    begun = time.monotonic()
    while not await condition():
        assert time.monotonic() - begun < most
        await asyncio.sleep(0.002)
    return time.monotonic() - begun


def shown(caller, service, most: int):
    """Return a condition: another instance decides by a limit of so many."""
    body, key = {"resource": "r", "subject": "s", "cost": 0}, {"x-api-key": caller.key}

    async def is_shown() -> bool:
        answer = await service.client.post("/v1/check", json=body, headers=key)
        return bool(answer.status_code == 200 and answer.json()["limit"] == most)

    return is_shown


def listeners(redis_server) -> int:
    with redis_server.client() as client:
        return len(client.client_list(_type="pubsub"))


async def three(stack: AsyncExitStack, url: str, store: str, poll: float):
    started = [await stack.enter_async_context(running(url, store, poll_seconds=poll)) for _ in range(3)]
    return started[0], started[1:]


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb"])
async def test_write_reaches_others_long_before_they_poll(redis_server, tmp_path, kind):
    url = databases.new_database(kind, tmp_path)
    async with AsyncExitStack() as stack:
        first, others = await three(stack, url, redis_server.url, NEVER)
        if kind != "postgres":
            await seconds_until(lambda: asyncio.to_thread(lambda: listeners(redis_server) == 3))
        else:
            await asyncio.sleep(0.5)  # until all listen, which the first change below does not need
        caller = await first.caller(limits=["5/min"])
        for most in (6, 7, 8):
            await first.admin("PATCH", f"/plans/{caller.plan_id}", {"limits": [f"{most}/min"]})
            for other in others:
                assert await seconds_until(shown(caller, other, most)) < 2


async def test_poll_brings_what_a_lost_message_does_not(redis_server, tmp_path):
    url = databases.new_database("sqlite", tmp_path)
    async with AsyncExitStack() as stack:
        first, others = await three(stack, url, redis_server.url, 0.2)
        caller = await first.caller(limits=["5/min"])
        with redis_server.client() as client:
            client.client_kill_filter(_type="pubsub")
        await first.admin("PATCH", f"/plans/{caller.plan_id}", {"limits": ["6/min"]})
        for other in others:
            assert await seconds_until(shown(caller, other, 6)) < 2


async def test_subscription_ends_with_its_service(redis_server, tmp_path):
    async with running(databases.new_database("sqlite", tmp_path), redis_server.url):
        await seconds_until(lambda: asyncio.to_thread(lambda: listeners(redis_server) == 1))
    await seconds_until(lambda: asyncio.to_thread(lambda: listeners(redis_server) == 0))
