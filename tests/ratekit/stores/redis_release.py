"""Uses Redis stores with the release of redis-py that is found first. test_redis_releases.py runs it with a server's URL."""

from __future__ import annotations

import asyncio
import sys

import redis
import redis.asyncio

from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter

TEN = Policy("ten", Limit(10, 600))


async def use_private_attributes(url: str) -> None:
    """What ratekit.stores.redis.connection takes from redis-py, where there is no public way."""
    client = redis.asyncio.Redis.from_url(url)
    assert await client.ping()
    (connection,) = client.connection_pool._available_connections
    assert isinstance(connection._writer.transport, asyncio.Transport)
    assert isinstance(connection._reader, asyncio.StreamReader)
    await client.aclose()
    await client.connection_pool.disconnect()


async def check_many(url: str) -> int:
    async with AsyncRateLimiter(url, deadline=5) as limiter:
        answers = await asyncio.gather(*(limiter.check(TEN, "async") for _ in range(100)))
        assert {answer.degraded for answer in answers} == {None}
        assert await limiter.store.execute_many([("PING",), ("DBSIZE",)]) == [True, 1]
    return sum(answer.allowed for answer in answers)


def check_on_closed_loops(url: str) -> int:
    limiter = AsyncRateLimiter(url, deadline=5)
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(limiter.check(TEN, "loops"))
        loop.close()
    return asyncio.run(limiter.check(TEN, "loops")).request_count


def check_in_turn(url: str) -> int:
    with RateLimiter(url, deadline=5) as limiter:
        answers = [limiter.check(TEN, "sync") for _ in range(20)]
        assert {answer.degraded for answer in answers} == {None}
        assert limiter.store.execute_many([("PING",), ("DBSIZE",)]) == [True, 3]
    return sum(answer.allowed for answer in answers)


if __name__ == "__main__":
    asyncio.run(use_private_attributes(sys.argv[1]))
    assert asyncio.run(check_many(sys.argv[1])) == 10
    assert check_on_closed_loops(sys.argv[1]) == 4
    assert check_in_turn(sys.argv[1]) == 10
    sys.stdout.write(f"all is well with {redis.__version__}")
