"""Counters of a subject on an endpoint, found by their keys: no policy needs to be known.

The first argument of `list_counters` and `delete_counters` is that of the functions of ratekit.overrides; if it is
asynchronous, the answer is awaited. `measure_counters` runs the script, and so takes a limiter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from ratekit.admin.commands import Batch, Flow, answered, as_text, prefix_of, scan
from ratekit.admin.targets import Target, sync_or_async
from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.core.keys import base_key, state_pattern
from ratekit.core.limits import LONGEST_WINDOW, MOST_REQUESTS, SHORTEST_WINDOW, Algorithm, Limit
from ratekit.limiter import refusal_cache
from ratekit.limiter.limiters import RateLimiter

_PAGE = 1000
_HASHES = (Algorithm.FIXED_WINDOW, Algorithm.SLIDING_WINDOW_COUNTER)  # algorithms whose state has the window in it
_RECORD = "~"  # begins the last part of the key of a reservation
_WINDOW_NAME = re.compile(r"(?:.*-)?(\d{1,9}(?:\.\d{1,6})?)s(?:-shadow)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CounterState:
    """The counter of one limit, as far as its key and its state tell. Times are in seconds.

    The maximum is known to the application alone. `used` is None until it is measured. It is exact unless `is_exact` is
    False: a log without a known window, and a bucket without a known rate, have used that much at most.
    """

    limit: str  # the limit's name
    algorithm: str
    shadow: bool
    key: str
    expires_in: float | None
    window: float | None  # None: neither the state nor the limit's name has it
    used: int | None = None
    is_exact: bool = False
    resets_in: float | None = None


@dataclass(frozen=True, slots=True)
class ReservationState:
    """A reservation that the store remembers."""

    id: str
    estimate: tuple[int, ...]  # what was reserved, one number for each unit; empty if a settle came without a reserve
    is_settled: bool
    expires_in: float  # seconds


@sync_or_async
def list_counters(store: Target, *, endpoint: str, subject: str, prefix: str | None = None) -> Flow[list[CounterState]]:
    """Return every counter of a subject on an endpoint, sorted by key."""
    name = prefix_of(store, prefix)
    return _list(state_pattern(name, endpoint, subject), base_key(name, endpoint, subject))


@sync_or_async
def delete_counters(store: Target, *, endpoint: str, subject: str, prefix: str | None = None) -> Flow[int]:
    """Delete every counter of a subject on an endpoint, and its reservations; its override stays.

    Returns how many counters there were. What is settled later gives nothing back.
    """
    return _delete(state_pattern(prefix_of(store, prefix), endpoint, subject))


def measure_counters(limiter: RateLimiter, *, endpoint: str, subject: str) -> list[CounterState]:
    """Return every counter of a subject on an endpoint, with what is used of it. Nothing is spent."""
    found = list_counters(limiter, endpoint=endpoint, subject=subject)
    return [_measured(limiter, counter, endpoint, subject) for counter in found]


def _measured(limiter: RateLimiter, counter: CounterState, endpoint: str, subject: str) -> CounterState:
    """Let the script read a counter, as that of a limit that admits everything and never drains."""
    is_bucket = counter.algorithm == Algorithm.TOKEN_BUCKET
    count = f"1/s burst {MOST_REQUESTS}" if is_bucket else f"{MOST_REQUESTS}/s@{counter.algorithm}"
    try:
        limit = Limit.parse(f"{counter.limit}={count}")
    except ConfigurationError:  # the key of something else
        return counter
    window = LONGEST_WINDOW if is_bucket or counter.window is None else counter.window
    limit = replace(limit, window=window, shadow=counter.shadow)
    result = limiter.peek(limit, subject, cost=0, endpoint=endpoint, overrides=False)
    if result.degraded is not None:
        raise RateLimitUnavailable(result.degraded)
    (tier,) = result.tiers
    is_timed = not is_bucket and counter.window is not None
    return replace(
        counter,
        used=MOST_REQUESTS - tier.remaining if is_bucket else tier.used,  # the bucket's is rounded up: it drains a little
        is_exact=is_timed or counter.algorithm == Algorithm.CONCURRENCY,
        resets_in=tier.reset_after if is_timed else None,
    )


@sync_or_async
def list_reservations(
    store: Target, *, endpoint: str, subject: str, prefix: str | None = None
) -> Flow[list[ReservationState]]:
    """Return every reservation of a subject on an endpoint that is remembered, sorted by id."""
    name = prefix_of(store, prefix)
    return _list_reservations(state_pattern(name, endpoint, subject), base_key(name, endpoint, subject))


def _list_reservations(pattern: str, base: str) -> Flow[list[ReservationState]]:
    names = [name for name in (yield from _names(pattern)) if _is_record(name)]
    commands = [command for key in names for command in (("HGET", key, "e"), ("HGET", key, "d"), ("PTTL", key))]
    replies = (yield Batch(tuple(commands))) if commands else []
    found = [answered(reply) for reply in replies]
    rows = zip(names, found[::3], found[1::3], found[2::3], strict=True)
    return [
        ReservationState(key.removeprefix(f"{base}:{_RECORD}"), _estimate(estimate), done is not None, ttl / 1000)
        for key, estimate, done, ttl in rows
        if ttl >= 0
    ]


def _estimate(reply: Any) -> tuple[int, ...]:
    parts = [] if reply is None else as_text(reply).split(",")
    return tuple(int(part) for part in parts if part.isdecimal())


def _is_record(key: str) -> bool:
    return key.rpartition(":")[2].startswith(_RECORD)


def _list(pattern: str, base: str) -> Flow[list[CounterState]]:
    names = [name for name in (yield from _names(pattern)) if not _is_record(name)]
    counters = [_counter(key, base) for key in names]
    hashes = [counter.key for counter in counters if counter.algorithm in _HASHES]
    commands = [*(("PTTL", key) for key in names), *(("HGET", key, "w") for key in hashes)]
    replies = (yield Batch(tuple(commands))) if commands else []
    ttls = [answered(reply) for reply in replies[: len(names)]]
    windows = dict(zip(hashes, map(_stored_window, replies[len(names) :]), strict=True))
    return [
        replace(counter, expires_in=ttl / 1000 if ttl >= 0 else None, window=windows.get(counter.key) or counter.window)
        for counter, ttl in zip(counters, ttls, strict=True)
        if ttl != -2
    ]


def _delete(pattern: str) -> Flow[int]:
    names = yield from _names(pattern)
    replies = (yield Batch(tuple(("DEL", key) for key in names))) if names else []
    refusal_cache.forget([name.encode() for name in names])
    return sum(int(answered(reply)) for name, reply in zip(names, replies, strict=True) if not _is_record(name))


def _names(pattern: str) -> Flow[list[str]]:
    found: set[str] = set()
    cursor = None
    while True:
        names, cursor = yield from scan(pattern, _PAGE, cursor)
        found.update(names)
        if cursor is None:
            return sorted(found)


def _counter(key: str, base: str) -> CounterState:
    limit, *rest = key.removeprefix(f"{base}:").split("@")
    algorithm = next((part for part in rest if part != "shadow"), str(Algorithm.FIXED_WINDOW))
    match = _WINDOW_NAME.fullmatch(limit)
    window = _usable(float(match[1])) if match else None
    return CounterState(limit, algorithm, "shadow" in rest, key, None, window)


def _stored_window(reply: Any) -> float | None:
    text = as_text(reply)
    return _usable(int(text) / 1_000_000) if text.isdecimal() and len(text) < 20 else None


def _usable(window: float) -> float | None:
    return window if SHORTEST_WINDOW <= window <= LONGEST_WINDOW else None
