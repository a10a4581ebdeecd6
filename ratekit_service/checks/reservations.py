"""Reservations: an estimate that is spent now, and settled when the cost is known, perhaps by another instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import REQUESTS
from ratekit.core.protocol import CostGiven, Extra, Operation, cost_of
from ratekit.limiter.operations import new_slot
from ratekit.limiter.reservations import HOLD, checked_id, hold_ms
from ratekit_service.checks import quotas, slots
from ratekit_service.checks.answers import Decision, Target
from ratekit_service.checks.decide import Decider
from ratekit_service.checks.requests import CheckRequest, CommitRequest, ReserveRequest
from ratekit_service.checks.slots import Slot
from ratekit_service.configuration.records import Key, Tenant
from ratekit_service.problems import invalid


class Booked(NamedTuple):
    """A decision about a reserve; if the request may go on, the id that settles it, and what was reserved."""

    decision: Decision
    id: str | None = None
    estimate: CostGiven = 0


class _Settlement(NamedTuple):
    """What a commit settles: which reservation, counted where, for how long it is held, and what was reserved."""

    target: Target
    id: str
    hold_ms: int
    estimate: Mapping[str, int]  # empty if the caller does not know
    known: CostGiven  # 0 if it is not known that it was reserved
    is_counted: bool = True


class Reservations:
    """Reserves and settles."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider

    async def reserve(self, key: Key, request: ReserveRequest) -> Booked:
        """Spend an estimate. A request with the same id again spends nothing more."""
        decider = self._decider
        target = decider.place(key, decider.tenant_of(key), request)
        quotas.refuse_other_units(target.plan, request.estimate, "estimate")
        own_id = new_slot() if request.id is None else _own_id(request.id)
        extra = Extra(request.share, request.clamp, _hold_ms(request.hold))
        decision = await decider.decide(target, Operation.RESERVE, request.estimate, extra, own_id)
        return _booked(decision, request, own_id) if decision.allowed else Booked(decision)

    async def commit(self, key: Key, request: CommitRequest) -> Decision:
        """Settle a reservation. A commit that is sent again changes nothing."""
        tenant = self._decider.tenant_of(key)
        has_place = request.resource is not None or request.subject is not None
        settlement = self._by_own_id(key, tenant, request) if has_place else self._by_text(tenant, request)
        target, plan = settlement.target, settlement.target.plan
        actual = request.actual
        if actual == 0 and plan.units:  # nothing of any unit
            actual = dict.fromkeys(plan.units, 0)
        if isinstance(actual, dict):  # a unit that it does not name costs what was reserved
            actual = {**settlement.estimate, **actual}
        quotas.refuse_other_units(plan, actual, "actual")
        if not settlement.is_counted:
            return await self._decider.decide(target, Operation.PEEK, quotas.nothing(plan))
        known = 0 if settlement.known == 0 else cost_of(plan.units, settlement.known)
        extra = Extra(hold_ms=settlement.hold_ms, known=known)
        return await self._decider.decide(target, Operation.SETTLE, actual, extra, settlement.id)

    def _by_text(self, tenant: Tenant, request: CommitRequest) -> _Settlement:
        """Return what the text of an answer to a reserve says."""
        slot = slots.slot_of(request.id, "id")
        target = self._decider.slot_target(tenant, slot)
        if target is None or not slot.hold_ms:
            raise slots.unknown_slot("id")
        reserved = slot.estimate or {}
        estimate = {unit: reserved.get(unit, 0) for unit in target.plan.units or (REQUESTS,)}  # the plan may have changed
        known: CostGiven = estimate if slot.is_known else 0
        if request.known is not None:
            known = _checked_known(target, request.known)
        return _Settlement(target, slot.id, slot.hold_ms, estimate, known, slot.estimate is not None)

    def _by_own_id(self, key: Key, tenant: Tenant, request: CommitRequest) -> _Settlement:
        """Return what the caller says of a reservation under its own id, of which it may have got no answer."""
        if request.resource is None or request.subject is None:
            raise invalid("a resource and a subject belong together", "resource" if request.subject else "subject")
        asked = CheckRequest(request.resource, request.subject, 1, request.plan_id, None, request.anchor)
        target = self._decider.place(key, tenant, asked)
        known = 0 if request.known is None else _checked_known(target, request.known)
        estimate = known if isinstance(known, Mapping) else {}
        return _Settlement(target, _own_id(request.id), _hold_ms(request.hold), estimate, known)


def _booked(decision: Decision, request: ReserveRequest, own_id: str) -> Booked:
    """Return what was reserved, and the id that settles it, which says where it is counted."""
    target, result = decision.target, decision.result
    plan = target.plan
    is_counted = result is not None and result.allowed
    is_known = is_counted and result is not None and result.degraded is None
    estimate = _by_unit(plan.units, request.estimate if result is None or result.taken is None else result.taken)
    held, anchor = _hold_ms(request.hold), request.anchor
    reserved = estimate if is_counted else None
    slot = Slot(own_id, plan.id, target.counter, target.subject, held, reserved, is_known, anchor)
    shown = estimate if is_known else dict.fromkeys(estimate, 0)
    return Booked(decision, slots.text_of(slot), shown if plan.units else shown[REQUESTS])


def _by_unit(units: tuple[str, ...], cost: CostGiven) -> dict[str, int]:
    costs = cost_of(units, cost)
    return dict(zip(units or (REQUESTS,), (costs,) if isinstance(costs, int) else costs, strict=True))


def _hold_ms(hold: float | None) -> int:
    return hold_ms(HOLD if hold is None else hold)


def _own_id(text: str) -> str:
    try:
        return checked_id(text)
    except ConfigurationError as error:
        raise invalid(str(error), "id") from None


def _checked_known(target: Target, known: CostGiven) -> CostGiven:
    if known != 0:
        quotas.refuse_other_units(target.plan, known, "known")
    return known
