"""What the script gets and what it answers: pure functions, with no store in sight.

`encode` makes a call of a check, `pack` makes KEYS and ARGV of a batch of calls, `unpack` takes the reply apart again, and
`decode` makes a result of a call's figures. The header of lua/ratekit.lua documents every item.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from time import time
from typing import Any, NamedTuple

from ratekit import clock, keys
from ratekit.errors import ConfigurationError
from ratekit.figures import FIGURES
from ratekit.limits import MOST_REQUESTS, Limit, Policy
from ratekit.plans import VERSION, Compiled, compiled, merged
from ratekit.results import RateLimitResult

_LONGEST_PART = keys.LONGEST_PART

Item = bytes | str | int | float


class Operation(StrEnum):
    """What a call asks of the script."""

    CHECK = "check"
    PEEK = "peek"
    CHARGE = "charge"
    REFUND = "refund"
    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    RESET = "reset"


CHECK = Operation.CHECK  # Python 3.11 takes its time to look up the member of an enum


class Call(NamedTuple):
    """One request to the script."""

    compiled: Compiled
    keys: tuple[bytes, ...]
    operation: str = Operation.CHECK
    cost: int = 1
    draw: float = 0
    slot: str | None = None

    @property
    def state_keys(self) -> list[bytes]:
        """The key of each limit's state, without those of overrides."""
        names = iter(self.keys)
        return [(next(names), next(names))[1] if brings else next(names) for brings in self.compiled.brings]


_new = tuple.__new__  # what the constructor of a named tuple does, without its detour


def encode(
    policy: Policy | Limit,
    subject: str,
    endpoint: str | None = None,
    prefix: str = keys.DEFAULT_PREFIX,
    operation: str = Operation.CHECK,
    cost: int = 1,
    overrides: bool = True,
    slot: str | None = None,
) -> Call:
    """Make the call that a check of a subject against a policy needs. Raises ConfigurationError if it makes no sense."""
    if type(policy) is Policy and policy._compiled is not None:
        plan: Compiled = policy._compiled[1 if overrides else 0]
        if endpoint is None:
            endpoint = policy.name
    else:
        plan = compiled(policy, overrides)
    if type(cost) is not int or not 0 <= cost <= MOST_REQUESTS:
        raise ConfigurationError(f"cost {cost!r} is not a whole number between 0 and {MOST_REQUESTS}")
    if not isinstance(subject, str):
        raise ConfigurationError(f"subject {subject!r} is not a text")
    if not endpoint or not isinstance(endpoint, str):
        endpoint = _endpoint_of(policy, endpoint)
    make = _names if len(subject) <= _LONGEST_PART else _names.__wrapped__  # a cache of long subjects is too large
    names = make(plan, prefix, endpoint, subject)
    return _new(Call, (plan, names, operation, cost, _draw() if plan.is_soft else 0, slot))


def _draw() -> float:
    from random import random  # for soft limits only, and slow to load

    return random()


@lru_cache(maxsize=16384)
def _names(plan: Compiled, prefix: str, endpoint: str, subject: str) -> tuple[bytes, ...]:
    """Return KEYS. Most requests are of subjects that came a moment ago."""
    base = keys.base_key(prefix, endpoint, subject)
    names = [f"{base}{suffix}".encode() for suffix in plan.suffixes]
    if plan.overrides:
        names.insert(0, keys.override_key(prefix, endpoint, subject).encode())
    return tuple(names)


def encode_keys(policy: Policy | Limit, base_key: str, override_key: str | None, cost: int = 1) -> Call:
    """Make the call of a check under keys that the caller has made, to the first of which `:<limit>` is appended."""
    plan = compiled(policy, overrides=override_key is not None)
    if type(cost) is not int or not 0 <= cost <= MOST_REQUESTS:
        raise ConfigurationError(f"cost {cost!r} is not a whole number between 0 and {MOST_REQUESTS}")
    names = [f"{base_key}{suffix}".encode() for suffix in plan.suffixes]
    if override_key is not None:
        names.insert(0, override_key.encode())
    return Call(plan, tuple(names), Operation.CHECK, cost, _draw() if plan.is_soft else 0)


def merge(calls: Sequence[Call]) -> Call:
    """Make one call of several checks of one cost, so that they are decided together, all or nothing."""
    if len(calls) == 1:
        return calls[0]
    plan = merged(tuple(call.compiled for call in calls))
    names = tuple(name for call in calls for name in call.keys)
    return Call(plan, names, Operation.CHECK, calls[0].cost, _draw() if plan.is_soft else 0)


def pack(calls: Sequence[Call], clock_us: int = 0) -> tuple[list[bytes], list[Item]]:
    """Make KEYS and ARGV of a batch of calls; those with the same policy share its limits. A time of 0 asks the server."""
    names: list[bytes] = []
    items: list[Item] = [b"%b@%d" % (VERSION, clock_us) if clock_us else VERSION]
    positions: dict[tuple[bytes, ...], int] = {}
    for plan, names_of_call, operation, cost, draw, slot in calls:
        names += names_of_call
        items += (f"{operation}@{draw}" if plan.is_soft else operation, cost)
        if slot is not None:
            items.append(slot)
        position = positions.setdefault(plan.items, len(items) + 1)
        if position > len(items):
            items += plan.items
        else:
            items.append(-position)
    return names, items


def pack_one(call: Call, clock_us: int = 0) -> tuple[tuple[bytes, ...], tuple[Item, ...]]:
    """Make what `pack` makes of a batch of one, faster."""
    plan = call.compiled
    if clock_us or call.operation is not CHECK or plan.is_soft:
        return call.keys, tuple(pack([call], clock_us)[1])
    return call.keys, (VERSION, b"check", call.cost, *plan.items)


def unpack(calls: Sequence[Call], reply: Sequence[Any]) -> list[Sequence[int] | str]:
    """Take a reply apart: for each call its figures, or the server's error as a text."""
    answers: list[Sequence[int] | str] = []
    at = 0
    for call in calls:
        size = FIGURES * len(call.compiled.limits)
        if isinstance(reply[at], int):
            answers.append(reply[at : at + size])
        else:
            message, size = reply[at], 1
            answers.append(message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message))
        at += size
    return answers


def decode(
    call: Call, figures: Sequence[int], degraded: str | None = None, decided_at: float | None = None
) -> RateLimitResult:
    """Make the result of a call's figures, which were found just now if it is not said when."""
    if decided_at is None:
        decided_at = time() if clock.source is None else clock.now()
    return _new(RateLimitResult, (call[0].limits, figures, decided_at, degraded))


def _endpoint_of(policy: Policy | Limit, endpoint: str | None) -> str:
    if endpoint is None and isinstance(policy, Policy):
        return policy.name
    raise ConfigurationError(f"endpoint {endpoint!r} is missing: {policy!r} has no name of its own to count under")
