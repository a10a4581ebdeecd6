"""limits: hit() of its fixed window answers a bool; the other figures are two more commands, by get_window_stats()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage as AsyncStorage
from limits.aio.strategies import FixedWindowRateLimiter as AsyncLimiter
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter

from benchmarks.contest.loads import MOST_CONNECTIONS, Answer, AsyncCheck, Check, Limit, Load
from benchmarks.contest.peers.pools import WAIT_SECONDS, async_pool


async def open_redis_py(url: str, load: Load) -> AsyncCheck:
    """Use redis-py, as ratekit does."""
    return _hitting(_async_limiter(url, implementation="redispy", connection_pool=async_pool(url, load)), load.limits)


async def open_coredis(url: str, load: Load) -> AsyncCheck:
    """Use coredis, the client that limits takes unless told."""
    from coredis import BlockingConnectionPool

    pool = BlockingConnectionPool.from_url(url, max_connections=MOST_CONNECTIONS, timeout=WAIT_SECONDS)
    return _hitting(_async_limiter(url, connection_pool=pool), load.limits)


async def open_with_figures(url: str, load: Load) -> AsyncCheck:
    """Use redis-py, and ask for what remains as well."""
    limiter = _async_limiter(url, implementation="redispy", connection_pool=async_pool(url, load))
    items = _items(load.limits)

    async def check(subject: str) -> Answer:
        allowed, remaining, reset = True, None, None
        for item in items:
            allowed = allowed and await limiter.hit(item, subject)
            reset, remaining = await limiter.get_window_stats(item, subject)
        return allowed, remaining, reset

    return check


def open_sync(url: str, load: Load) -> Check:
    """Use redis-py, waiting."""
    limiter, items = FixedWindowRateLimiter(RedisStorage(url)), _items(load.limits)

    def check(subject: str) -> Answer:
        return all(limiter.hit(item, subject) for item in items), None, None

    return check


def _async_limiter(url: str, **options: Any) -> AsyncLimiter:
    return AsyncLimiter(AsyncStorage(f"async+{url}", **options))


def _hitting(limiter: AsyncLimiter, limits: Sequence[Limit]) -> AsyncCheck:
    items = _items(limits)

    async def check(subject: str) -> Answer:
        allowed = True
        for item in items:
            allowed = allowed and await limiter.hit(item, subject)
        return allowed, None, None

    return check


def _items(limits: Sequence[Limit]) -> list[RateLimitItemPerSecond]:
    return [RateLimitItemPerSecond(most, window) for most, window in limits]
