"""throttled-py: limit() of its fixed window answers with all figures; several limits are several calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from throttled import RateLimiterType, Throttled, rate_limiter, store
from throttled.asyncio import Throttled as AsyncThrottled
from throttled.asyncio import store as async_store

from benchmarks.contest.loads import Answer, AsyncCheck, Check, Limit, Load
from benchmarks.contest.peers.pools import async_pool_class

_KIND = RateLimiterType.FIXED_WINDOW.value


async def open_async(url: str, load: Load) -> AsyncCheck:
    """Await limit()."""
    where = async_store.RedisStore(server=url, options={"CONNECTION_POOL_CLASS": async_pool_class(load)})
    limiters = [
        AsyncThrottled(using=_KIND, quota=_quota(limit), store=where, key_prefix=f"t{limit[1]}") for limit in load.limits
    ]

    async def check(subject: str) -> Answer:
        for limiter in limiters:
            result = await limiter.limit(subject)
            if result.limited:
                break
        return not result.limited, result.state.remaining, result.state.reset_after

    return check


def open_sync(url: str, load: Load) -> Check:
    """Wait for limit()."""
    where = store.RedisStore(server=url)
    limiters = [Throttled(using=_KIND, quota=_quota(limit), store=where, key_prefix=f"t{limit[1]}") for limit in load.limits]

    def check(subject: str) -> Answer:
        for limiter in limiters:
            result = limiter.limit(subject)
            if result.limited:
                break
        return not result.limited, result.state.remaining, result.state.reset_after

    return check


def _quota(limit: Limit) -> Any:
    return rate_limiter.per_duration(timedelta(seconds=limit[1]), limit[0])
