"""The engine: decides a request by all of its checks, for every front.

A front turns its request into checks, groups them, and drives `decide`, a generator, by `web.drivers`. The verdict says
whether the request passes. **A request that is refused has spent nothing**: checks that can be decided in one atomic call
are, and what earlier calls of the same request have spent is given back, to the windows in which it was spent.

Checks of one mode and one on_outage are one call of the script, whatever their subjects and costs; on a Redis Cluster one
call a slot. Enforced checks come first, so that a monitored one never spends for a request that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

from ratekit.core import clock
from ratekit.core.errors import RatekitError, RateLimitExceeded
from ratekit.core.figures import ADMITS, FIGURES
from ratekit.core.headers import RawLine
from ratekit.core.limits import REQUESTS, Algorithm, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import (
    CHECK,
    Call,
    CostGiven,
    Extra,
    Operation,
    decode,
    encode,
    merge,
    only,
    part_of,
    parts,
    returned,
)
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.limiter.operations import new_slot
from ratekit.limiter.renewal import Renewal
from ratekit.limiter.reservations import HOLD, Booking, Part, Reservation, abandoned, hold_ms, settlement
from ratekit.telemetry.datadog import tag_over_limit
from ratekit.web.answers import ErrorResponse, ResponseWriter, error_response
from ratekit.web.charging import Charging

LEDGER = "ratekit.ledger"  # where a request's ledger is: in the ASGI scope, or in the WSGI environ
_ON = RateLimitMode.ON
_HOLD_MS = hold_ms(HOLD)


class Check(NamedTuple):
    """One thing to decide about a request: who spends how much of what, and how a refusal and an outage are treated."""

    call: Call
    endpoint: str
    mode: RateLimitMode = _ON
    on_outage: OnOutage | None = None  # None: as the limiter does
    is_kept: bool = False  # spent even if the request is refused by another check
    charging: Charging | None = None  # how it charges, if that is more than a cost
    other_units: tuple[str, ...] = ()  # that may be named when it is settled, and are not counted

    @property
    def is_reserved(self) -> bool:
        """Whether what it costs is settled when the response has ended."""
        return self.charging is not None and self.charging.is_reserved

    @classmethod
    def of(
        cls,
        policy: Policy,
        subject: str,
        endpoint: str,
        prefix: str,
        cost: CostGiven = 1,
        mode: RateLimitMode = _ON,
        on_outage: OnOutage | None = None,
        charging: Charging | None = None,
        share: float | None = None,
        other_units: tuple[str, ...] = (),
    ) -> Check:
        """Make a check of a policy. One with a concurrency limit takes a slot.

        charging says whether its cost is an estimate, and what is settled by which outcome. share is the fraction of each
        capacity that the request may use. other_units may be named when it is settled, and are not counted.
        """
        operation, slot = CHECK, None
        extra = None if share is None else Extra(share=share)
        if charging is not None and charging.is_reserved:
            operation, slot, extra = Operation.RESERVE, new_slot(), Extra(share=share, hold_ms=_HOLD_MS)
        elif policy.has_slots:
            operation, slot, cost = Operation.ACQUIRE, new_slot(), 1 if policy.units == (REQUESTS,) else cost
        call = encode(policy, subject, endpoint, prefix, operation, cost, slot=slot, extra=extra)
        return cls(call, endpoint, mode, on_outage, charging=charging, other_units=other_units)


class Group(NamedTuple):
    """Checks that one call decides together, all or nothing."""

    call: Call
    checks: tuple[Check, ...]
    mode: RateLimitMode
    on_outage: OnOutage | None
    is_kept: bool = False

    @property
    def is_single_use(self) -> bool:
        """Whether it is for one request only: a soft limit draws a number for each, and a slot is one request's own."""
        return self.call.compiled.is_soft or self.call.slot is not None

    @property
    def is_reserved(self) -> bool:
        """Whether what it has spent is settled when the response has ended."""
        return self.call.operation is Operation.RESERVE

    @property
    def is_held(self) -> bool:
        """Whether something is left to do when the response has ended: to settle, or to free slots."""
        return self.call.slot is not None

    def over_limit(self, result: RateLimitResult) -> str:
        """Return the endpoint of the first check that is over its limit."""
        for check, part in zip(self.checks, parts(self.call), strict=True):
            if part_of(result, part).is_over_limit:
                return check.endpoint
        return self.checks[0].endpoint


def grouped(checks: Sequence[Check], *, one_slot: bool) -> tuple[Group, ...]:
    """Group checks by what one call can decide; the enforced ones first. one_slot: the store is a Redis Cluster."""
    if len(checks) == 1:
        (check,) = checks
        return (Group(check.call, (check,), check.mode, check.on_outage, check.is_kept),)
    groups: dict[tuple[object, ...], list[Check]] = {}
    for check in checks:
        tag = check.call.keys[0].partition(b"{")[2].partition(b"}")[0] if one_slot else None
        groups.setdefault((check.mode, check.on_outage, tag, check.is_kept, _share_of(check.call)), []).append(check)
    made = [_group_of(checks) for checks in groups.values()]
    return (
        tuple(sorted(made, key=lambda group: (group.mode is not _ON, not group.is_kept))) if len(made) > 1 else tuple(made)
    )


def _share_of(call: Call) -> float | None:
    return None if call.extra is None else call.extra.share


def _group_of(checks: Sequence[Check], *, reserved: bool = False) -> Group:
    first, is_reserved = checks[0], reserved or any(check.is_reserved for check in checks)
    call = merge(_calls_of(checks, is_reserved=is_reserved), spreads=is_reserved)
    return Group(call, tuple(checks), first.mode, first.on_outage, first.is_kept)


def _calls_of(checks: Sequence[Check], *, is_reserved: bool) -> list[Call]:
    """Return the calls of checks. All slots and reservations of one call have one id; if one is reserved, all are."""
    slot = next((check.call.slot for check in checks if check.call.slot is not None), None)
    if is_reserved:
        extra = Extra(share=_share_of(checks[0].call), hold_ms=_HOLD_MS)
        return [check.call._replace(operation=Operation.RESERVE, slot=slot, extra=extra) for check in checks]
    return [check.call if check.call.slot is None else check.call._replace(slot=slot) for check in checks]


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
    for check, call in zip(checks, _calls_of(checks, is_reserved=True), strict=True):
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
    reserves = [abandoned(group.call) for group in groups if group.is_reserved]
    slots = [
        (group.call, [i for i in range(len(group.call.compiled.limits)) if _is_slot(group.call, i)])
        for group in groups
        if not group.is_reserved
    ]
    return reserves + [only(call, indexes, Operation.RELEASE) for call, indexes in slots if indexes]


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


class Verdict(NamedTuple):
    """What came of all checks of a request: it passes, or here is the response instead, and the error that it stands for."""

    response: ErrorResponse | None = None
    error: RatekitError | None = None
    result: RateLimitResult | None = None  # the last one; None: the request is not limited


PASS = Verdict()


class Decide(NamedTuple):
    """A step: let the store run a batch of calls in one atomic go, of which one decides the request."""

    batch: tuple[Call, ...]
    mode: RateLimitMode
    on_outage: OnOutage | None
    at: int = 0  # the position of the call that decides


class GiveBack(NamedTuple):
    """A step: let the store give back what calls have spent. A failure is logged, and changes nothing."""

    batch: tuple[Call, ...]
    on_outage: OnOutage | None


class Ask(NamedTuple):
    """A step: ask the application's own code about a request."""

    function: Callable[[Any], Any]
    request: Any
    awaited: Callable[[Any], Any]  # asked instead where there is an event loop: it may answer with something to be awaited


Step = Decide | GiveBack | Ask
Flow = Generator[Step, Any, Verdict]


def decide(
    groups: Sequence[Group],
    ledger: Ledger,
    writer: ResponseWriter,
    place: Hashable,
    *,
    once: bool = True,
    known: RateLimitResult | RatekitError | None = None,
) -> Flow:
    """Decide a request, group by group, and give back what it has spent if one refuses it.

    place is where the store that decides keeps its state. once: limits of a request that meet in one counter charge it
    once. A throttle that is asked after another has refused the request spends nothing any more. known is the answer to the
    first group, where it was decided before.
    """
    if ledger.is_refused and once:
        return PASS
    result: RateLimitResult | None = None
    for own in groups:
        group, again, joins = _after_others(own, ledger, place) if once and ledger.spent else (own, {}, None)
        try:
            result = (yield _step(group, again, joins)) if known is None else _known(known)
        except RatekitError as error:
            response = error_response(error, group.mode)
            if response is not None:
                yield from refuse(ledger, place)
                return Verdict(response, error)
            continue
        finally:
            known = None
        ledger.results.append(result)
        if result.allowed:
            yield from _noted(group, again, joins, ledger, place, result)
        elif group.mode is _ON:
            _forget(again, joins)
            yield from refuse(ledger, place)
            return Verdict(writer.refusal(ledger.results), RateLimitExceeded(result), result)
        else:
            tag_over_limit(group.over_limit(result))
    return PASS if result is None else Verdict(result=result)


def _known(answer: RateLimitResult | RatekitError) -> RateLimitResult:
    if isinstance(answer, RatekitError):
        raise answer
    return answer


def refusal_of(error: RatekitError, ledger: Ledger, writer: ResponseWriter) -> ErrorResponse:
    """Return the response to an error of a limiter: 429, 503, or another 4xx."""
    if not isinstance(error, RateLimitExceeded):
        response = error_response(error, RateLimitMode.ON)
        assert response is not None  # noqa: S101 - there is one for each error that is enforced
        return response
    if error.result not in ledger.results:
        ledger.results.append(error.result)
    return writer.refusal(ledger.results)


def refuse(ledger: Ledger, place: Hashable) -> Generator[Step, Any, None]:
    """Take note that a request is refused, and give back what was spent for it in one place."""
    ledger.refuse()
    yield from give_back(ledger, place)


def give_back(ledger: Ledger, place: Hashable) -> Generator[Step, Any, None]:
    """Give back what was spent for a request in one place, as far as the windows in which that was still count it."""
    mine = ledger.take_spent(place)
    yield from given_back((spent, spent.returns()) for spent in mine)


def given_back(parts: Iterable[tuple[Spent, Sequence[Call]]]) -> Generator[Step, Any, None]:
    """Let the store run the calls that end what was spent, and renew its slots no more."""
    batches: dict[OnOutage | None, list[Call]] = {}
    for spent, calls in parts:
        batches.setdefault(spent.group.on_outage, []).extend(calls)
        if spent.renewal is not None:
            spent.renewal.stop()
        spent.counters.clear()  # a front around this one has the same entry, and must not give it back again
    for on_outage, calls in batches.items():
        if calls:
            yield GiveBack(tuple(calls), on_outage)


_Again = dict[bytes, Spent]


def _after_others(group: Group, ledger: Ledger, place: Hashable) -> tuple[Group, _Again, Spent | None]:
    """Return what is decided of a group after others, its counters that they have charged, and what it is joined with."""
    joins = _reserved_before(group, ledger, place)
    return (group, _charged_before(group, ledger, place), None) if joins is None else (_joined(joins, group), {}, joins)


def _charged_before(group: Group, ledger: Ledger, place: Hashable) -> _Again:
    """Return the counters of a group that were charged for this request before."""
    mine = [spent for spent in ledger.spent_by(place) if not spent.group.is_reserved or group.mode is not _ON]
    return {key: spent for key in group.call.state_keys for spent in mine if key in spent.counters}


def _reserved_before(group: Group, ledger: Ledger, place: Hashable) -> Spent | None:
    """Return what a group is decided together with: it has charged a counter of the group, and one of the two is settled.

    What one of them settles must not return what the other has charged. Slots stay with the front that renews them.
    """
    keys = set(group.call.state_keys)
    for spent in ledger.spent_by(place) if group.mode is _ON else ():
        is_settled = group.is_reserved or spent.group.is_reserved
        if is_settled and _is_alike(spent.group, group) and not keys.isdisjoint(spent.counters):
            return spent if spent.result.degraded is None and not spent.concluded else None
    return None


def _is_alike(earlier: Group, group: Group) -> bool:
    """Whether one call can decide both."""
    ways = [(one.mode, one.on_outage, one.is_kept, _share_of(one.call)) for one in (earlier, group)]
    return ways[0] == ways[1] and not earlier.call.compiled.has_slots


def _joined(spent: Spent, group: Group) -> Group:
    """Return a group with what was decided before, and an id of its own: that of a settled reservation is used up."""
    both = _group_of([*spent.group.checks, *group.checks], reserved=True)
    return both._replace(call=both.call._replace(slot=new_slot()))


def _step(group: Group, again: _Again, joins: Spent | None) -> Decide:
    """Decide a group as if the request had not charged its counters yet.

    The earlier charge is given back in the same atomic call: so the stricter limit decides, and the counter is charged once.
    A monitored group must not lower a counter that an enforced one has charged: it looks, and the charge is restored.
    """
    if joins is not None:
        returns = tuple(joins.returns())
        return Decide((*returns, group.call), group.mode, group.on_outage, len(returns))
    if not again:
        return Decide((group.call,), group.mode, group.on_outage)
    if group.mode is _ON:
        returns = tuple(part for key, spent in again.items() for part in spent.returned([key]))
        return Decide((*returns, group.call), group.mode, group.on_outage, len(returns))
    refunds = tuple(only(spent.group.call, [spent.counters[key]], Operation.REFUND) for key, spent in again.items())
    restored = tuple(part._replace(operation=Operation.CHARGE) for part in refunds)
    peek = only(group.call, range(len(group.call.compiled.limits)), Operation.PEEK)
    return Decide((*refunds, peek, *restored), group.mode, group.on_outage, len(refunds))


def _noted(
    group: Group, again: _Again, joins: Spent | None, ledger: Ledger, place: Hashable, result: RateLimitResult
) -> Generator[Step, Any, None]:
    """Take note of what an admitted group has spent; charge what a monitored group has only looked at."""
    if joins is not None:
        ledger.join(joins, group, result)
        return
    if (result.degraded is not None and not group.is_reserved) or group.is_kept:
        return
    if again and group.mode is not _ON:
        rest = [index for index, key in enumerate(group.call.state_keys) if key not in again]
        if rest:
            yield GiveBack((only(group.call, rest, Operation.CHARGE),), group.on_outage)
        return
    _forget(again)
    ledger.note(Spent(group, place, result))


def _forget(again: _Again, joins: Spent | None = None) -> None:
    """The earlier charge of these counters is given back, and all of what a group was joined with."""
    if joins is not None:
        joins.counters.clear()  # a reservation can be settled again, and that changes nothing
    for key, spent in again.items():
        spent.counters.pop(key, None)
