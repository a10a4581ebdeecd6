"""pyrate-limiter: a bucket in Redis for each subject, by a factory as its documentation has it; it keeps every request."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from time import time_ns
from typing import Any

import redis
from pyrate_limiter import BucketFactory, Limiter, Rate, RateItem, RedisBucket
from pyrate_limiter.buckets.redis_bucket import LuaScript

from benchmarks.contest.loads import Answer, AsyncCheck, Check, Limit, Load
from benchmarks.contest.peers.pools import async_pool


class BucketForEach(BucketFactory):
    """Makes a bucket when a subject is seen for the first time."""

    def __init__(self, client: Any, script: str, limits: Sequence[Limit]) -> None:
        self._client = client
        self._script = script
        self._rates = [Rate(most, window * 1000) for most, window in limits]
        self._buckets: dict[str, RedisBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        """Say when a request came."""
        return RateItem(name, time_ns() // 1_000_000, weight=weight)

    def get(self, item: RateItem) -> RedisBucket:
        """Return the bucket of a subject."""
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = RedisBucket(self._rates, self._client, f"pyrate:{item.name}", self._script)
            self.schedule_leak(bucket)
        return bucket


async def async_limiter(url: str, load: Load) -> Limiter:
    """Make a limiter to be awaited."""
    client: Any = redis.asyncio.Redis(connection_pool=async_pool(url, load))
    return Limiter(BucketForEach(client, await client.script_load(LuaScript.PUT_ITEM), load.limits))


async def open_async(url: str, load: Load) -> AsyncCheck:
    """Await try_acquire_async(), which does not wait for the limit."""
    limiter = await async_limiter(url, load)

    async def check(subject: str) -> Answer:
        return await limiter.try_acquire_async(subject, blocking=False), None, None

    return check


def open_sync(url: str, load: Load) -> Check:
    """Use try_acquire(), by one thread at a time: it refuses, whatever the limit, if another is at it."""
    client: Any = redis.Redis.from_url(url)
    limiter, lock = Limiter(BucketForEach(client, client.script_load(LuaScript.PUT_ITEM), load.limits)), Lock()

    def check(subject: str) -> Answer:
        with lock:
            return bool(limiter.try_acquire(subject, blocking=False)), None, None

    return check
