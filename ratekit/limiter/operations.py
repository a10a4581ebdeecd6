"""What a limiter takes, and what it can be asked: all but the waiting."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypedDict, TypeVar, cast

from ratekit import stores
from ratekit.core.compiled import as_policy
from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.core.events import notify_decision, notify_settlement, notify_unsettled
from ratekit.core.keys import DEFAULT_PREFIX, check_prefix
from ratekit.core.lazy_log import Logger
from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage, Outage, StoreOutage, outage_in
from ratekit.core.protocol import CHECK, Call, CostGiven, Extra, Operation, cost_of, decode, encode
from ratekit.core.results import RateLimitResult
from ratekit.limiter.fallback import Fallback
from ratekit.limiter.refusal_cache import RefusalCache, forget_given_back
from ratekit.limiter.reservations import HOLD, Booking, Part, Reservation, checked_id, checked_share, hold_ms
from ratekit.stores.contract import Answer as StoreAnswer
from ratekit.stores.contract import AsyncStore, Store

if TYPE_CHECKING:
    from datetime import date

    from ratekit.stores.circuit_breaker import Health

_log = Logger("ratekit.limiter")
DEADLINE = 0.05  # seconds that the store has for an answer
MOST_TOGETHER = 1000  # limits of one decision: nobody else is served while the script decides, and its stack has an end
Answer = TypeVar("Answer")
StoreKind = TypeVar("StoreKind", Store, AsyncStore)
Given = TypeVar("Given")
Anchor: TypeAlias = "int | date | None"  # from when periods of calendars are counted
Checks = Iterable[tuple[Policy | Limit, str] | tuple[Policy | Limit, str, CostGiven]]
_OF_SLOTS = {Operation.ACQUIRE, Operation.RENEW, Operation.RELEASE}


class LimiterOptions(TypedDict, total=False):
    """What a front hands on to its limiter."""

    on_outage: str
    deadline: float
    instances: int | None
    refusal_cache: bool


class Operations(ABC, Generic[Answer, StoreKind, Given]):
    """The operations of a limiter. An answer is a result, or one to be awaited; Given is what a store can be made of."""

    def __init__(
        self,
        store: Given | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        on_outage: str = OnOutage.OPEN,
        deadline: float = DEADLINE,
        instances: int | None = None,
        refusal_cache: bool = False,
    ) -> None:
        self.prefix = check_prefix(prefix)
        self.deadline = _checked_deadline(deadline)
        self._fallback = Fallback(on_outage, instances)
        self._siblings: dict[str, Self] = {}
        self._options: dict[str, Any] = {"prefix": prefix, "deadline": deadline, "instances": instances}
        self._refusals = RefusalCache() if refusal_cache else None
        self._learns = refusal_cache or self._fallback.local is not None
        self.asks_store_alone = not self._learns  # no refusal is remembered, and nothing is learned from an answer
        self._store: StoreKind = self._open(stores.default_url() if store is None else store)

    @property
    def store(self) -> StoreKind:
        """The store in use."""
        return self._store

    @property
    def on_outage(self) -> OnOutage:
        """What happens when the store cannot tell."""
        return self._fallback.on_outage

    def with_on_outage(self, on_outage: str | None) -> Self:
        """Return the limiter on the same store that does something else when the store cannot tell; None: this one."""
        if on_outage is None or on_outage == self.on_outage:
            return self
        if on_outage not in self._siblings:
            cached = self._refusals is not None
            options = self._options | {"on_outage": on_outage, "refusal_cache": cached}
            self._siblings[on_outage] = type(self)(cast("Any", self._store), **options)
        return self._siblings[on_outage]

    def health(self) -> Health:
        """Return what is known of the store: its state, why if it is not up, and since when."""
        return self._store.health()

    def check(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        cost: CostGiven = 1,
        endpoint: str | None = None,
        overrides: bool = True,
        share: float | None = None,
        anchor: Anchor = None,
    ) -> Answer:
        """Decide a request and, if it is admitted, spend its cost from every limit of the policy.

        - cost: a number, or one for each unit. A cost of 0 passes even if a limit is exhausted; to find out whether a
          request would pass, use `peek`
        - share: the fraction of each capacity that the request may use, so that more important ones keep room
        - anchor: from when the periods of the policy's calendars are counted for this subject
        """
        extra = None if share is None else Extra(share=checked_share(share))
        call = encode(_anchored(policy, anchor), subject, endpoint, self.prefix, CHECK, cost, overrides, None, extra)
        if call.compiled.has_slots:
            raise _needs_slot(call)
        return self.decide(call)

    def take(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        cost: CostGiven,
        endpoint: str | None = None,
        overrides: bool = True,
        share: float | None = None,
        anchor: Anchor = None,
    ) -> Answer:
        """Spend as much of a cost as fits in every limit, at least 1: `taken` of the result says how much."""
        call = self._encode(Operation.TAKE, policy, subject, cost, endpoint, overrides, share=share, anchor=anchor)
        if call.compiled.has_slots:
            raise _needs_slot(call)
        return self.decide(call)

    def peek(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        cost: CostGiven = 1,
        endpoint: str | None = None,
        overrides: bool = True,
        share: float | None = None,
        anchor: Anchor = None,
    ) -> Answer:
        """Return what `check` would answer to a request of this cost, and spend nothing.

        For showing what is left. It reserves nothing, and others pass between `peek` and `charge`: a limit on failed logins
        uses `reserve` before the password is compared, and settles 0 if it is right.
        """
        call = self._encode(Operation.PEEK, policy, subject, cost, endpoint, overrides, share=share, anchor=anchor)
        return self.decide(call)

    def charge(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        cost: CostGiven = 1,
        endpoint: str | None = None,
        overrides: bool = True,
        anchor: Anchor = None,
    ) -> Answer:
        """Spend a cost whatever the maximum: what a request turned out to cost. Slots are not touched."""
        return self.decide(self._encode(Operation.CHARGE, policy, subject, cost, endpoint, overrides, anchor=anchor))

    def refund(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        cost: CostGiven = 1,
        endpoint: str | None = None,
        overrides: bool = True,
        anchor: Anchor = None,
    ) -> Answer:
        """Give back what was spent a moment ago, never more than is used. Slots are not touched.

        Not for giving back later: what was spent in a window that has ended is taken from the current one. `reserve` and
        `settle` return to the window in which was spent.
        """
        return self.decide(self._encode(Operation.REFUND, policy, subject, cost, endpoint, overrides, anchor=anchor))

    def settle(
        self,
        policy: Policy | Limit,
        subject: str,
        reservation: str,
        *,
        actual: CostGiven,
        known: CostGiven = 0,
        endpoint: str | None = None,
        overrides: bool = True,
        hold: float = HOLD,
        anchor: Anchor = None,
    ) -> Answer:
        """Settle the reservation of that id: what it did not need returns to its window, what it needed beyond is charged.

        known is its `estimate`, if the answer to `reserve_now` has arrived. A settle that is sent again changes nothing.
        """
        call = self._encode(
            Operation.SETTLE, policy, subject, actual, endpoint, overrides, checked_id(reservation), anchor=anchor
        )
        was_known = 0 if known == 0 else cost_of(call.compiled.units, known, name="known")
        return self.decide(call._replace(extra=Extra(hold_ms=hold_ms(hold), known=was_known)))

    def reset(self, policy: Policy | Limit, subject: str, *, endpoint: str | None = None) -> Answer:
        """Forget what a subject has used; its override stays."""
        return self.decide(self._encode(Operation.RESET, policy, subject, 0, endpoint, overrides=True))

    def acquire(
        self, policy: Policy | Limit, subject: str, slot: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Take the slot of that id, and spend 1 from the policy's other limits. The same id again spends nothing more."""
        return self.decide(self._encode(Operation.ACQUIRE, policy, subject, 1, endpoint, overrides, slot))

    def renew(
        self, policy: Policy | Limit, subject: str, slot: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Keep a slot for another window. Refused if it is not held any more."""
        return self.decide(self._encode(Operation.RENEW, policy, subject, 1, endpoint, overrides, slot))

    def release(
        self, policy: Policy | Limit, subject: str, slot: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Free a slot; no matter if it is not held."""
        return self.decide(self._encode(Operation.RELEASE, policy, subject, 1, endpoint, overrides, slot))

    def _encode(
        self,
        operation: Operation,
        policy: Policy | Limit,
        subject: str,
        cost: CostGiven,
        endpoint: str | None,
        overrides: bool,
        slot: str | None = None,
        share: float | None = None,
        anchor: Anchor = None,
    ) -> Call:
        if slot is not None and not (isinstance(slot, str) and slot.isprintable() and slot):
            raise ConfigurationError(f"slot {slot!r} is not a text that can be printed")
        extra = None if share is None else Extra(share=checked_share(share))
        policy = _anchored(policy, anchor)
        call = encode(policy, subject, endpoint, self.prefix, operation, cost, overrides, slot, extra)
        if operation in _OF_SLOTS and not call.compiled.has_slots:
            names = ", ".join(limit.name for limit in call.compiled.limits)
            raise ConfigurationError(f"no limit of {names} is a concurrency limit: use check(), not {operation}()")
        return call

    def _reserve_call(
        self,
        policy: Policy | Limit,
        subject: str,
        estimate: CostGiven,
        *,
        reservation: str | None,
        endpoint: str | None,
        overrides: bool,
        share: float | None,
        clamp: bool,
        hold: float,
        anchor: Anchor,
    ) -> Call:
        slot = new_slot() if reservation is None else checked_id(reservation)
        call = self._encode(Operation.RESERVE, policy, subject, estimate, endpoint, overrides, slot, anchor=anchor)
        fraction = None if share is None else checked_share(share)
        return call._replace(extra=Extra(fraction, bool(clamp), hold_ms(hold)))

    def _all(self, operation: Operation, checks: Checks, share: float | None) -> list[Call]:
        """Make the calls of several checks of one request; reserves of one request have one id."""
        slot = new_slot() if operation is Operation.RESERVE else None
        extra = None if share is None else Extra(share=checked_share(share))
        if operation is Operation.RESERVE:
            extra = Extra(share=None if extra is None else extra.share, hold_ms=hold_ms(HOLD))
        calls: list[Call] = []
        if not isinstance(checks, Iterable):
            raise ConfigurationError(f"checks {checks!r} are not several policies, each with its subject")
        for policy, subject, given in map(_checked_row, checks):
            call = encode(policy, subject, prefix=self.prefix, operation=operation, cost=given, slot=slot, extra=extra)
            if call.compiled.has_slots and operation in (Operation.CHECK, Operation.TAKE):
                raise _needs_slot(call)
            calls.append(call)
        if not calls:
            raise ConfigurationError("checks are empty: give at least one policy and its subject")
        if (count := sum(len(call.compiled.limits) for call in calls)) > MOST_TOGETHER:
            raise ConfigurationError(f"checks have {count} limits: one decision takes at most {MOST_TOGETHER}")
        return calls

    @abstractmethod
    def _open(self, store: Any) -> StoreKind:
        """Return the store that a URL, a client or a store stands for."""

    @abstractmethod
    def decide(self, call: Call, mode: RateLimitMode = RateLimitMode.ON) -> Answer:
        """Let the store decide a call that core.protocol has made. Listeners are told the mode; it changes no answer."""

    def _learn(self, call: Call, figures: Sequence[int]) -> bool:
        """Take note of the store's answer; whether there is something to settle with it, now that it is there."""
        if self._refusals is not None:
            self._refusals.learn(call, figures)
        local = self._fallback.local
        if local is None:
            return False
        local.learn(call, figures)
        return local.owes

    def _learn_batch(self, batch: Sequence[Call], answers: Sequence[StoreAnswer]) -> None:
        for call, answer in zip(batch, answers, strict=True):
            forget_given_back(call)
            if isinstance(answer, str):
                _log.warning("what a request had spent could not be given back: %s", answer)
                notify_unsettled(call, self.prefix, outage_in(answer).outage.reason)
                continue
            if self._learns:
                self._learn(call, answer)
            if call.operation == Operation.SETTLE:
                notify_settlement(call, decode(call, answer), self.prefix)

    def _give_back_without_store(self, batch: Sequence[Call], outage: Outage) -> None:
        """Give back what the local fallback has counted; what the store has counted stays."""
        _log.warning("what a request had spent could not be given back: %s", outage)
        for call in batch:
            forget_given_back(call)  # it may have been given back all the same
            notify_unsettled(call, self.prefix, outage.reason)
        if self._fallback.local is not None:
            for call in batch:
                self._fallback.local.run(call)

    def _result_in(self, batch: Sequence[Call], at: int, answers: Sequence[StoreAnswer]) -> RateLimitResult:
        """Return the result of one call of a batch."""
        answer = answers[at]
        if isinstance(answer, str):
            raise outage_in(answer)
        self._learn_batch(batch, answers)
        return decode(batch[at], answer)

    def _result_or_error(
        self, call: Call, answer: StoreAnswer | StoreOutage, mode: RateLimitMode, started: float
    ) -> RateLimitResult | RateLimitUnavailable:
        """Return the result of one call of several that are decided independently; the error if on_outage refuses it."""
        outage = outage_in(answer) if isinstance(answer, str) else answer
        try:
            if isinstance(outage, StoreOutage):
                result = self.without_store(call, outage.outage, mode, started)
            else:
                forget_given_back(call)
                result = decode(call, outage)
        except RateLimitUnavailable as error:
            return error
        if started:
            notify_decision(call, result, mode, started, self.prefix)
        return result

    def _learn_many(self, calls: Sequence[Call], answers: Sequence[StoreAnswer | StoreOutage]) -> bool:
        """Take note of the store's answers; whether there is something to settle with it."""
        figures = [(call, answer) for call, answer in zip(calls, answers, strict=True) if not isinstance(answer, str)]
        owes = [self._learn(call, answer) for call, answer in figures if not isinstance(answer, StoreOutage)]
        return any(owes)

    def _batch_without_store(
        self, batch: Sequence[Call], at: int, outage: Outage, mode: RateLimitMode, started: float
    ) -> RateLimitResult:
        results = [self.without_store(call, outage, mode, started if call is batch[at] else 0.0) for call in batch]
        return results[at]

    def without_store(self, call: Call, outage: Outage, mode: RateLimitMode, started: float) -> RateLimitResult:
        """Answer a call that the store could not decide."""
        forget_given_back(call)  # it may have run all the same
        if call.operation == Operation.SETTLE and self._fallback.local is None:  # a local share tells the store later
            notify_unsettled(call, self.prefix, outage.reason)
            _log.warning("a reservation is not settled, and its estimate stays spent: %s", outage)
        try:
            return decode(call, self._fallback.answer(call, outage), degraded=outage.reason)
        except RateLimitUnavailable:
            if started:
                notify_decision(call, None, mode, started, self.prefix, outage.reason)
            raise


def reserved(call: Call, result: RateLimitResult, settled_by: str = "") -> Reservation:
    """Return what a reserve of one policy has made; with a clamp, what was taken is what was reserved."""
    if result.taken is not None and result.allowed:
        taken = result.taken
        call = call._replace(cost=taken if isinstance(taken, int) else tuple(taken.values()))
    return Reservation([Booking(call, (Part.of(call),), result)], result, settled_by)


def _checked_row(row: Any) -> tuple[Policy | Limit, str, CostGiven]:
    if not isinstance(row, tuple | list) or not 2 <= len(row) <= 3:
        raise ConfigurationError(f"check {row!r} is not a policy and a subject, perhaps with a cost")
    policy, subject, *cost = row
    return policy, subject, cost[0] if cost else 1


def _anchored(policy: Policy | Limit, anchor: Anchor) -> Policy | Limit:
    return policy if anchor is None else as_policy(policy).anchored(anchor)


def new_slot() -> str:
    """Make an id for a slot."""
    return os.urandom(16).hex()


def _needs_slot(call: Call) -> ConfigurationError:
    names = ", ".join(limit.name for limit in call.compiled.limits)
    return ConfigurationError(f"one limit of {names} is a concurrency limit: use slot(), not check()")


def _checked_deadline(deadline: float) -> float:
    if not isinstance(deadline, int | float) or not math.isfinite(deadline) or deadline <= 0:
        raise ConfigurationError(f"deadline {deadline!r} is not a number of seconds above 0")
    return float(deadline)
