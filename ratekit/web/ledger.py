"""The ledger of a request: what was decided about it, and what was spent for it, by all fronts that it has passed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, MutableMapping, Sequence
from typing import Any

from ratekit.core import clock
from ratekit.core.figures import ADMITS, FIGURES
from ratekit.core.headers import RawLine
from ratekit.core.limits import Algorithm
from ratekit.core.protocol import Call, Operation, decode, merge, only, part_of, parts, returned
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.limiter.renewal import Renewal
from ratekit.limiter.reservations import Booking, Part, Reservation, abandoned, settlement
from ratekit.web.answers import ResponseWriter
from ratekit.web.checks import Check, Group, calls_of

LEDGER = "ratekit.ledger"  # where a request's ledger is: in the ASGI scope, or in the WSGI environ


class Spent:
    """What one call has spent for a request, in the counters that were not given back meanwhile."""

    __slots__ = (
        "_counters",
        "_joined_at",
        "_reservations",
        "at",
        "cleared",
        "concluded",
        "depth",
        "group",
        "place",
        "renewal",
        "result",
        "shown",
    )

    def __init__(self, group: Group, place: Hashable, result: RateLimitResult, at: float | None = None) -> None:
        self.group = group
        self.place = place
        self.result = self.shown = result  # shown: as it stands in the ledger, for the headers
        self.at = clock.steady() if at is None else at  # when it was answered
        self._counters: dict[bytes, int] | None = None
        self._reservations: list[Reservation | None] | None = None
        self.depth = 0  # how many fronts had begun to decide the request
        self._joined_at: dict[int, int] = {}  # the depth of checks that joined it later, by their positions
        self.concluded: dict[int, int] = {}  # checks whose outcome is known, and the depth of the front that has seen it
        self.cleared: set[int] = set()  # the positions of checks whose counters are forgotten in the end
        self.renewal: Renewal | None = None  # of its slots

    @property
    def counters(self) -> dict[bytes, int]:
        """The position of each limit in the call, by the key of its counter."""
        if self._counters is None:
            flags = self.result.figures[::FIGURES]  # a shadow that would refuse has spent nothing
            keys = enumerate(self.group.call.state_keys)
            self._counters = {key: index for index, key in keys if index < len(flags) and flags[index] & ADMITS}
        return self._counters

    @property
    def reservations(self) -> Sequence[Reservation | None]:
        """What the application settles of each check; None for those that cost what they cost."""
        if self._reservations is None:
            both = zip(self.group.checks, parts(self.group.call), strict=True)
            self._reservations = [
                _reservation(check, part_of(self.result, at)) if check.is_reserved else None for check, at in both
            ]
        return self._reservations

    @property
    def costs(self) -> list[int]:
        """What the request has cost as far as it is known, one for each unit of each check."""
        both = zip(self.group.checks, self.reservations, strict=True)
        return [cost for check, one in both for cost in (Part.of(check.call).costs if one is None else one.costs)]

    def depth_of(self, index: int) -> int:
        """Return how many fronts had begun to decide the request when one of its checks was decided."""
        return self._joined_at.get(index, self.depth)

    def costing(self, costs: Sequence[int]) -> Call:
        """Return its call with other costs. Limits that share a counter move it by the largest of their costs."""
        call = self.group.call
        plan = merge(_with_costs(self.group.checks, costs), spreads=True).compiled if call.compiled.meets else call.compiled
        return call._replace(compiled=plan, cost=costs[0] if isinstance(call.cost, int) else tuple(costs))

    def settled(self, costs: Sequence[int]) -> Call:
        """Return the call that settles it."""
        call = self.group.call
        return settlement(call._replace(compiled=self.costing(costs).compiled), self.result, costs)

    def join(self, group: Group, result: RateLimitResult, depth: int) -> None:
        """Take over what was decided in place of it: its own checks, and after them those that a later front has added."""
        own = len(self.group.checks)
        reservations = list(self.reservations)
        self.group, self.result, self.shown, self.at = group, result, result, clock.steady()
        self._counters = self._reservations = None
        self._reservations = reservations + list(self.reservations[own:])  # the application may have the first ones
        self._joined_at |= dict.fromkeys(range(own, len(group.checks)), depth)

    def returns(self) -> list[Call]:
        """Return the calls that give back all that was spent, and free the slots."""
        if self.group.is_reserved:
            return [self.settled([0] * len(self.costs))]
        return self.returned(self.counters) + self.releases()

    def returned(self, keys: Iterable[bytes]) -> list[Call]:
        """Return the call that gives back what was spent in some counters, if there is anything; slots are not touched."""
        call, age = self.group.call, clock.steady() - self.at
        indexes = [self.counters[key] for key in keys if not _is_slot(call, self.counters[key])]
        return [returned(call, indexes, self.result.figures, age)] if indexes else []

    def releases(self) -> list[Call]:
        """Return the call that frees the slots, if there are some."""
        call = self.group.call
        indexes = [index for index in self.counters.values() if _is_slot(call, index)] if self.group.is_held else []
        return [only(call, indexes, Operation.RELEASE)] if indexes else []


def _with_costs(checks: Sequence[Check], costs: Sequence[int]) -> list[Call]:
    """Return the calls of reserved checks with other costs, which are given one after the other."""
    calls, at = [], 0
    for check, call in zip(checks, calls_of(checks, is_reserved=True), strict=True):
        size = len(Part.of(check.call).costs)
        calls.append(call._replace(cost=costs[at] if isinstance(call.cost, int) else tuple(costs[at : at + size])))
        at += size
    return calls


def _reservation(check: Check, result: RateLimitResult) -> Reservation:
    return Reservation([Booking(check.call, (Part.of(check.call),), result)], result, other_units=check.other_units)


def _is_slot(call: Call, index: int) -> bool:
    return call.compiled.limits[index].algorithm is Algorithm.CONCURRENCY


def hold_slots(ledger: Ledger, limiter: RateLimiter | AsyncRateLimiter) -> None:
    """Let a limiter renew the slots that it has taken for a request, until they are released."""
    for spent in ledger.spent_by(limiter.store.place):
        if spent.renewal is None and spent.group.call.compiled.has_slots:
            spent.renewal = limiter.hold(spent.group.call, spent.result)


def releases_of(groups: Iterable[Group]) -> list[Call]:
    """Return the calls that end groups of which it is not known whether they were decided: slots, and reservations."""
    return [ending for group in groups for ending in endings_of(group.call)]


def endings_of(call: Call) -> list[Call]:
    """Return the calls that end another of which it is not known whether it was decided."""
    if call.slot is None or call.operation == Operation.RESERVE:
        return [] if call.slot is None else [abandoned(call)]
    indexes = [index for index in range(len(call.compiled.limits)) if _is_slot(call, index)]
    return [only(call, indexes, Operation.RELEASE)] if indexes else []


class Admission:
    """What the store has answered to a group that admits a request. What it comes to is made when somebody asks for it."""

    __slots__ = ("at", "figures", "group", "lines", "place", "writer")

    group: Group
    place: Hashable  # where the store keeps its state
    figures: Sequence[int]
    at: float  # when it was decided, by clock.steady
    writer: ResponseWriter  # of the lines
    lines: list[RawLine] | None  # of the response, if this is all that is decided about the request

    def result(self) -> RateLimitResult:
        """Make the result."""
        return decode(self.group.call, self.figures, decided_at=clock.now() - (clock.steady() - self.at))


class Ledger:
    """What has been decided about one dispatch of a request so far, by all fronts that it has passed.

    One is made for every request, so it makes nothing else before it is needed.
    """

    __slots__ = ("_decided", "_first", "_results", "_spent", "fronts", "is_held", "is_new", "is_refused", "outer")

    def __init__(self, outer: Ledger | None = None) -> None:
        self.outer = outer  # of a front around this one, which gives back what it has spent itself
        self.is_new = outer is None  # nothing was spent for the request yet
        self.is_refused = False
        self.is_held = False  # something is left to do when the response has ended: to settle, or to free slots
        self._decided: dict[Any, RateLimitResult | None] | None = None
        self.fronts: tuple[object, ...] = () if outer is None else (*outer.fronts, "inner")  # that have begun to decide
        self._first: Admission | None = None  # until somebody asks for what it comes to
        self._results: list[RateLimitResult] | None = None if outer is None else outer.results
        self._spent: list[Spent] | None = None if outer is None else list(outer.spent)

    @property
    def results(self) -> list[RateLimitResult]:
        """The results so far."""
        if self._results is None:
            self._results = []
        if self._first is not None:
            self._unfold(self._first)
        return self._results

    @property
    def spent(self) -> list[Spent]:
        """What was spent for the request, and not given back."""
        if self._spent is None:
            self._spent = []
        if self._first is not None:
            self._unfold(self._first)
        return self._spent

    def admit(self, admission: Admission) -> None:
        """Take note of a group that admits a request for which nothing was spent before."""
        self._first = admission
        self.is_new = False
        if admission.group.call.slot is not None:
            self.is_held = True
            self._unfold(admission)  # now: another front may begin to decide

    def _unfold(self, first: Admission) -> None:
        self._first = None
        result = first.result()
        self.results.append(result)
        self.note(Spent(first.group, first.place, result, first.at))

    def write_headers(self, writer: ResponseWriter, lines: Iterable[RawLine], *, refused: bool = False) -> list[RawLine]:
        """Return a response's header lines with those of what was decided."""
        first = self._first
        if first is not None and first.writer is writer and first.lines is not None and not refused and not self._results:
            return writer.replaced(lines, first.lines)
        return writer.written(lines, self.results, refused=refused)

    @classmethod
    def of(cls, state: MutableMapping[str, Any]) -> Ledger:
        """Return the ledger of a request, made on first use; state is its ASGI scope or its WSGI environ."""
        ledger: Ledger | None = state.get(LEDGER)
        if ledger is None:
            state[LEDGER] = ledger = cls()
        return ledger

    @classmethod
    def begun(cls, state: MutableMapping[str, Any], front: object) -> Ledger:
        """Return the ledger of a request for a front that begins to decide it.

        A front that meets a request again, or a copy of it, begins another dispatch, which is decided for itself: what calls
        an application again and again, as a batch view does, would else be charged once, and pass after a refusal.
        """
        ledger = cls.of(state)
        if front in ledger.fronts:
            state[LEDGER] = ledger = cls()
        ledger.fronts += (front,)
        return ledger

    @property
    def decided(self) -> dict[Any, RateLimitResult | None]:
        """The limiters of a route that have decided, with what the application asks them for."""
        if self._decided is None:
            self._decided = {}
        return self._decided

    def note(self, spent: Spent) -> None:
        """Take note of what was spent."""
        self.is_new = False
        spent.depth = len(self.fronts)
        self.spent.append(spent)
        if spent.group.is_held:
            self.is_held = True

    def join(self, spent: Spent, group: Group, result: RateLimitResult) -> None:
        """Take note that a group was decided together with what was spent before, and in place of it.

        In an outage the store has been told nothing: then what was spent before stays as it was.
        """
        if result.degraded is not None:
            return
        if spent.shown in self.results:
            self.results.remove(spent.shown)
        spent.join(group, result, len(self.fronts))
        ledger: Ledger | None = self
        while ledger is not None:
            ledger.is_held, ledger = True, ledger.outer

    def refuse(self) -> None:
        """Take note that the request is refused, for this front and those around it."""
        ledger: Ledger | None = self
        while ledger is not None:
            ledger.is_refused, ledger.is_new = True, False
            ledger = ledger.outer

    def spent_by(self, place: Hashable) -> list[Spent]:
        """Return what was spent for the request in one place."""
        return [spent for spent in self.spent if spent.place == place]

    def take_spent(self, place: Hashable, *, held: bool = False, depth: int = 0) -> list[Spent]:
        """Return what was spent for the request in one place, and forget it.

        held: only what the response's end concerns. depth: only since so many fronts had begun to decide.
        """
        here = [spent for spent in self.spent_by(place) if spent.depth >= depth]
        mine = [spent for spent in here if spent.group.is_held or not held]
        self._spent = [spent for spent in self.spent if spent not in mine]
        return mine

    def reservation(self, check: Check) -> Reservation | None:
        """Return what the application settles of a check; None if it was not admitted, or is not reserved."""
        for spent in self.spent:
            for one, reservation in zip(spent.group.checks, spent.reservations, strict=True):
                if one is check:
                    return reservation
        return None
