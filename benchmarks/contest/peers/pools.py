"""The pools that contestants get which await redis-py; those that wait use its own, which is enough for 100 threads."""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio

from benchmarks.contest.loads import MOST_CONNECTIONS, Load

WAIT_SECONDS = 30


class WaitingPool(redis.asyncio.ConnectionPool):
    """redis-py's ordinary pool, which raises when all its connections are in use, but that it waits then, in order.

    Its BlockingConnectionPool waits too, but leaves some callers waiting while others come again and again.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(max_connections=MOST_CONNECTIONS, **options)
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)

    async def get_connection(self, *names: Any, **options: Any) -> Any:
        """Wait for a connection."""
        await self._free.acquire()
        try:
            return await super().get_connection(*names, **options)
        except BaseException:
            self._free.release()
            raise

    async def release(self, connection: Any) -> None:
        """Give a connection back."""
        await super().release(connection)
        self._free.release()


def async_pool_class(load: Load) -> str:
    """Return the ordinary pool, the fastest, where it is enough; else one that waits."""
    return f"{__name__}.WaitingPool" if load.is_crowd else "redis.asyncio.ConnectionPool"


def async_pool(url: str, load: Load) -> Any:
    """Make a pool for a client."""
    return (WaitingPool if load.is_crowd else redis.asyncio.ConnectionPool).from_url(url)
