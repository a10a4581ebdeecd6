"""Reservations: a cost that is spent before it is known, and settled when it is."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import MOST_REQUESTS, REQUESTS, Limit
from ratekit.core.protocol import Call, Cost, CostGiven, Extra, Operation
from ratekit.core.results import RateLimitResult

HOLD = 600.0  # seconds for which a reservation can be settled
LONGEST_HOLD = 30 * 86400.0
SETTLED_BY_LIMITER = "what reserve_now has reserved is settled by the limiter: settle(policy, subject, id, actual=…)"


class Part(NamedTuple):
    """One policy of a reservation: its units, and what was reserved of each."""

    units: tuple[str, ...]
    costs: tuple[int, ...]

    @classmethod
    def of(cls, call: Call) -> Part:
        """Return the part of a call that is not merged."""
        costs = (call.cost,) if isinstance(call.cost, int) else call.cost
        return cls(call.compiled.units or (REQUESTS,), costs)


class Booking(NamedTuple):
    """A reserve that one call has made in the store, of one policy or several, and its result."""

    call: Call
    parts: tuple[Part, ...]
    result: RateLimitResult


class Reservation:
    """What was reserved for a request. `settle` says what it has cost, `add` counts what it costs as it goes on.

    Both only take note: the store is told when the block of `reserve` ends, once. Without them the estimate stays. If the
    block raises an exception, all of it returns, unless something was added: then that stays. A cancelled block keeps it.
    Outside of a block they raise ConfigurationError: what `reserve_now` has reserved is settled by `settle` of the limiter.
    """

    __slots__ = ("_actual", "_added", "_has_failed", "_lock", "_other_units", "_settled_by", "bookings", "id", "result")

    def __init__(
        self,
        bookings: Iterable[Booking],
        result: RateLimitResult,
        settled_by: str = "",
        other_units: tuple[str, ...] = (),
    ) -> None:
        self.bookings = tuple(bookings)
        self.id = str(self.bookings[0].call.slot) if self.bookings else ""  # "": the request is not limited
        self.result = result
        self._actual: dict[str, int] = {}
        self._added: dict[str, int] = {}
        self._lock = threading.Lock()  # threads that work for one request add to one sum
        self._has_failed = False
        self._settled_by = settled_by  # why nothing can be said of its cost any more; "" while its block runs
        self._other_units = other_units  # that may be said of its cost, and are not counted: another plan counts them

    @property
    def allowed(self) -> bool:
        """Whether it was reserved."""
        return self.result.allowed

    @property
    def is_over_limit(self) -> bool:
        """Whether it was refused, and nothing was spent."""
        return self.result.is_over_limit

    @property
    def retry_after(self) -> float | None:
        """Seconds until it would be admitted; 0 if it was; None if it can never fit."""
        return self.result.retry_after

    @property
    def estimate(self) -> CostGiven:
        """What was reserved: a number, or one for each unit if the limits have units. 0 if the store did not answer."""
        known = self.result.degraded is None
        units = {unit: cost if known else 0 for part in self._parts for unit, cost in zip(*part, strict=True)}
        return units if len(units) > 1 or REQUESTS not in units else units[REQUESTS]

    def settle(self, actual: int | None = None, /, **units: int) -> None:
        """Say what the request has cost: a number, or numbers by unit. A unit that is not named costs what was reserved."""
        self._actual |= self._checked("actual", actual, units)

    def add(self, amount: int | None = None, /, **units: int) -> None:
        """Add to what the request has cost so far, as in a stream: the sum is its actual cost."""
        with self._lock:
            for unit, number in self._checked("amount", amount, units).items():
                self._added[unit] = self._added.get(unit, 0) + number

    @property
    def costs(self) -> tuple[int, ...]:
        """What the request has cost as far as it is known, one for each unit of each policy: what it would settle now."""
        return tuple(cost for booking in self.bookings for cost in self._costs(booking))

    def fail(self) -> None:
        """Take note that the request does not count, as with an exception: all returns, unless it was said what it cost."""
        self._has_failed = True

    def recover(self) -> None:
        """Take note that the request counts after all."""
        self._has_failed = False

    def end(self, why: str) -> None:
        """Take note that nothing can be said of its cost any more, and why."""
        self._settled_by = why

    @property
    def units(self) -> tuple[str, ...]:
        """The units that can be said of its cost; none if the request is not limited."""
        return (*dict.fromkeys(unit for part in self._parts for unit in part.units), *self._other_units)

    def settlements(self) -> list[Call]:
        """End it, and return the calls that settle it: none if all that was reserved stays and no slot is held."""
        with self._lock:  # what was added is settled, and what comes later is refused
            self.end("it was settled when its block ended")
        calls = [settlement(booking.call, booking.result, self._costs(booking)) for booking in self.bookings]
        changes = [
            call
            for booking, call in zip(self.bookings, calls, strict=True)
            if call.cost != booking.call.cost or booking.call.compiled.has_slots or booking.result.degraded is not None
        ]
        return changes if self.allowed else []

    @property
    def _parts(self) -> list[Part]:
        return [part for booking in self.bookings for part in booking.parts]

    def _costs(self, booking: Booking) -> list[int]:
        return [self._cost(unit, cost) for part in booking.parts for unit, cost in zip(*part, strict=True)]

    def _cost(self, unit: str, estimate: int) -> int:
        if unit in self._actual:
            return self._actual[unit]
        if unit in self._added:
            return self._added[unit]
        return 0 if self._has_failed and not self._added and not self._actual else estimate

    def _checked(self, name: str, number: int | None, units: Mapping[str, int]) -> dict[str, int]:
        if self._settled_by:
            raise ConfigurationError(f"{name} {units or number!r} cannot be taken note of: {self._settled_by}")
        known = self.units
        given = dict(units)
        if number is not None:
            given[self._main_unit(name, number, known)] = number
        for unit, value in given.items():
            if unit not in known and known:
                raise ConfigurationError(f"unit {unit!r} of {name} is unknown: the limits count {', '.join(known)}")
            if type(value) is not int or not 0 <= value <= MOST_REQUESTS:
                raise ConfigurationError(f"{name} {value!r} of {unit} is not a whole number between 0 and {MOST_REQUESTS}")
        return {unit: value for unit, value in given.items() if unit not in self._other_units}

    @staticmethod
    def _main_unit(name: str, number: int, units: Sequence[str]) -> str:
        """Return the unit of a number that says none: the only one, or the only one beside requests."""
        others = [unit for unit in units if unit != REQUESTS] or [REQUESTS]
        if len(others) > 1:
            raise ConfigurationError(f"{name} {number!r} says no unit, and the limits count {', '.join(units)}")
        return others[0]


def unlimited(limits: tuple[Limit, ...], decided_at: float) -> Reservation:
    """Return a reservation for a request that is not limited: it takes what is said of it, and nobody is told."""
    return Reservation([], RateLimitResult(limits, (), decided_at))


def settlement(call: Call, result: RateLimitResult, costs: Sequence[int]) -> Call:
    """Return the call that settles a reserve, by what it has cost of each unit of each policy."""
    known: Cost = call.cost if result.degraded is None else 0
    extra = Extra(hold_ms=call.extra.hold_ms if call.extra is not None else hold_ms(HOLD), known=known)
    cost: Cost = costs[0] if isinstance(call.cost, int) else tuple(costs)
    return call._replace(operation=Operation.SETTLE, cost=cost, extra=extra)


def abandoned(call: Call) -> Call:
    """Return the call that returns all of a reserve of which it is not known whether it was made."""
    cost: Cost = 0 if isinstance(call.cost, int) else (0,) * len(call.cost)
    extra = Extra(hold_ms=call.extra.hold_ms if call.extra is not None else hold_ms(HOLD))
    return call._replace(operation=Operation.SETTLE, cost=cost, extra=extra)


def hold_ms(hold: float) -> int:
    """Return for how long a record is kept: so that what was settled in time is known for as long again."""
    if not isinstance(hold, int | float) or isinstance(hold, bool) or not 0 < hold <= LONGEST_HOLD:
        raise ConfigurationError(f"hold {hold!r} is not a number of seconds between 0 and {LONGEST_HOLD:.0f}")
    return max(round(hold * 2000), 1)


def checked_share(share: float) -> float:
    """Return a share of each capacity, or raise ConfigurationError if it is none."""
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
        raise ConfigurationError(f"share {share!r} is not a fraction above 0 and not above 1")
    return float(share)


def checked_id(reservation: str) -> str:
    """Return the id of a reservation, or raise ConfigurationError if no key can have it in its name."""
    if not isinstance(reservation, str) or not reservation.isalnum() or not reservation.isascii() or len(reservation) > 64:
        raise ConfigurationError(f"id {reservation!r} of a reservation is not 1 to 64 letters and digits")
    return reservation
