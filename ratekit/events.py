"""What happens, told to who wants to know: each decision, each change of a store's state, each lookup of a rule.

A listener is called where it happens, in the request's own context, and has to be quick. One that raises harms no request.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

from ratekit import keys
from ratekit.errors import ConfigurationError
from ratekit.figures import ADMITS, FIGURES, OVERRIDDEN
from ratekit.limits import UNNAMED_POLICY, Limit
from ratekit.loggers import Logger
from ratekit.modes import RateLimitMode
from ratekit.protocol import Call, Operation
from ratekit.results import RateLimitResult

Event = TypeVar("Event")
Remove = Callable[[], None]
_tuple = tuple.__new__  # a named tuple's own constructor takes a detour
_CHECK, _ACQUIRE = Operation.CHECK, Operation.ACQUIRE
_log = Logger("ratekit.events")


class Outcome(StrEnum):
    """What became of a request."""

    ALLOWED = "allowed"
    DENIED = "denied"
    WOULD_DENY = "would_deny"  # it passed, as the mode is monitor, or as the limit that refused it is a shadow
    DEGRADED = "degraded"  # it passed without the store's word
    ERROR = "error"  # the store could not decide, and on_outage is closed

    @property
    def severity(self) -> int:
        """How much it matters beside others about the same request."""
        return _SEVERITIES[self]


_SEVERITIES = {
    outcome: severity for severity, outcome in enumerate(["allowed", "degraded", "would_deny", "denied", "error"])
}


class StoreState(StrEnum):
    """Whether a store is asked: as always, not for now, or now and then to see whether it is back."""

    UP = "up"
    DOWN = "down"
    PROBING = "probing"


class Decision(NamedTuple):
    """One check, and what came of it. Made on the path of a request, so it is read lazily."""

    call: Call
    result: RateLimitResult | None  # None: the store could not decide, and on_outage is closed
    mode: RateLimitMode
    seconds: float  # that the check took
    prefix: str
    failure: str | None = None  # in one word, why there is no result

    @property
    def cost(self) -> int:
        """What the request spends."""
        return self.call.cost

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that decided, in the policy's order."""
        return self.call.compiled.limits

    @property
    def endpoint(self) -> str:
        """What is limited."""
        return self.counters[0].endpoint

    @property
    def subject(self) -> str:
        """Who is limited."""
        return self.counters[0].subject

    @property
    def policy(self) -> str:
        """The policy's name; the endpoint, if nobody has named it."""
        name = self.call.compiled.policy
        return self.endpoint if name == UNNAMED_POLICY else name

    @property
    def counters(self) -> tuple[keys.Counter, ...]:
        """For each limit, what and who is counted, as its key tells."""
        return tuple(keys.parse_state_key(self.prefix, key) for key in self.call.state_keys)

    @property
    def degraded(self) -> str | None:
        """Why the store could not decide, if it could not: one word."""
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
    def _is_refused_by_a_shadow(self) -> bool:
        return self.result is not None and any(not flags & ADMITS for flags in self.result.figures[::FIGURES])


class StoreChange(NamedTuple):
    """A store is asked no more, or again."""

    store: str  # a label without secrets
    state: StoreState
    reason: str = ""  # in one word, what was wrong


class RuleLookup(NamedTuple):
    """A rule was looked for in a cache."""

    cache: str
    hit: bool


class Hook(Generic[Event]):
    """Who is told of the events of one kind. While `listeners` is empty, no event has to be made."""

    __slots__ = ("_failed", "listeners")

    def __init__(self) -> None:
        self.listeners: tuple[Callable[[Event], object], ...] = ()
        self._failed: set[int] = set()

    def add(self, listener: Callable[[Event], object]) -> Remove:
        """Tell a listener from now on; return what removes it."""
        if not callable(listener):
            raise ConfigurationError(f"listener {listener!r} cannot be called")
        self.listeners = (*self.listeners, listener)
        return lambda: self._remove(listener)

    def tell(self, event: Event) -> None:
        """Tell every listener."""
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # noqa: BLE001 - it is not ours: whatever it raises must not reach the request
                if id(listener) not in self._failed:
                    self._failed.add(id(listener))
                    _log.exception("listener %r failed; further failures of it are not logged", listener)

    def _remove(self, listener: Callable[[Event], object]) -> None:
        self.listeners = tuple(other for other in self.listeners if other is not listener)
        self._failed.discard(id(listener))


decisions: Hook[Decision] = Hook()
store_changes: Hook[StoreChange] = Hook()
rule_lookups: Hook[RuleLookup] = Hook()


def on_decision(listener: Callable[[Decision], object]) -> Remove:
    """Tell a listener every decision, of every limiter and front of this process; return what removes it."""
    return decisions.add(listener)


def on_store_change(listener: Callable[[StoreChange], object]) -> Remove:
    """Tell a listener when a store goes away and when it is back; return what removes it."""
    return store_changes.add(listener)


def on_rule_lookup(listener: Callable[[RuleLookup], object]) -> Remove:
    """Tell a listener every lookup of a rule in a cache; return what removes it."""
    return rule_lookups.add(listener)


def all_of(*removers: Remove) -> Remove:
    """Return what removes several listeners."""

    def remove() -> None:
        for one in removers:
            one()

    return remove


def tell_decision(
    call: Call, result: RateLimitResult | None, mode: RateLimitMode, started: float, prefix: str, failure: str | None = None
) -> None:
    """Tell of a call that decided a request; what only looks, charges or gives back decides nothing."""
    operation = call[2]
    if operation is _CHECK or operation is _ACQUIRE:
        decisions.tell(_tuple(Decision, (call, result, mode, perf_counter() - started, prefix, failure)))


def tell_store_change(store: str, state: StoreState, reason: str = "") -> None:
    """Tell that a store is asked no more, or again."""
    store_changes.tell(StoreChange(store, state, reason))


def tell_rule_lookup(cache: str, *, hit: bool) -> None:
    """Tell that a rule was looked for in a cache."""
    if rule_lookups.listeners:
        rule_lookups.tell(RuleLookup(cache, hit))
