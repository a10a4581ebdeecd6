"""What a request has cost in the end: by the outcome, by what the application says, or by a header of the response.

A front calls `conclude` when the response starts, `fail` if the application raises an exception, and drives `finish` when
the response has ended. A request whose outcome nobody has seen, as it was cancelled, counts.

Each front goes by the response that it sees itself: something between two fronts may make a 401 of an exception. depth is
how many fronts had begun to decide when the one that ends had: those around it end what is theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import Any

from ratekit.core.errors import ConfigurationError
from ratekit.core.figures import FIGURES
from ratekit.core.limits import Algorithm
from ratekit.core.protocol import Call, Operation, only, parts
from ratekit.core.results import RateLimitResult
from ratekit.limiter.reservations import Reservation
from ratekit.web.charging import Charging, ResponseHead
from ratekit.web.checks import Check
from ratekit.web.decide import given_back
from ratekit.web.ledger import Ledger, Spent
from ratekit.web.steps import Step

_log = logging.getLogger("ratekit.web")
_warned: set[tuple[str, str]] = set()  # endpoints and headers
_MOST_WARNED = 1000
FAILED = 500  # the status of a request that ends with an exception


def conclude(ledger: Ledger, head: ResponseHead, depth: int = 0) -> tuple[str, ...]:
    """Take note of the outcome of a request, for what was reserved for it, and let the headers show what returns.

    Returns the names of the response's headers that are to be removed, in lower case.
    """
    hidden: list[str] = []
    for spent in (one for one in ledger.spent if one.group.is_reserved):
        indexes = [index for index in _seen_at(spent, depth) if index not in spent.concluded]
        if indexes:
            spent.concluded |= dict.fromkeys(indexes, depth)
            hidden += _concluded(spent, head, indexes)
            _show(ledger, spent)
    return tuple(hidden)


def conclude_trailers(ledger: Ledger, headers: Mapping[str, str], depth: int) -> tuple[str, ...]:
    """Take note of what the trailers of a response say that a request has cost, and return those that are to be removed."""
    hidden: list[str] = []
    for spent in ledger.spent:
        for index in (index for index, seen in spent.concluded.items() if seen == depth):
            check, reservation = spent.group.checks[index], spent.reservations[index]
            charging = check.charging
            if reservation is None or charging is None or charging.actual is None or charging.actual not in headers:
                continue
            _read_actual(check, charging.actual, reservation, ResponseHead(200, headers))
            hidden += [charging.actual] if charging.hide else []
    return tuple(hidden)


def reopen(ledger: Ledger, depth: int) -> None:
    """Forget the outcome that a front has taken note of: nothing of its response was sent, and another one starts."""
    for spent in ledger.spent:
        for index in [index for index, seen in spent.concluded.items() if seen == depth]:
            del spent.concluded[index]
            spent.cleared.discard(index)
            if (reservation := spent.reservations[index]) is not None:
                reservation.recover()


def _seen_at(spent: Spent, depth: int) -> list[int]:
    """Return the positions of the checks whose outcome a front sees: its own, and those of fronts behind it."""
    return [index for index in range(len(spent.group.checks)) if spent.depth_of(index) >= depth]


def fail(ledger: Ledger, depth: int = 0, request: Any = None) -> None:
    """Take note that a request has ended with an exception: its status is 500, unless its response had started.

    request is the framework's, for its own words.
    """
    if not ledger.is_held:
        return
    conclude(ledger, ResponseHead(FAILED, request=request), depth)
    for spent in ledger.spent:
        for index in _seen_at(spent, depth):
            charging, reservation = spent.group.checks[index].charging, spent.reservations[index]
            if reservation is not None and charging is not None and charging.count is None:
                reservation.fail()


def finish(ledger: Ledger, place: Hashable, depth: int = 0) -> Generator[Step, Any, None]:
    """Settle what was reserved for a request in one place, and free its slots."""
    mine = ledger.take_spent(place, held=True, depth=depth)
    for reservation in (one for spent in mine for one in spent.reservations if one is not None):
        reservation.end("it was settled when the response had ended")
    yield from given_back((spent, _endings(spent)) for spent in mine)


class Usage:
    """What a request has cost, as the application says: told to all that is reserved for it by an estimate.

    Where nothing is reserved, as the request is not limited, it may be said all the same.
    """

    __slots__ = ("_ledger",)

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def reservations(self) -> list[Reservation]:
        """What is reserved for the request by an estimate, or by a header that says what it has cost."""
        checks = [pair for spent in self._ledger.spent for pair in zip(spent.group.checks, spent.reservations, strict=True)]
        return [one for check, one in checks if one and check.charging and check.charging.is_estimated]

    def add(self, amount: int | None = None, /, **units: int) -> None:
        """Add to what the request has cost so far, as in a stream: the sum is its actual cost."""
        for reservation, own in self._each(units):
            reservation.add(amount, **own)

    def settle(self, actual: int | None = None, /, **units: int) -> None:
        """Say what the request has cost: a number, or numbers by unit."""
        for reservation, own in self._each(units):
            reservation.settle(actual, **own)

    def _each(self, units: Mapping[str, int]) -> list[tuple[Reservation, dict[str, int]]]:
        """Return the reservations with those units that they count; the last one gets units that none of them count."""
        reservations = self.reservations
        known = {unit for reservation in reservations for unit in reservation.units}
        unknown = {unit: number for unit, number in units.items() if unit not in known}
        each = [(one, {unit: units[unit] for unit in one.units if unit in units}) for one in reservations]
        return [*each[:-1], (each[-1][0], each[-1][1] | unknown)] if each else []


def _concluded(spent: Spent, head: ResponseHead, indexes: Sequence[int]) -> list[str]:
    hidden: list[str] = []
    for index in indexes:
        check, reservation = spent.group.checks[index], spent.reservations[index]
        charging = check.charging
        if reservation is None or charging is None:
            continue
        if charging.actual is not None:
            _read_actual(check, charging.actual, reservation, head)
            hidden += [charging.actual] if charging.hide else []
        if not _counts(charging, head):
            reservation.fail()
        if charging.reset_when is not None and charging.reset_when.matches(head, on_fault=False):
            spent.cleared.add(index)
    return hidden


def _counts(charging: Charging, head: ResponseHead) -> bool:
    """Whether a request counts: where nobody says which ones do, those that do not end with an exception, or as a 5xx."""
    return head.status_code < FAILED if charging.count is None else charging.count.matches(head, on_fault=True)


def _read_actual(check: Check, header: str, reservation: Reservation, head: ResponseHead) -> None:
    """Settle by what a header of the response says. Without one that is a number, the estimate stays."""
    text = head.headers.get(header, "").strip()
    try:
        reservation.settle(int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else -1)
    except ConfigurationError:
        key = (check.endpoint, header)
        is_awaited = head.has_trailers and not text
        if head.status_code < 400 and not is_awaited and key not in _warned and len(_warned) < _MOST_WARNED:
            _warned.add(key)
            _log.warning(
                "a response of %s has %s in its header %s, which is no number: the estimate stays; said once",
                check.endpoint, f"{text!r:.100}" if text else "nothing", header,
            )  # fmt: skip


def _endings(spent: Spent) -> list[Call]:
    """Return the calls that end what was spent: a settle if anything differs from the estimate, and what is forgotten."""
    if not spent.group.is_reserved:
        return spent.releases()
    call, costs = spent.group.call, spent.costs
    estimate = [call.cost] if isinstance(call.cost, int) else list(call.cost)
    calls = [] if costs == estimate and not _has_to_settle(spent) else [spent.settled(costs)]
    return calls + [only(call, indexes, Operation.RESET) for indexes in _cleared(spent)]


def _has_to_settle(spent: Spent) -> bool:
    return spent.group.call.compiled.has_slots or spent.result.degraded is not None


def _cleared(spent: Spent) -> list[list[int]]:
    """Return the positions of the limits that are forgotten, check by check; slots belong to others, too."""
    limits, slices = spent.group.call.compiled.limits, parts(spent.group.call)
    found = [range(len(limits))[slices[index]] for index in sorted(spent.cleared)]
    each = [[at for at in indexes if limits[at].algorithm is not Algorithm.CONCURRENCY] for indexes in found]
    return [indexes for indexes in each if indexes]


def _show(ledger: Ledger, spent: Spent) -> None:
    """Let the headers show what will be used when the request is settled."""
    before = spent.result
    if not before.allowed or len(before.figures) != FIGURES * len(before.limits) or spent.shown not in ledger.results:
        return
    figures = list(before.figures)
    more = [cost - known for cost, known in zip(spent.costing(spent.costs).costs, spent.group.call.costs, strict=True)]
    for index, part in enumerate(parts(spent.group.call)):
        _change(figures, part, more[part], is_cleared=index in spent.cleared)
    at = ledger.results.index(spent.shown)
    ledger.results[at] = spent.shown = RateLimitResult(before.limits, figures, before.decided_at, before.degraded)


def _change(figures: list[int], part: slice, differences: Sequence[int], *, is_cleared: bool) -> None:
    for index, more in zip(range(part.start, part.stop), differences, strict=True):
        at = index * FIGURES
        most, used = figures[at + 1], figures[at + 2]
        figures[at + 2] = 0 if is_cleared else max(used + more, 0)
        figures[at + 3] = most if is_cleared else max(min(figures[at + 3] - more, most), 0)
