"""A policy as the script gets it: made once, and not again for every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple
from zlib import crc32

from ratekit.core import clock, keys
from ratekit.core.errors import ConfigurationError
from ratekit.core.figures import STALE
from ratekit.core.limits import REQUESTS, Algorithm, Limit, Policy

VERSION = b"2"  # of the script's protocol
# The flags of a limit, as the header of lua/ratekit.lua documents them.
_MORE, _BRINGS_OVERRIDE, _NOT_FIRST, _NOT_PLAIN, _ALIGNED, _SHADOW, _ALGORITHM, _BURST, _SOFT, _POSITION, _BOUNDARIES = (
    2**n for n in range(11)
)
OVERRIDES = 2  # keys that a limit with an override brings: its own, and that for all endpoints


class Row(NamedTuple):
    """One limit of a compiled policy."""

    limit: Limit
    policy: str  # the name of the limit's own policy
    override: int  # the flags that say where its override is, 0 if it has none
    part: int = 0  # number of the call that it comes from, where calls were merged
    position: int = 0  # of its cost in a list of costs, from 1 on; 0 if one cost is for all limits
    boundaries: tuple[int, ...] = ()  # of its calendar's periods, in microseconds, if it has one


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPolicy:
    """A policy, or several that are decided together, as the script gets them. Compared by identity."""

    policy: str  # its name
    rows: tuple[Row, ...]
    limits: tuple[Limit, ...]
    items: tuple[bytes, ...]  # of ARGV, one limit after the other
    check: tuple[bytes, ...]  # ARGV of a plain check by the server's clock, but for the cost
    suffixes: tuple[str, ...]  # of the key of each limit's state
    brings: tuple[bool, ...]  # which limits have an override key before the key of their state
    state_at: tuple[int, ...]  # where in KEYS the state of each limit stands
    parts: tuple[slice, ...]  # the limits of each of the calls that were merged; one for all if none were
    meets: bool  # whether limits share a key
    is_soft: bool
    has_slots: bool
    has_calendar: bool
    units: tuple[str, ...]  # that a cost has to name, in the order of their positions; empty if only requests are counted
    fingerprint: bytes  # the same in every process, and another one if limits are others, or in another order

    @property
    def policies(self) -> tuple[str, ...]:
        """The name of each limit's own policy."""
        return tuple(row.policy for row in self.rows)

    @property
    def positions(self) -> tuple[int, ...]:
        """The position of each limit's cost in a list of costs, from 1 on; empty if one cost is for all limits."""
        return tuple(row.position for row in self.rows) if self.has_positions else ()

    @property
    def has_positions(self) -> bool:
        """Whether limits may have different costs."""
        return self.rows[0].position > 0

    @property
    def overrides(self) -> bool:
        """Whether overrides are read."""
        return any(self.brings)


def as_policy(value: Policy | Limit) -> Policy:
    """Return a policy as it is, and a single limit as a policy of one."""
    if isinstance(value, Policy):
        return value
    if not isinstance(value, Limit):
        raise ConfigurationError(f"policy {value!r} is neither a Policy nor a Limit")
    policy = value._policy
    if policy is None:
        policy = Policy(value.name, [value])
        object.__setattr__(value, "_policy", policy)
    return policy  # type: ignore[no-any-return]


def compiled(policy: Policy | Limit, overrides: bool) -> CompiledPolicy:
    """Return a policy as the script gets it, made on first use."""
    policy = as_policy(policy)
    both: tuple[CompiledPolicy, CompiledPolicy] | None = policy._compiled
    if both is None:
        both = _for_now(policy)
    return both[1 if overrides else 0]


def _for_now(policy: Policy) -> tuple[CompiledPolicy, CompiledPolicy]:
    """Return a policy as the script gets it, without overrides and with them.

    One with calendars is compiled anew in each of their periods. One with units is not kept where `encode` looks first, as
    its costs need more care.
    """
    calendars = [limit.calendar for limit in policy.limits if limit.calendar is not None]
    now_us = max([clock.now_us(), *(calendar.latest_us for calendar in calendars)])
    if policy._current is not None and now_us < policy._current[0]:
        return policy._current[1]  # type: ignore[no-any-return]
    both = (_compile(policy, now_us, overrides=False), _compile(policy, now_us, overrides=True))
    ends = [row.boundaries[1] for row in both[0].rows if row.boundaries]
    object.__setattr__(policy, "_current", (min(ends, default=float("inf")), both))
    if not ends and not both[0].units:
        object.__setattr__(policy, "_compiled", both)
    return both


def note_stale(plan: CompiledPolicy, flags: Sequence[int]) -> None:
    """Take note of the answers of limits with calendars: their boundaries may all be past by the server's clock."""
    for row, flag in zip(plan.rows, flags, strict=False):
        if flag & STALE and row.boundaries and row.limit.calendar is not None:
            row.limit.calendar.note_time(row.boundaries[-1])


def plan_of(policy: str, limits: tuple[Limit, ...]) -> CompiledPolicy:
    """Return limits as the script gets them, without overrides."""
    return _plan_of(policy, limits, tuple(_boundaries(limit, clock.now_us()) for limit in limits))


@lru_cache(maxsize=1024)
def _plan_of(policy: str, limits: tuple[Limit, ...], boundaries: tuple[tuple[int, ...], ...]) -> CompiledPolicy:
    rows = [Row(limit, policy, 0, boundaries=those) for limit, those in zip(limits, boundaries, strict=True)]
    return _compiled_of(policy, rows)


def _boundaries(limit: Limit, now_us: int) -> tuple[int, ...]:
    return () if limit.calendar is None else limit.calendar.boundaries(now_us)


@lru_cache(maxsize=1024)
def with_limits(plan: CompiledPolicy, limits: tuple[Limit, ...]) -> CompiledPolicy:
    """Return a compiled policy with another limit in place of each, and without overrides."""
    rows = [row._replace(limit=limit, override=0) for row, limit in zip(plan.rows, limits, strict=True)]
    return _compiled_of(plan.policy, rows, parts=len(plan.parts), meets=plan.meets)


@lru_cache(maxsize=1024)
def with_overrides(plan: CompiledPolicy, kept: tuple[int, ...]) -> CompiledPolicy:
    """Return a compiled policy with only those overrides whose keys stand at some indexes in KEYS."""
    at = [override_index(plan, index) for index in range(len(plan.rows))]
    rows = [row if {key, key + 1} & set(kept) else row._replace(override=0) for row, key in zip(plan.rows, at, strict=True)]
    return _compiled_of(plan.policy, rows, parts=len(plan.parts), meets=plan.meets)


@lru_cache(maxsize=1024)
def merged(plans: tuple[CompiledPolicy, ...], positions: tuple[int, ...] = (), *, meets: bool = False) -> CompiledPolicy:
    """Return several policies as one, decided together.

    positions are those of each limit's cost in a list of costs; empty if one cost is for all limits. meets says that limits
    of different policies share a key.
    """
    rows = [row._replace(part=part, position=0) for part, plan in enumerate(plans) for row in plan.rows]
    if positions:
        rows = [row._replace(position=position) for row, position in zip(rows, positions, strict=True)]
    name = "+".join(dict.fromkeys(plan.policy for plan in plans))
    return _compiled_of(name, rows, parts=len(plans), meets=meets)


@lru_cache(maxsize=1024)
def subset(plan: CompiledPolicy, indexes: tuple[int, ...]) -> CompiledPolicy:
    """Return some limits of a compiled policy, each with its override."""
    rows, last = [], -1
    for index in indexes:
        row, override_at = plan.rows[index], override_index(plan, index)
        if row.override & _NOT_FIRST:
            row = row._replace(override=_NOT_FIRST + _BRINGS_OVERRIDE * (override_at != last))
        rows.append(row)
        last = override_at
    return _compiled_of(plan.policy, rows, parts=len(plan.parts), meets=plan.meets)


def override_index(plan: CompiledPolicy, index: int) -> int:
    """Return where in KEYS the override of a limit stands, with that for all endpoints after it; below -1 if it has none."""
    while plan.rows[index].override and not _brings(plan.rows[index]):
        index -= 1
    return plan.state_at[index] - OVERRIDES if plan.rows[index].override else -OVERRIDES


def _brings(row: Row) -> bool:
    return bool(row.override & _BRINGS_OVERRIDE)


def _compile(policy: Policy, now_us: int, *, overrides: bool) -> CompiledPolicy:
    """Compile a policy; the first of its limits brings the override of all."""
    first, others = (_BRINGS_OVERRIDE, _NOT_FIRST) if overrides else (0, 0)
    units = policy.units
    rows = [
        Row(
            limit,
            policy.name,
            others if index else first,
            position=units.index(limit.unit) + 1 if len(units) > 1 else 0,
            boundaries=_boundaries(limit, now_us),
        )
        for index, limit in enumerate(policy.limits)
    ]
    return _compiled_of(policy.name, rows, units=() if units == (REQUESTS,) else units)


def _compiled_of(
    policy: str, rows: Sequence[Row], *, parts: int = 1, meets: bool = False, units: tuple[str, ...] = ()
) -> CompiledPolicy:
    limits = tuple(row.limit for row in rows)
    items = tuple(_items(rows, common=0 if all(map(_is_plain, limits)) and not meets else _NOT_PLAIN))
    ends = [0, *accumulate(sum(row.part == part for row in rows) for part in range(parts))]
    return CompiledPolicy(
        policy=policy,
        rows=tuple(rows),
        limits=limits,
        items=items,
        check=(VERSION, b"check", *items),
        suffixes=tuple(keys.limit_suffix(limit) for limit in limits),
        brings=tuple(map(_brings, rows)),
        state_at=tuple(number - 1 for number in accumulate(1 + OVERRIDES * _brings(row) for row in rows)),
        parts=tuple(slice(start, end) for start, end in pairwise(ends)),
        meets=meets,
        is_soft=any(limit.soft is not None for limit in limits),
        has_slots=any(limit.algorithm is Algorithm.CONCURRENCY for limit in limits),
        has_calendar=any(row.boundaries for row in rows),
        units=units,
        fingerprint=_fingerprint(rows),
    )


def _fingerprint(rows: Sequence[Row]) -> bytes:
    """Return what tells limits from others: a reservation is settled by the limits that it was made of, or gives nothing."""
    parts = (f"{keys.limit_suffix(row.limit)} {row.limit.unit} {row.position}" for row in rows)
    return b"%08x" % crc32("\n".join(parts).encode())


def _is_plain(limit: Limit) -> bool:
    return limit.algorithm is Algorithm.FIXED_WINDOW and not limit.shadow and limit.soft is None


def _items(rows: Sequence[Row], common: int) -> Iterator[bytes]:
    """Return the items of ARGV of each limit; common are the flags that all of them have."""
    for number, row in enumerate(rows, start=1):
        flags = common + row.override + _MORE * (number < len(rows))
        yield from (str(item).encode() for item in _limit_items(row, flags))


def _limit_items(row: Row, flags: int) -> list[int | float | str]:
    """Return a limit's items of ARGV; the flags are those that others of its policy decide."""
    limit = row.limit
    optional: list[tuple[int, int | float | str | None]] = [
        (_ALGORITHM, None if limit.algorithm is Algorithm.FIXED_WINDOW else limit.algorithm),
        (_BURST, limit.burst),
        (_SOFT, limit.soft),
        (_POSITION, row.position or None),
    ]
    given = [(flag, item) for flag, item in optional if item is not None]
    flags += sum(flag for flag, _ in given) + _ALIGNED * limit.aligned + _SHADOW * limit.shadow
    flags += _BOUNDARIES * bool(row.boundaries)
    return [flags, limit.max_requests, limit.window_us, *(item for _, item in given), *row.boundaries]
