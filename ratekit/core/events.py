"""Events of a process, and their listeners: each decision, and each change of a store's state.

A listener is called in the context of the request, so it has to be quick. An exception in a listener reaches no request.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

from ratekit.core import keys
from ratekit.core.errors import ConfigurationError
from ratekit.core.figures import ADMITS, FIGURES, OVERRIDDEN
from ratekit.core.lazy_log import Logger
from ratekit.core.limits import REQUESTS, UNNAMED_POLICY, Limit
from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import Call, Operation
from ratekit.core.results import RateLimitResult

Event = TypeVar("Event")
Remove = Callable[[], None]
_tuple = tuple.__new__  # faster than the constructor of a named tuple
_CHECK = Operation.CHECK
_DECIDING = {Operation.CHECK, Operation.ACQUIRE, Operation.RESERVE, Operation.TAKE}
_log = Logger("ratekit.events")


class Outcome(StrEnum):
    """What became of a request."""

    ALLOWED = "allowed"
    DENIED = "denied"
    WOULD_DENY = "would_deny"  # it passed, because the mode is monitor or the limit that refused it is a shadow
    DEGRADED = "degraded"  # it passed, and the store did not decide it
    ERROR = "error"  # the store did not decide it, and on_outage is closed

    @property
    def severity(self) -> int:
        """The rank of the outcome: of several about one request, telemetry reports the one with the highest."""
        return _SEVERITIES[self]


_SEVERITIES = {
    outcome: severity for severity, outcome in enumerate(["allowed", "degraded", "would_deny", "denied", "error"])
}


class StoreState(StrEnum):
    """State of a store, as its circuit breaker sees it."""

    UP = "up"
    DOWN = "down"  # it gets no requests
    PROBING = "probing"  # it is still down, and a probe is under way


class Decision(NamedTuple):
    """One check and its outcome. Its properties are computed on demand, as it is made on the path of a request."""

    call: Call
    result: RateLimitResult | None  # None: the store did not decide it, and on_outage is closed
    mode: RateLimitMode
    seconds: float  # how long the check took
    prefix: str  # of the limiter's keys
    failure: str | None = None  # why there is no result, in one word

    @property
    def cost(self) -> int:
        """What the request spends; the largest of its costs if its checks cost differently."""
        cost = self.call.cost
        return cost if isinstance(cost, int) else max(cost)

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that decided, in the policy's order."""
        return self.call.compiled.limits

    @property
    def endpoint(self) -> str:
        """The endpoint of the limit that refused; of the first limit if none did."""
        return self._counter(self._deciding).endpoint

    @property
    def subject(self) -> str:
        """The subject of the limit that refused; of the first limit if none did."""
        return self._counter(self._deciding).subject

    @property
    def policy(self) -> str:
        """The policy of the limit that refused; of the first limit if none did."""
        return self.policy_of(self._deciding)

    def policy_of(self, index: int) -> str:
        """Return the name of a limit's own policy; the limit's endpoint if the policy has no name."""
        name = self.call.compiled.rows[index].policy
        return self._counter(index).endpoint if name == UNNAMED_POLICY else name

    @property
    def counters(self) -> tuple[keys.Counter, ...]:
        """The endpoint and the subject of each limit, read from its key."""
        return tuple(map(self._counter, range(len(self.limits))))

    def _counter(self, index: int) -> keys.Counter:
        return keys.parse_state_key(self.prefix, self.call.keys[self.call.compiled.state_at[index]])

    @property
    def degraded(self) -> str | None:
        """Why the store did not decide, in one word; None if it did."""
        return self.failure if self.result is None else self.result.degraded

    @property
    def outcome(self) -> Outcome:
        """What became of the request."""
        if self.result is None:
            return Outcome.ERROR
        if not self.result.allowed:
            return Outcome.DENIED if self.mode is RateLimitMode.ON else Outcome.WOULD_DENY
        if self.result.degraded is not None:
            return Outcome.DEGRADED
        return Outcome.WOULD_DENY if self._is_refused_by_a_shadow else Outcome.ALLOWED

    @property
    def overridden(self) -> bool:
        """Whether an override's numbers apply to any limit."""
        return self.result is not None and any(flags & OVERRIDDEN for flags in self.result.figures[::FIGURES])

    @property
    def refused_by(self) -> tuple[str, ...]:
        """The names of the limits that refuse, shadows included."""
        if self.result is None:
            return ()
        flags = self.result.figures[::FIGURES]
        return tuple(limit.name for limit, flag in zip(self.limits, flags, strict=False) if not flag & ADMITS)

    @property
    def _deciding(self) -> int:
        """The position of the limit that refused: the binding one, else the first shadow. 0 if none did."""
        if self.result is None:
            return 0
        if self.result.is_over_limit:
            return self.result.binding
        return next((at for at, flags in enumerate(self.result.figures[::FIGURES]) if not flags & ADMITS), 0)

    @property
    def _is_refused_by_a_shadow(self) -> bool:
        return self.result is not None and any(not flags & ADMITS for flags in self.result.figures[::FIGURES])


class Settlement(NamedTuple):
    """A reservation that the store has settled: what was reserved, and what it has cost in the end."""

    call: Call
    result: RateLimitResult
    prefix: str

    @property
    def estimate(self) -> tuple[int, ...]:
        """What was reserved, as far as the settling side knew, one for each unit; 0 if it did not know."""
        known = 0 if self.call.extra is None else self.call.extra.known
        return (known,) * len(self.actual) if isinstance(known, int) else known

    @property
    def actual(self) -> tuple[int, ...]:
        """What it has cost, one for each unit."""
        return (self.call.cost,) if isinstance(self.call.cost, int) else self.call.cost

    @property
    def units(self) -> tuple[str, ...]:
        """The units, in the same order."""
        return self.call.compiled.units or (REQUESTS,)

    @property
    def endpoint(self) -> str:
        """The endpoint of its first limit."""
        return keys.parse_state_key(self.prefix, self.call.state_keys[0]).endpoint

    @property
    def subject(self) -> str:
        """The subject of its first limit."""
        return keys.parse_state_key(self.prefix, self.call.state_keys[0]).subject


class Unsettled(NamedTuple):
    """A reservation that the store could not settle: its estimate stays until its window ends."""

    call: Call
    prefix: str
    reason: str  # in one word

    @property
    def policy(self) -> str:
        """The policy of its first limit; the limit's endpoint if the policy has no name."""
        name = self.call.compiled.rows[0].policy
        return keys.parse_state_key(self.prefix, self.call.state_keys[0]).endpoint if name == UNNAMED_POLICY else name


class StoreChange(NamedTuple):
    """A change of a store's state."""

    store: str  # its label: the URL without secrets
    state: StoreState
    reason: str = ""  # of the outage, in one word


class Unlimited(NamedTuple):
    """A request that was not limited, as nobody could be named for it."""

    endpoint: str


class Loss(NamedTuple):
    """Records that were dropped, as whatever keeps them was away or too slow."""

    what: str  # "violations"
    records: int


class RulesOutcome(StrEnum):
    """What came of a look at the source of the rules."""

    LOADED = "loaded"  # a document is in force
    REFUSED = "refused"  # the document makes no sense: the one before stays
    UNAVAILABLE = "unavailable"  # the source does not answer: the document before stays
    RECOVERED = "recovered"  # the source answers again, with the document that is in force


class RulesChange(NamedTuple):
    """What came of a look at the source of the rules, if it differs from the look before."""

    origin: str  # without secrets
    outcome: RulesOutcome
    version: str | None  # in force now; None: a default
    rules: int = 0  # how many are in force
    reason: str = ""


class RuleLookups(NamedTuple):
    """How often rules were looked up since the event before, and how often the answer was not known from an earlier one."""

    origin: str
    hits: int
    misses: int


class Hook(Generic[Event]):
    """The listeners of one kind of event. While there are none, no event needs to be made."""

    __slots__ = ("_failed", "listeners")

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[Event], object], ...] = ()
        self._failed: set[int] = set()

    def add(self, listener: Callable[[Event], object]) -> Remove:
        """Add a listener, and return a function that removes it."""
        if not callable(listener):
            raise ConfigurationError(f"listener {listener!r} is not callable")
        self.listeners = (*self.listeners, listener)
        return lambda: self._remove(listener)

    def notify(self, event: Event) -> None:
        """Call every listener with an event."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - a listener is the application's: its errors must not reach the request
                if id(listener) not in self._failed:
                    self._failed.add(id(listener))
                    _log.exception("listener %r raised an exception; its further exceptions are not logged", listener)

    def _remove(self, listener: Callable[[Event], object]) -> None:
        self.listeners = tuple(other for other in self.listeners if other is not listener)
        self._failed.discard(id(listener))


decisions: Hook[Decision] = Hook()
settlements: Hook[Settlement] = Hook()
unsettled: Hook[Unsettled] = Hook()
store_changes: Hook[StoreChange] = Hook()
unlimited: Hook[Unlimited] = Hook()
losses: Hook[Loss] = Hook()
rules_changes: Hook[RulesChange] = Hook()
rule_lookups: Hook[RuleLookups] = Hook()


def on_decision(listener: Callable[[Decision], object]) -> Remove:
    """Call a listener with each decision of every limiter in this process. Returns a function that removes it."""
    return decisions.add(listener)


def on_settlement(listener: Callable[[Settlement], object]) -> Remove:
    """Call a listener with each reservation that a limiter in this process settles, once. Returns a remover.

    What was reserved and what it has cost tell which estimate would have been better.
    """
    return settlements.add(listener)


def on_unsettled(listener: Callable[[Unsettled], object]) -> Remove:
    """Call a listener with each reservation that the store could not settle. Returns a function that removes it."""
    return unsettled.add(listener)


def on_store_change(listener: Callable[[StoreChange], object]) -> Remove:
    """Call a listener when a store goes down, is probed, and is up again. Returns a function that removes it."""
    return store_changes.add(listener)


def on_unlimited(listener: Callable[[Unlimited], object]) -> Remove:
    """Call a listener with each request that passes unlimited, as nobody could be named for it. Returns a remover."""
    return unlimited.add(listener)


def on_loss(listener: Callable[[Loss], object]) -> Remove:
    """Call a listener when records were dropped. Returns a function that removes it."""
    return losses.add(listener)


def on_rules_change(listener: Callable[[RulesChange], object]) -> Remove:
    """Call a listener when rules are loaded or refused, or their source goes away or comes back. Returns a remover."""
    return rules_changes.add(listener)


def on_rule_lookups(listener: Callable[[RuleLookups], object]) -> Remove:
    """Call a listener every few seconds with how often rules were looked up. Returns a function that removes it."""
    return rule_lookups.add(listener)


def all_of(*removers: Remove) -> Remove:
    """Return a function that removes several listeners."""

    def remove() -> None:
        for one in removers:
            one()

    return remove


def notify_decision(
    call: Call, result: RateLimitResult | None, mode: RateLimitMode, started: float, prefix: str, failure: str | None = None
) -> None:
    """Notify the listeners of a call that decided a request: a check, a reserve, an acquire. Others decide nothing."""
    operation = call[2]
    if operation is _CHECK or operation in _DECIDING:
        decisions.notify(_tuple(Decision, (call, result, mode, perf_counter() - started, prefix, failure)))


def notify_settlement(call: Call, result: RateLimitResult, prefix: str) -> None:
    """Notify the listeners of a settle, unless it was one that came again."""
    if settlements.listeners and call.operation == Operation.SETTLE and not result.repeated:
        settlements.notify(Settlement(call, result, prefix))


def notify_unsettled(call: Call, prefix: str, reason: str) -> None:
    """Notify the listeners of a call that the store did not run, if it was a settle."""
    if unsettled.listeners and call.operation == Operation.SETTLE:
        unsettled.notify(Unsettled(call, prefix, reason))


def notify_store_change(store: str, state: StoreState, reason: str = "") -> None:
    """Notify the listeners of a change of a store's state."""
    store_changes.notify(StoreChange(store, state, reason))


def notify_unlimited(endpoint: str) -> None:
    """Notify the listeners of a request that was not limited."""
    if unlimited.listeners:
        unlimited.notify(Unlimited(endpoint))
