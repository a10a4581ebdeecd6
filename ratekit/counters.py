"""What a store has counted of a subject on an endpoint, found by the keys themselves: no policy needs to be known.

The functions take what those of ratekit.overrides take; where the store is asynchronous, they are awaited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ratekit.keys import base_key, state_pattern
from ratekit.limits import Algorithm
from ratekit.stores.commands import Batch, Flow, answered, drive, prefix_of, scan

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class CounterState:
    """The state of one limit, as far as its key tells."""

    limit: str  # the limit's name
    algorithm: str
    shadow: bool
    key: str
    expires_in: float | None  # seconds


def list_counters(store: Any, *, endpoint: str, subject: str, prefix: str | None = None) -> Any:
    """Return the state of every counter of a subject on an endpoint, by name."""
    name = prefix_of(store, prefix)
    return drive(store, _list(state_pattern(name, endpoint, subject), base_key(name, endpoint, subject)))


def delete_counters(store: Any, *, endpoint: str, subject: str, prefix: str | None = None) -> Any:
    """Forget what a subject has used on an endpoint; its override stays. Returns how many counters there were."""
    return drive(store, _delete(state_pattern(prefix_of(store, prefix), endpoint, subject)))


def _list(pattern: str, base: str) -> Flow[list[CounterState]]:
    names = yield from _names(pattern)
    replies = (yield Batch(tuple(("PTTL", key) for key in names))) if names else []
    ttls = [answered(reply) for reply in replies]
    return [_counter(key, base, ttl) for key, ttl in zip(names, ttls, strict=True) if ttl != -2]


def _delete(pattern: str) -> Flow[int]:
    names = yield from _names(pattern)
    replies = (yield Batch(tuple(("DEL", key) for key in names))) if names else []
    return sum(int(answered(reply)) for reply in replies)


def _names(pattern: str) -> Flow[list[str]]:
    found: set[str] = set()
    cursor = None
    while True:
        names, cursor = yield from scan(pattern, _PAGE, cursor)
        found.update(names)
        if cursor is None:
            return sorted(found)


def _counter(key: str, base: str, ttl: int) -> CounterState:
    limit, *rest = key.removeprefix(f"{base}:").split("@")
    algorithm = next((part for part in rest if part != "shadow"), str(Algorithm.FIXED_WINDOW))
    return CounterState(limit, algorithm, "shadow" in rest, key, ttl / 1000 if ttl >= 0 else None)
