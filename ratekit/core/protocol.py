"""What the script gets and what it answers: pure functions, with no store in sight.

`encode` makes a call of a check, `pack` makes KEYS and ARGV of a batch of calls, `unpack` takes the reply apart again, and
`decode` makes a result of a call's figures. The header of lua/ratekit.lua documents every item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from time import time
from typing import Any, NamedTuple

from ratekit.core import clock, keys
from ratekit.core.compiled import (
    OVERRIDES,
    VERSION,
    CompiledPolicy,
    compiled,
    merged,
    note_stale,
    override_index,
    subset,
    with_limits,
    with_overrides,
)
from ratekit.core.errors import ConfigurationError
from ratekit.core.figures import FIGURES, AnnotatedFigures
from ratekit.core.limits import MOST_REQUESTS, REQUESTS, Algorithm, Limit, Policy
from ratekit.core.results import RateLimitResult

_LONGEST_PART = keys.LONGEST_PART

Item = bytes | str | int | float
Cost = int | tuple[int, ...]  # of all limits, or one for each position that a limit may have
CostGiven = int | Mapping[str, int]  # a number, or one for each unit


class Operation(StrEnum):
    """What a call asks of the script."""

    CHECK = "check"
    TAKE = "take"
    PEEK = "peek"
    CHARGE = "charge"
    REFUND = "refund"
    RETURN = "return"
    RESERVE = "reserve"
    SETTLE = "settle"
    ACQUIRE = "acquire"
    RENEW = "renew"
    RELEASE = "release"
    RESET = "reset"


CHECK = Operation.CHECK  # Python 3.11 takes its time to look up the member of an enum
_SLOTS = Algorithm.CONCURRENCY
_WITH_SLOT = {Operation.ACQUIRE, Operation.RENEW, Operation.RELEASE}
_WITH_RECORD = {Operation.RESERVE, Operation.SETTLE}
_COSTLESS = {Operation.RESET, Operation.RENEW, Operation.RELEASE}
_COST_NAMES: dict[str, str] = {Operation.RESERVE: "estimate", Operation.SETTLE: "actual"}  # else cost


class Extra(NamedTuple):
    """What few calls bring beside their cost."""

    share: float | None = None  # of each capacity that the request may use
    clamps: bool = False  # whether a reserve may get less than its cost
    hold_ms: int = 0  # for how long a reservation can be settled
    known: Cost = 0  # what was reserved, as far as the settling side knows
    age_us: int = 0  # how long ago the check was answered whose cost is returned
    resets: tuple[int, ...] = ()  # what it was answered as reset_us of each limit


class Call(NamedTuple):
    """One request to the script."""

    compiled: CompiledPolicy
    keys: tuple[bytes, ...]
    operation: str = Operation.CHECK
    cost: Cost = 1
    draw: float = 0
    slot: str | None = None  # the id of the slot or the reservation
    extra: Extra | None = None

    @property
    def state_keys(self) -> list[bytes]:
        """The key of each limit's state, without those of overrides."""
        return [self.keys[at] for at in self.compiled.state_at]

    @property
    def share(self) -> float | None:
        """The fraction of each capacity that the request may use; None: all of it."""
        return None if self.extra is None else self.extra.share

    @property
    def costs(self) -> tuple[int, ...]:
        """What each limit is asked for. A concurrency limit is always asked for one slot."""
        cost, rows = self.cost, self.compiled.rows
        all_costs = (cost,) * len(rows) if isinstance(cost, int) else tuple(cost[row.position - 1] for row in rows)
        return tuple(1 if row.limit.algorithm is _SLOTS else own for row, own in zip(rows, all_costs, strict=True))

    @property
    def all_keys(self) -> tuple[bytes, ...]:
        """KEYS: the record of a reservation first."""
        if self.slot is None or self.operation not in _WITH_RECORD:
            return self.keys
        return (keys.record_key(self.keys[self.compiled.state_at[0]], self.slot), *self.keys)

    @property
    def size(self) -> int:
        """How many integers the script answers."""
        figures = FIGURES * len(self.compiled.limits)
        clamps = self.operation == Operation.TAKE or (self.extra is not None and self.extra.clamps)
        return figures if not clamps else figures + (1 if isinstance(self.cost, int) else len(self.cost))


_new = tuple.__new__  # what the constructor of a named tuple does, without its detour


def encode(
    policy: Policy | Limit,
    subject: str,
    endpoint: str | None = None,
    prefix: str = keys.DEFAULT_PREFIX,
    operation: str = Operation.CHECK,
    cost: CostGiven = 1,
    overrides: bool = True,
    slot: str | None = None,
    extra: Extra | None = None,
) -> Call:
    """Make the call that a check of a subject against a policy needs. Raises ConfigurationError if it makes no sense."""
    costs: Cost
    if type(policy) is Policy and policy._compiled is not None:
        plan: CompiledPolicy = policy._compiled[1 if overrides else 0]
        if endpoint is None:
            endpoint = policy.name
    else:
        plan = compiled(policy, overrides)
    if type(cost) is int and 0 <= cost <= MOST_REQUESTS and not plan.units:
        costs = cost
    else:
        costs = cost_of(plan.units, cost, operation)
    if not isinstance(subject, str):
        raise ConfigurationError(f"subject {subject!r} is not a text")
    if not endpoint or not isinstance(endpoint, str):
        endpoint = _endpoint_of(policy, endpoint)
    make = _names if len(subject) <= _LONGEST_PART else _names.__wrapped__  # a cache of long subjects is too large
    names = make(plan, prefix, endpoint, subject)
    return _new(Call, (plan, names, operation, costs, _draw() if plan.is_soft else 0, slot, extra))


def cost_of(units: tuple[str, ...], cost: CostGiven, operation: str = Operation.CHECK, *, name: str | None = None) -> Cost:
    """Return a cost by the positions of units, or raise ConfigurationError. Requests cost 1 unless it is said.

    name is the argument that an error speaks of, if it is not the one that the operation has.
    """
    name = name or _COST_NAMES.get(operation, "cost")
    if operation in _COSTLESS and units:
        costs = [0] * len(units)
    elif isinstance(cost, Mapping):
        costs = _by_units(units or (REQUESTS,), cost, name)
    elif units:
        wanted = ", ".join(f"{unit!r}: …" for unit in units if unit != REQUESTS)
        raise ConfigurationError(
            f"{name} {cost!r} says no unit, and the limits count {', '.join(units)}: {name}={{{wanted}}}"
        )
    else:
        costs = [cost]
    for number in costs:
        if type(number) is not int or not 0 <= number <= MOST_REQUESTS:
            raise ConfigurationError(f"{name} {cost!r} is not a whole number between 0 and {MOST_REQUESTS}")
    return costs[0] if len(costs) == 1 else tuple(costs)


def unsaid(name: str, cost: Mapping[str, int], unit: str) -> ConfigurationError:
    """Return the error of a cost that does not name a unit."""
    return ConfigurationError(f"{name} {dict(cost)!r} does not say how many {unit}, which a limit counts")


def _by_units(units: tuple[str, ...], cost: Mapping[str, int], name: str) -> list[int]:
    unknown = [unit for unit in cost if unit not in units]
    missing = [unit for unit in units if unit not in cost and unit != REQUESTS]
    if unknown:
        raise ConfigurationError(
            f"unit {unknown[0]!r} of {name} {dict(cost)!r} is unknown: the limits count {', '.join(units)}"
        )
    if missing:
        raise unsaid(name, cost, missing[0])
    return [cost.get(unit, 1) for unit in units]


def _draw() -> float:
    from random import random  # for soft limits only, and slow to load

    return random()


@lru_cache(maxsize=16384)
def _names(plan: CompiledPolicy, prefix: str, endpoint: str, subject: str) -> tuple[bytes, ...]:
    """Return KEYS. Most requests are of subjects that came a moment ago."""
    base = keys.base_key(prefix, endpoint, subject)
    names = [f"{base}{suffix}".encode() for suffix in plan.suffixes]
    if plan.overrides:
        both = (keys.override_key(prefix, endpoint, subject), keys.wide_override_key(prefix, subject))
        names[:0] = (name.encode() for name in both)
    return tuple(names)


def encode_keys(policy: Policy | Limit, base_key: str, override_key: str | None, cost: CostGiven = 1) -> Call:
    """Make the call of a check under keys that the caller has made, to the first of which `:<limit>` is appended.

    Such a key has no override for all endpoints: the script gets the same key twice.
    """
    plan = compiled(policy, overrides=override_key is not None)
    names = [f"{base_key}{suffix}".encode() for suffix in plan.suffixes]
    if override_key is not None:
        names[:0] = (override_key.encode(),) * OVERRIDES
    return Call(plan, tuple(names), Operation.CHECK, cost_of(plan.units, cost), _draw() if plan.is_soft else 0)


def merge(calls: Sequence[Call], *, spreads: bool = False) -> Call:
    """Make one call of several checks of one request, so that they are decided together, all or nothing.

    Costs may differ. Limits that share a counter move it once, by the largest of their costs. With an acquire among the
    checks, the call is an acquire. Raises ConfigurationError for other operations that differ, or slots that differ.
    spreads says that costs which are the same now may differ when they are settled.
    """
    if len(calls) == 1:
        return calls[0]
    state_keys = [key for call in calls for key in call.state_keys]
    meets = len(set(state_keys)) < len(state_keys)
    cost, positions = _merged_costs(calls, spreads)
    if meets and not isinstance(cost, int):
        positions = _largest(cost, positions, state_keys)
    plan = merged(tuple(call.compiled for call in calls), positions, meets=meets)
    names = tuple(name for call in calls for name in call.keys)
    draw = _draw() if plan.is_soft else 0
    return Call(plan, names, _merged_operation(calls), cost, draw, _merged_slot(calls), _merged_extra(calls))


def _merged_costs(calls: Sequence[Call], spreads: bool) -> tuple[Cost, tuple[int, ...]]:
    """Return the costs of calls, and for each limit the position of its cost, from 1 on; one cost if it is the same."""
    first = calls[0].cost
    if isinstance(first, int) and not spreads and all(call.cost == first for call in calls):
        return first, ()
    costs: list[int] = []
    positions: list[int] = []
    for plan, _, _, cost, *_ in calls:
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


def _merged_extra(calls: Sequence[Call]) -> Extra | None:
    extras = {call.extra for call in calls}
    if len(extras) > 1:
        raise ConfigurationError("calls with different shares, or of different reservations, cannot be decided in one call")
    return extras.pop()


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
        at = override_index(of, index)
        names += call.keys[at : at + OVERRIDES] if brings else ()
        names.append(call.keys[of.state_at[index]])
    return call._replace(compiled=plan, keys=tuple(names), operation=operation, slot=slot, extra=None)


def returned(call: Call, indexes: Sequence[int], figures: Sequence[int], age: float) -> Call:
    """Make the call that gives back what a check has spent in some counters, to the windows in which that was.

    figures are its answer, which arrived age seconds ago.
    """
    resets = tuple(figures[index * FIGURES + 5] for index in indexes)
    extra = Extra(age_us=max(round(age * 1_000_000), 0), resets=resets)
    return only(call, indexes, Operation.RETURN)._replace(extra=extra)


def without_overrides(call: Call, limits: tuple[Limit, ...] | None = None) -> Call:
    """Make the same call without overrides, perhaps with another limit in place of each."""
    plan = with_limits(call.compiled, call.compiled.limits if limits is None else limits)
    return call._replace(compiled=plan, keys=tuple(call.state_keys))


def override_keys(call: Call) -> dict[int, bytes]:
    """Return the override keys that a call brings, by their index in KEYS."""
    plan = call.compiled
    states = [at for at, brings in zip(plan.state_at, plan.brings, strict=True) if brings]
    return {at: call.keys[at] for state in states for at in range(state - OVERRIDES, state)}


def keeping_overrides(call: Call, kept: Sequence[int]) -> Call:
    """Make the same call with only those overrides whose keys stand at some indexes in KEYS. One of two stands for both."""
    plan, names = call.compiled, list[bytes]()
    for at, brings in zip(plan.state_at, plan.brings, strict=True):
        found = [call.keys[index] for index in range(at - OVERRIDES, at) if brings and index in kept]
        names += found * (OVERRIDES // len(found)) if found else ()
        names.append(call.keys[at])
    return call._replace(compiled=with_overrides(plan, tuple(kept)), keys=tuple(names))


def cost_item(cost: Cost) -> Item:
    """Return a cost as an item of ARGV."""
    return cost if isinstance(cost, int) else ",".join(map(str, cost)).encode()


def pack(calls: Sequence[Call], clock_us: int = 0) -> tuple[list[bytes], list[Item]]:
    """Make KEYS and ARGV of a batch of calls; those with the same policy share its limits. A time of 0 asks the server."""
    names: list[bytes] = []
    items: list[Item] = [b"%b@%d" % (VERSION, clock_us) if clock_us else VERSION]
    positions: dict[tuple[bytes, ...], int] = {}
    for call in calls:
        plan, _, operation, cost, draw, slot, extra = call
        if plan.is_soft or extra is not None:
            operation = _operation_item(operation, draw if plan.is_soft else None, extra)
        names += call.keys if extra is None else call.all_keys
        items += (operation, cost if type(cost) is int else cost_item(cost))
        if slot is not None:
            items.append(slot)
        if extra is not None:
            items += _extra_items(call.operation, extra, plan.fingerprint)
        position = positions.setdefault(plan.items, len(items) + 1)
        if position > len(items):
            items += plan.items
        else:
            items.append(-position)
    return names, items


def _extra_items(operation: str, extra: Extra, fingerprint: bytes) -> tuple[Item, ...]:
    if operation == Operation.RETURN:
        return (extra.age_us, cost_item(extra.resets))
    if not extra.hold_ms:
        return ()
    both = (extra.hold_ms, fingerprint)
    return both if operation == Operation.RESERVE else (*both, cost_item(extra.known))


def _operation_item(operation: str, draw: float | None, extra: Extra | None) -> str:
    """Return an operation with what follows it: a draw, a share, and whether it may get less than its cost."""
    item = operation if draw is None else f"{operation}@d{draw}"
    if extra is None:
        return item
    item = item if extra.share is None else f"{item}@s{extra.share}"
    return f"{item}@c" if extra.clamps and operation == Operation.RESERVE else item


def pack_one(call: Call, clock_us: int = 0) -> tuple[tuple[bytes, ...], tuple[Item, ...]]:
    """Make what `pack` makes of a batch of one, faster."""
    plan, names, operation, cost, _, _, extra = call
    if clock_us or operation is not CHECK or plan.is_soft or type(cost) is not int or extra is not None:
        return call.all_keys, tuple(pack([call], clock_us)[1])
    return names, (VERSION, b"check", cost, *plan.items)


def unpack(calls: Sequence[Call], reply: Sequence[Any]) -> list[Sequence[int] | str]:
    """Take a reply apart: for each call its figures, or the server's error as a text. Raises IndexError if it is short."""
    answers: list[Sequence[int] | str] = []
    at = 0
    for call in calls:
        size = call.size
        if isinstance(reply[at], int):
            answers.append(reply[at : at + size])
        else:
            message, size = reply[at], 1
            answers.append(message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message))
        at += size
    if at > len(reply):
        raise IndexError(f"the reply has {len(reply)} items and not {at}")
    return answers


def decode(
    call: Call, figures: Sequence[int], degraded: str | None = None, decided_at: float | None = None
) -> RateLimitResult:
    """Make the result of a call's figures, which were found just now if it is not said when."""
    if decided_at is None:
        decided_at = time() if clock.source is None else clock.now()
    plan = call[0]
    if plan.has_calendar:
        note_stale(plan, figures[::FIGURES])
    if call[2] is not CHECK:
        figures = _with_taken(call, figures)
    return _new(RateLimitResult, (plan.limits, figures, decided_at, degraded))


def _with_taken(call: Call, figures: Sequence[int]) -> Sequence[int]:
    """Return figures without what was taken at their end, which becomes an annotation.

    Without the store nobody says what was taken: all of it, if the request passes without figures, else nothing.
    """
    plan, size = call.compiled, FIGURES * len(call.compiled.limits)
    taken: Sequence[int] = figures[size:]
    if not taken and call.operation == Operation.TAKE:
        costs = (call.cost,) if isinstance(call.cost, int) else call.cost
        taken = (0,) * len(costs) if figures else costs
    if not taken:
        return figures
    annotated = AnnotatedFigures(figures[:size])
    annotated.taken = dict(zip(plan.units, taken, strict=True)) if plan.units else taken[0]
    return annotated


def _endpoint_of(policy: Policy | Limit, endpoint: str | None) -> str:
    if endpoint is None and isinstance(policy, Policy):
        return policy.name
    raise ConfigurationError(f"endpoint {endpoint!r} is missing: {policy!r} has no name of its own to count under")
