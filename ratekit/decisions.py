"""How several limiters decide one request: together in one call where they can, and each counter charged once."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

from ratekit.figures import FIGURES
from ratekit.modes import RateLimitMode
from ratekit.protocol import Call, Operation
from ratekit.results import RateLimitResult


class Wanted(NamedTuple):
    """What one limiter wants to be decided, and how it treats a refusal and an outage."""

    call: Call
    endpoint: str
    mode: RateLimitMode
    on_outage: str | None


def tag_of(call: Call) -> bytes:
    """Return the part of a call's keys that chooses their slot of a Redis Cluster."""
    return call.keys[0].partition(b"{")[2].partition(b"}")[0]


def grouped(wanted: Iterable[Wanted], *, one_slot: bool) -> list[list[Wanted]]:
    """Put together what one call can decide: of one cost, treated alike; on a Redis Cluster also of one slot."""
    groups: dict[tuple[object, ...], list[Wanted]] = {}
    for one in wanted:
        tag = tag_of(one.call) if one_slot else None
        groups.setdefault((one.call.cost, one.mode, one.on_outage, tag), []).append(one)
    return list(groups.values())


def over_limit(group: Sequence[Wanted], result: RateLimitResult) -> str:
    """Return the endpoint of the first of a group that is over its limit."""
    at = 0
    for one in group:
        size = len(one.call.compiled.limits)
        part = RateLimitResult(result.limits[at : at + size], result.figures[at * FIGURES : (at + size) * FIGURES], 0)
        if part.is_over_limit:
            return one.endpoint
        at += size
    return group[0].endpoint


def charged_once(call: Call, charged: set[bytes]) -> Generator[Call, RateLimitResult, RateLimitResult]:
    """Decide a call so that its counters are charged once by the request; charged are those that it has charged so far.

    What another limiter, which differs in mode or on_outage, has charged to them is given back first: then this one, which
    may be the stricter, decides as if it were alone.
    """
    counters = set(call.state_keys)
    if counters <= charged:
        yield refund_of(call)
        charged -= counters
    result = yield call
    if result.allowed:
        charged |= counters
    return result


def refund_of(call: Call) -> Call:
    """Return the call that gives back what a call has spent."""
    return call._replace(operation=Operation.REFUND)
