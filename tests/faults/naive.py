"""A limiter as one writes it on a first day: the detectors of this suite have to catch it.

Its deadline is one of the wall clock around everything, its fallback has the full limit, no end of memory and knows nothing
of what the store said before, and its client has the pool and the retries that redis-py has by default.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio

from ratekit import Policy
from ratekit.core.protocol import Call, decode, encode, pack
from ratekit.stores import script


@dataclass(frozen=True, slots=True)
class Guess:
    """What the fallback answers."""

    allowed: bool
    request_count: int
    degraded: str


class _Naive:
    def __init__(self, url: str, *, deadline: float = 0.05, given_up: bool = False, **unused: Any) -> None:
        self._deadline = deadline
        self._given_up = given_up  # on the store: every answer is a guess
        self._counts: dict[bytes, int] = {}
        self._client = self._connect(url)

    def _guess(self, call: Call, error: Exception) -> Guess:
        key = call.keys[-1]
        allowed = self._counts.get(key, 0) + call.cost <= call.compiled.limits[0].max_requests
        self._counts[key] = self._counts.get(key, 0) + call.cost * allowed
        return Guess(allowed, self._counts[key], type(error).__name__)


def _arguments(call: Call) -> tuple[Any, ...]:
    keys, items = pack([call])
    return (script.read("ratekit"), len(keys), *keys, *items)


class NaiveLimiter(_Naive):
    """Waits."""

    def _connect(self, url: str) -> Any:
        return redis.Redis(port=urlsplit(url).port or 6379, socket_timeout=self._deadline)

    def check(self, policy: Policy, subject: str, *, cost: int = 1) -> Any:
        call = encode(policy, subject, cost=cost)
        if self._given_up:
            return self._guess(call, ConnectionError())
        try:
            return decode(call, self._client.eval(*_arguments(call)))
        except (redis.RedisError, OSError) as error:
            return self._guess(call, error)

    def close(self) -> None:
        self._client.close()


class AsyncNaiveLimiter(_Naive):
    """Awaits."""

    def _connect(self, url: str) -> Any:
        return redis.asyncio.Redis(port=urlsplit(url).port or 6379)

    async def check(self, policy: Policy, subject: str, *, cost: int = 1) -> Any:
        call = encode(policy, subject, cost=cost)
        if self._given_up:
            return self._guess(call, ConnectionError())
        try:
            return decode(call, await asyncio.wait_for(self._client.eval(*_arguments(call)), self._deadline))
        except (redis.RedisError, OSError) as error:
            return self._guess(call, error)

    async def aclose(self) -> None:
        await self._client.aclose()
