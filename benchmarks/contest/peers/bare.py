"""INCR through redis-py: what a call costs that decides nothing. Several limits are INCRs in one pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from benchmarks.contest.loads import Answer, AsyncCheck, Check, Limit, Load
from benchmarks.contest.peers.pools import async_pool

_DONE: Answer = (True, None, None)


async def open_async(url: str, load: Load) -> AsyncCheck:
    """Await INCR."""
    client: Any = redis.asyncio.Redis(connection_pool=async_pool(url, load))

    async def one(subject: str) -> Answer:
        await client.incr(subject)
        return _DONE

    async def several(subject: str) -> Answer:
        await _pipeline(client, subject, load.limits).execute()
        return _DONE

    return one if len(load.limits) == 1 else several


def open_sync(url: str, load: Load) -> Check:
    """Wait for INCR."""
    client: Any = redis.Redis.from_url(url)

    def one(subject: str) -> Answer:
        client.incr(subject)
        return _DONE

    def several(subject: str) -> Answer:
        _pipeline(client, subject, load.limits).execute()
        return _DONE

    return one if len(load.limits) == 1 else several


def _pipeline(client: Any, subject: str, limits: Sequence[Limit]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for _, window in limits:
        pipeline.incr(f"{subject}:{window}")
    return pipeline
