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

from ratekit.core import clock, keys
from ratekit.core.compiled import (
    VERSION,
    CompiledPolicy,
    compiled,
    merged,
    override_index,
    subset,
    with_limits,
    with_overrides,
)
from ratekit.core.errors import ConfigurationError
from ratekit.core.figures import FIGURES
from ratekit.core.limits import MOST_REQUESTS, Algorithm, Limit, Policy
from ratekit.core.results import RateLimitResult

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
_SLOTS = Algorithm.CONCURRENCY
_WITH_SLOT = {Operation.ACQUIRE, Operation.RENEW, Operation.RELEASE}


class Call(NamedTuple):
    """One request to the script."""

    compiled: CompiledPolicy
    keys: tuple[bytes, ...]
    operation: str = Operation.CHECK
    cost: int | tuple[int, ...] = 1  # of all limits, or one for each position that a limit may have
    draw: float = 0
    slot: str | None = None

    @property
    def state_keys(self) -> list[bytes]:
        """The key of each limit's state, without those of overrides."""
        return [self.keys[at] for at in self.compiled.state_at]

    @property
    def costs(self) -> tuple[int, ...]:
        """What each limit is asked for. A concurrency limit is always asked for one slot."""
        cost, rows = self.cost, self.compiled.rows
        all_costs = (cost,) * len(rows) if isinstance(cost, int) else tuple(cost[row.position - 1] for row in rows)
        return tuple(1 if row.limit.algorithm is _SLOTS else own for row, own in zip(rows, all_costs, strict=True))


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
        plan: CompiledPolicy = policy._compiled[1 if overrides else 0]
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
def _names(plan: CompiledPolicy, prefix: str, endpoint: str, subject: str) -> tuple[bytes, ...]:
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
    """Make one call of several checks of one request, so that they are decided together, all or nothing.

    Costs may differ. Limits that share a counter move it once, by the largest of their costs. With an acquire among the
    checks, the call is an acquire. Raises ConfigurationError for other operations that differ, or slots that differ.
    """
    if len(calls) == 1:
        return calls[0]
    state_keys = [key for call in calls for key in call.state_keys]
    meets = len(set(state_keys)) < len(state_keys)
    cost, positions = _merged_costs(calls)
    if meets and not isinstance(cost, int):
        positions = _largest(cost, positions, state_keys)
    plan = merged(tuple(call.compiled for call in calls), positions, meets=meets)
    names = tuple(name for call in calls for name in call.keys)
    return Call(plan, names, _merged_operation(calls), cost, _draw() if plan.is_soft else 0, _merged_slot(calls))


def _merged_costs(calls: Sequence[Call]) -> tuple[int | tuple[int, ...], tuple[int, ...]]:
    """Return the costs of calls, and for each limit the position of its cost, from 1 on; one cost if it is the same."""
    first = calls[0].cost
    if isinstance(first, int) and all(call.cost == first for call in calls):
        return first, ()
    costs: list[int] = []
    positions: list[int] = []
    for plan, _, _, cost, _, _ in calls:
        own = (1,) * len(plan.limits) if isinstance(cost, int) else plan.positions
        positions += [len(costs) + position for position in own]
        costs += (cost,) if isinstance(cost, int) else cost
    return tuple(costs), tuple(positions)


def _largest(costs: Sequence[int], positions: Sequence[int], state_keys: Sequence[bytes]) -> tuple[int, ...]:
    """Return the positions of costs so that limits which share a key have the largest of theirs."""
    largest: dict[bytes, int] = {}
    for key, position in zip(state_keys, positions, strict=True):
        largest[key] = max(largest.get(key, position), position, key=lambda at: costs[at - 1])
    return tuple(largest[key] for key in state_keys)


def _merged_operation(calls: Sequence[Call]) -> str:
    operations = {call.operation for call in calls}
    if operations == {Operation.CHECK, Operation.ACQUIRE}:
        return Operation.ACQUIRE
    if len(operations) > 1:
        raise ConfigurationError(f"operations {', '.join(sorted(operations))} cannot be decided in one call")
    return calls[0].operation


def _merged_slot(calls: Sequence[Call]) -> str | None:
    slots = {call.slot for call in calls if call.slot is not None}
    if len(slots) > 1:
        raise ConfigurationError(f"slots {', '.join(sorted(slots))} of one request differ: give all of them one id")
    return slots.pop() if slots else None


def parts(call: Call) -> tuple[slice, ...]:
    """Return which limits of a call come from each of the calls that it was merged of; a slice of all if it was not."""
    return call.compiled.parts


def part_of(result: RateLimitResult, part: slice) -> RateLimitResult:
    """Return what the limits of one part of a merged call have answered, as a result of its own."""
    figures = result.figures[part.start * FIGURES : part.stop * FIGURES]
    return RateLimitResult(result.limits[part], figures, result.decided_at, result.degraded)


def only(call: Call, indexes: Sequence[int], operation: str) -> Call:
    """Make a call of another operation on some limits of a call, each with its own cost and override.

    With REFUND it gives back what the call has spent in these counters, and with RELEASE its slots.
    """
    of, slot = call.compiled, call.slot if operation in _WITH_SLOT else None
    plan = subset(of, tuple(indexes))
    names: list[bytes] = []
    for index, brings in zip(indexes, plan.brings, strict=True):
        names += [call.keys[override_index(of, index)]] if brings else []
        names.append(call.keys[of.state_at[index]])
    return call._replace(compiled=plan, keys=tuple(names), operation=operation, slot=slot)


def without_overrides(call: Call, limits: tuple[Limit, ...] | None = None) -> Call:
    """Make the same call without overrides, perhaps with another limit in place of each."""
    plan = with_limits(call.compiled, call.compiled.limits if limits is None else limits)
    return call._replace(compiled=plan, keys=tuple(call.state_keys))


def override_keys(call: Call) -> dict[int, bytes]:
    """Return the override keys that a call brings, by their index in KEYS."""
    plan = call.compiled
    return {at - 1: call.keys[at - 1] for at, brings in zip(plan.state_at, plan.brings, strict=True) if brings}


def keeping_overrides(call: Call, kept: Sequence[int]) -> Call:
    """Make the same call with only those overrides whose keys stand at some indexes in KEYS."""
    dropped = override_keys(call).keys() - set(kept)
    names = tuple(key for at, key in enumerate(call.keys) if at not in dropped)
    return call._replace(compiled=with_overrides(call.compiled, tuple(kept)), keys=names)


def cost_item(cost: int | tuple[int, ...]) -> Item:
    """Return a cost as an item of ARGV."""
    return cost if isinstance(cost, int) else ",".join(map(str, cost)).encode()


def pack(calls: Sequence[Call], clock_us: int = 0) -> tuple[list[bytes], list[Item]]:
    """Make KEYS and ARGV of a batch of calls; those with the same policy share its limits. A time of 0 asks the server."""
    names: list[bytes] = []
    items: list[Item] = [b"%b@%d" % (VERSION, clock_us) if clock_us else VERSION]
    positions: dict[tuple[bytes, ...], int] = {}
    for plan, names_of_call, operation, cost, draw, slot in calls:
        names += names_of_call
        items += (f"{operation}@{draw}" if plan.is_soft else operation, cost if type(cost) is int else cost_item(cost))
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
    plan, names, operation, cost, _, _ = call
    if clock_us or operation is not CHECK or plan.is_soft or type(cost) is not int:
        return names, tuple(pack([call], clock_us)[1])
    return names, (VERSION, b"check", cost, *plan.items)


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
