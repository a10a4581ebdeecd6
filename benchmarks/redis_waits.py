"""Checks in Redis, one after the other, against a bare INCR through redis-py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import redis
import redis.asyncio

from benchmarks.policies import ONE_TIER, expect_admitted
from benchmarks.rounds import Case, Pair, Row, measure, statement
from benchmarks.server import running
from benchmarks.settings import Settings
from ratekit import AsyncRateLimiter, RateLimiter

_SYNC_TARGET = 1.3
_ASYNC_TARGET = 1.4
_CALLS = 150
_CLIENT: dict[str, Any] = {"protocol": 2, "socket_timeout": 5}  # the faster protocol, as ratekit's own
_OPTIONS: dict[str, Any] = {"deadline": 5, "on_outage": "closed"}  # noise trips no deadline, and no outage goes unnoticed


def compare_waits(settings: Settings) -> list[Row]:
    """Compare the time of a check with that of an INCR, waiting and awaiting."""
    with (
        running(settings.server) as url,
        RateLimiter(url, **_OPTIONS) as limiter,
        redis.Redis.from_url(url, **_CLIENT) as client,
        asyncio.Runner() as runner,
    ):
        async_client = redis.asyncio.Redis.from_url(url, **_CLIENT)
        pairs = [_sync_pair(limiter, client), _async_pair(AsyncRateLimiter(url, **_OPTIONS), async_client, runner)]
        rows = measure("redis one after the other", pairs, settings.rounds)
        runner.run(async_client.aclose())
        return rows


def _sync_pair(limiter: RateLimiter, client: Any) -> Pair:
    names = {"check": limiter.check, "incr": client.incr, "policy": ONE_TIER}
    expect_admitted(limiter.check(ONE_TIER, "sync"))
    check = statement("check(policy, 'sync')", names, times=_CALLS)
    incr = statement("incr('sync')", names, times=_CALLS)
    return Pair("check / INCR, sync", check, incr, _SYNC_TARGET)


def _async_pair(limiter: AsyncRateLimiter, client: Any, runner: asyncio.Runner) -> Pair:
    expect_admitted(runner.run(limiter.check(ONE_TIER, "async")))
    check = _awaiting(lambda: limiter.check(ONE_TIER, "async"), runner)
    incr = _awaiting(lambda: client.incr("async"), runner)
    return Pair("check / INCR, async", check, incr, _ASYNC_TARGET)


def _awaiting(call: Callable[[], Awaitable[object]], runner: asyncio.Runner) -> Case:
    async def block() -> float:
        start = perf_counter()
        for _ in range(_CALLS):
            await call()
        return (perf_counter() - start) / _CALLS

    return lambda: runner.run(block())
