"""Several identities in one decision: flows of calls that decide all checks of a request, all or nothing.

A flow is a generator of calls. Both limiters drive it, one waiting and one awaiting.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress

from ratekit.core import keys
from ratekit.core.errors import RatekitError, RateLimitUnavailable
from ratekit.core.figures import AnnotatedFigures
from ratekit.core.protocol import Call, Extra, Operation, merge
from ratekit.core.results import RateLimitResult
from ratekit.limiter.reservations import Booking, Part, Reservation, abandoned, hold_ms

_CHECK_HOLD = 30.0  # seconds: what checks have reserved returns at once, or stays
Flow = Generator[Call, RateLimitResult, RateLimitResult]
ReserveFlow = Generator[Call, RateLimitResult, Reservation]
_Group = tuple[Call, tuple[Part, ...]]


def decide_all(calls: Sequence[Call], prefix: str, *, one_slot: bool) -> Flow:
    """Decide calls of one operation together. In a Cluster, checks of several slots are reserved one after the other, and
    what was reserved returns to its own windows if one of them refuses.
    """
    groups = _groups(calls, one_slot=one_slot)
    if len(groups) > 1 and calls[0].operation == Operation.CHECK:
        from ratekit.limiter.operations import new_slot  # imported late: it imports this module

        slot, extra = new_slot(), Extra(share=calls[0].share, hold_ms=hold_ms(_CHECK_HOLD))
        reserves = [call._replace(operation=Operation.RESERVE, slot=slot, extra=extra) for call in calls]
        return (yield from reserve_all(reserves, prefix, one_slot=True)).result
    results = []
    for group, _ in groups:
        results.append((yield group))
    return _named([group for group, _ in groups], results, prefix)


def reserve_all(calls: Sequence[Call], prefix: str, *, one_slot: bool) -> ReserveFlow:
    """Reserve calls together; if one of them refuses, or this is cancelled, what the others have reserved returns."""
    bookings: list[Booking] = []
    for group, parts in _groups(calls, one_slot=one_slot):
        try:
            result = yield group
        except RatekitError:
            yield from _returned(bookings)
            raise
        except GeneratorExit:
            raise
        except BaseException:
            yield from _each([abandoned(group)])
            yield from _returned(bookings)
            raise
        if result.is_over_limit:
            yield from _returned(bookings)
            refused = Booking(group, parts, result)
            return Reservation([refused], _named([group], [result], prefix))
        bookings.append(Booking(group, parts, result))
    result = _named([booking.call for booking in bookings], [booking.result for booking in bookings], prefix)
    return Reservation(bookings, result)


def _returned(bookings: Sequence[Booking]) -> Generator[Call, RateLimitResult, None]:
    for booking in bookings:
        reservation = Reservation([booking], booking.result)
        reservation.fail()
        yield from _each(reservation.settlements())


def _each(calls: Iterable[Call]) -> Generator[Call, RateLimitResult, None]:
    """Send calls whose answers nobody needs. One that the store cannot run keeps no other from being sent."""
    for call in calls:
        with suppress(RateLimitUnavailable):
            yield call


def _groups(calls: Sequence[Call], *, one_slot: bool) -> list[_Group]:
    """Return the calls that one call of the script decides, merged, and the parts that each consists of."""
    groups: dict[bytes, list[Call]] = {}
    for call in calls:
        tag = call.keys[0].partition(b"{")[2].partition(b"}")[0] if one_slot else b""
        groups.setdefault(tag, []).append(call)
    spreads = calls[0].operation == Operation.RESERVE
    return [(merge(group, spreads=spreads), tuple(map(Part.of, group))) for group in groups.values()]


def _named(calls: Sequence[Call], results: Sequence[RateLimitResult], prefix: str) -> RateLimitResult:
    """Return one result of several, each limit of which knows its policy and its subject. Degraded ones are left out."""
    decided = [(call, result) for call, result in zip(calls, results, strict=True) if result.figures]
    if not decided:
        return results[0]
    limits = tuple(limit for _, result in decided for limit in result.limits)
    figures = AnnotatedFigures(figure for _, result in decided for figure in result.figures)
    figures.names = tuple(
        (row.policy, keys.parse_state_key(prefix, key).subject)
        for call, _ in decided
        for row, key in zip(call.compiled.rows, call.state_keys, strict=True)
    )
    degraded = next((result.degraded for result in results if result.degraded is not None), None)
    return RateLimitResult(limits, figures, decided[0][1].decided_at, degraded)
