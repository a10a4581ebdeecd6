"""ratekit as an application uses it: a URL, and its own four connections."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

from benchmarks.contest.loads import Answer, AsyncCheck, Check, Limit, Load
from ratekit import AsyncRateLimiter, Policy, RateLimiter
from ratekit import Limit as Rule

_OPTIONS: dict[str, Any] = {"deadline": 5, "on_outage": "closed"}  # noise trips no deadline, and no outage goes unnoticed
_CACHE = "refusal_cache"


async def open_async(url: str, load: Load) -> AsyncCheck:
    """Await AsyncRateLimiter.check."""
    return _awaiting(AsyncRateLimiter(url, **_OPTIONS), load.limits)


async def open_async_cached(url: str, load: Load) -> AsyncCheck:
    """Do the same, with refusals kept in the process."""
    return _awaiting(AsyncRateLimiter(url, **_OPTIONS, **_cache_of(AsyncRateLimiter)), load.limits)


def open_sync(url: str, load: Load) -> Check:
    """Wait for RateLimiter.check."""
    return _waiting(RateLimiter(url, **_OPTIONS), load.limits)


def open_sync_cached(url: str, load: Load) -> Check:
    """Do the same, with refusals kept in the process."""
    return _waiting(RateLimiter(url, **_OPTIONS, **_cache_of(RateLimiter)), load.limits)


def _awaiting(limiter: AsyncRateLimiter, limits: Sequence[Limit]) -> AsyncCheck:
    policy = _policy(limits)

    async def check(subject: str) -> Answer:
        result = await limiter.check(policy, subject)
        return result.allowed, result.remaining, result.reset_at

    return check


def _waiting(limiter: RateLimiter, limits: Sequence[Limit]) -> Check:
    policy = _policy(limits)

    def check(subject: str) -> Answer:
        result = limiter.check(policy, subject)
        return result.allowed, result.remaining, result.reset_at

    return check


def _policy(limits: Sequence[Limit]) -> Policy:
    return Policy("contest", [Rule(most, window) for most, window in limits])


def _cache_of(limiter: type[Any]) -> dict[str, Any]:
    if _CACHE not in signature(limiter).parameters:
        raise SystemExit(f"not available: {limiter.__name__} has no {_CACHE}")
    return {_CACHE: True}
