"""The decider: which plan applies to a request, and what its limits say. One round trip to the store, none elsewhere."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ratekit.admin.violations import ViolationLog
from ratekit.core import clock
from ratekit.core.errors import RateLimitUnavailable
from ratekit.core.headers import whole_seconds
from ratekit.core.modes import RateLimitMode, get_rate_limit_mode, weakest
from ratekit.core.outages import OnOutage, as_on_outage
from ratekit.core.protocol import CHECK, Call, CostGiven, Extra, Operation, encode
from ratekit.core.results import RateLimitResult
from ratekit.database.violation_table import Violation
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.limiter.operations import new_slot
from ratekit.stores.memory import MemoryStore
from ratekit_service.checks import quotas, slots
from ratekit_service.checks.answers import Decision, SlotAnswer, Target
from ratekit_service.checks.requests import CheckRequest, Cost, ReserveRequest
from ratekit_service.checks.slots import Slot
from ratekit_service.configuration.records import Key, Tenant
from ratekit_service.configuration.refresher import Refresher
from ratekit_service.configuration.snapshot import NO_POLICIES, Configuration
from ratekit_service.policies.resources import endpoint_of
from ratekit_service.problems import Problem, invalid, not_found, not_loaded
from ratekit_service.telemetry.tracing import store_span

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_ON, _OFF = RateLimitMode.ON, RateLimitMode.OFF
_ACQUIRE = Operation.ACQUIRE
_JUDGED = (CHECK, _ACQUIRE, Operation.RESERVE)  # what is refused is a violation
Value = TypeVar("Value")


class Decider:
    """Decides requests of tenants."""

    def __init__(
        self,
        limiter: AsyncRateLimiter,
        refresher: Refresher,
        violations: ViolationLog,
        on_outage: str,
        tracer: Tracer | None = None,
    ) -> None:
        self._refresher = refresher
        self._violations = violations
        self._prefix = limiter.prefix
        self._tracer = tracer
        self._system = "memory" if limiter.store.is_local else "redis"
        default = as_on_outage(on_outage)
        self._limiters: dict[OnOutage | None, AsyncRateLimiter] = {one: limiter.with_on_outage(one) for one in OnOutage}
        self._limiters[None] = limiter.with_on_outage(default)
        self._own = RateLimiter(MemoryStore(for_one=False, max_counters=50_000))  # for what tenants ask of this instance

    def tenant_of(self, key: Key, cost: int = 1) -> Tenant:
        """Return the tenant of a key. Raises Problem if it asks too much of this instance."""
        tenant = self._refresher.configuration.tenants.get(key.tenant_id)
        if tenant is None:
            raise not_loaded()
        if tenant.limit is not None:
            result = self._own.check(tenant.limit, tenant.id, cost=cost)
            if not result.allowed:
                wait = None if result.retry_after is None else whole_seconds(result.retry_after)
                raise Problem(429, "this tenant asks too much of the service", retry_after=wait)
        return tenant

    def target(self, key: Key, tenant: Tenant, request: CheckRequest, where: str = "") -> Target:
        """Return what a check is decided by. Raises Problem if its cost does not suit the plan."""
        target = self.place(key, tenant, request, where)
        plan = target.plan
        if plan.units or plan.policy.has_slots or type(request.cost) is not int:
            quotas.refuse_bad_cost(plan, request.cost, f"{where}cost")
        return target

    def place(self, key: Key, tenant: Tenant, request: CheckRequest | ReserveRequest, where: str = "") -> Target:
        """Return what a request is decided by: the plan it names, else that of its resource, its key, or its tenant."""
        configuration = self._refresher.configuration
        policy = configuration.policies.get(tenant.id, NO_POLICIES).find(request.resource)
        plan_id = request.plan_id or (policy and policy.plan_id) or key.plan_id or tenant.default_plan_id
        if plan_id is None:
            raise invalid("no plan applies: name one, or give the resource, the key or the tenant a plan", f"{where}plan_id")
        plan = configuration.plans.get(plan_id)
        if plan is None or plan.tenant_id != tenant.id:
            raise not_found("plan", field=f"{where}plan_id")
        if request.anchor is not None:
            plan = quotas.anchored(plan, request.anchor, f"{where}anchor")
        counter = policy.counter if policy is not None and policy.counter else request.resource
        return Target(tenant, plan, endpoint_of(tenant.id, counter), request.subject, request.resource)

    def rule_target(self, key: Key, tenant: Tenant, client_key: str, endpoint: str, cost: Cost = 1) -> Target:
        """Return what a request is decided by: the rule of its client key and endpoint, else a plan."""
        rule = self._refresher.configuration.rule(tenant.id, client_key, endpoint)
        if rule is not None and rule.plan is not None:
            if type(cost) is not int:
                quotas.refuse_bad_cost(rule.plan, cost, "cost")
            return Target(tenant, rule.plan, endpoint_of(tenant.id, rule.endpoint), client_key, endpoint)
        try:
            return self.target(key, tenant, CheckRequest(endpoint, client_key, cost))
        except Problem as problem:
            if problem.status != 422 or problem.members["field"] != "plan_id":
                raise
            detail = f"no rule applies to client_key {client_key!r} and endpoint {endpoint!r}, and no plan does"
            raise invalid(detail, "endpoint") from None

    async def decide(
        self,
        target: Target,
        operation: Operation = CHECK,
        cost: CostGiven = 1,
        extra: Extra | None = None,
        slot: str | None = None,
    ) -> Decision:
        """Decide a request. One by a plan that counts slots takes a slot. Raises Problem if the store must, and cannot."""
        return await self.decide_then(target, _itself, operation, cost, extra, slot)

    async def decide_then(
        self,
        target: Target,
        finish: Callable[[Decision], Value],
        operation: Operation = CHECK,
        cost: CostGiven = 1,
        extra: Extra | None = None,
        slot: str | None = None,
    ) -> Value:
        """Decide a request, and return what `finish` makes of the decision where the store's answer arrives."""
        mode = _mode(target, get_rate_limit_mode())
        version = self._refresher.configuration.version
        if mode is _OFF:
            return finish(Decision(target, None, mode, version))
        call = self._call(target, operation, cost, extra, slot)
        limiter = self._limiters[target.plan.on_outage]

        def decided(result: RateLimitResult) -> Value:
            return finish(self._decision(target, call, result, mode, version))

        try:
            if self._tracer is None:
                return await limiter.decide_then(call, mode, decided)
            with store_span(self._tracer, self._system):
                return await limiter.decide_then(call, mode, decided)
        except RateLimitUnavailable as error:
            raise unavailable(error) from None

    async def decide_many(self, targets: Sequence[Target], requests: Sequence[CheckRequest]) -> list[Decision]:
        """Decide requests, each for itself and in order, in as few round trips as possible."""
        version = self._refresher.configuration.version
        decisions: list[Decision | None] = [None] * len(targets)
        groups: dict[tuple[OnOutage | None, RateLimitMode], list[tuple[int, Call]]] = {}
        current = get_rate_limit_mode()
        for index, (target, request) in enumerate(zip(targets, requests, strict=True)):
            mode = _mode(target, current)
            if mode is _OFF:
                decisions[index] = Decision(target, None, mode, version)
            else:
                place = groups.setdefault((target.plan.on_outage, mode), [])
                place.append((index, self._call(target, CHECK, request.cost, quotas.with_share(request.share))))
        for (on_outage, mode), group in groups.items():
            results = await self._limiters[on_outage].decide_many([call for _, call in group], mode)
            for (index, call), result in zip(group, results, strict=True):
                if isinstance(result, RateLimitUnavailable):
                    raise unavailable(result)
                decisions[index] = self._decision(targets[index], call, result, mode, version)
        return [decision for decision in decisions if decision is not None]

    async def slot(self, key: Key, text: str, operation: Operation) -> SlotAnswer:
        """Release or renew a slot. Raises Problem if no check of the tenant can have answered with it."""
        tenant, slot = self.tenant_of(key), slots.slot_of(text)
        target = self.slot_target(tenant, slot)
        if target is None or not target.plan.policy.has_slots:
            raise slots.unknown_slot()
        call = self._call(target, operation, 1, slot=slot.id)
        try:
            result = await self._limiters[target.plan.on_outage].decide(call)
        except RateLimitUnavailable as error:
            raise unavailable(error) from None
        return SlotAnswer(operation is Operation.RENEW and result.allowed, result.degraded)

    def slot_target(self, tenant: Tenant, slot: Slot) -> Target | None:
        """Return where a slot or a reservation of a tenant is counted; None if its plan is not there."""
        plan = self._refresher.configuration.plans.get(slot.plan_id)
        if plan is None or plan.tenant_id != tenant.id:
            return None
        if slot.anchor is not None:
            plan = quotas.anchored(plan, slot.anchor, "id")
        return Target(tenant, plan, endpoint_of(tenant.id, slot.resource), slot.subject, slot.resource)

    async def reset(self, configuration: Configuration, tenant_id: str, resource: str, subject: str) -> int:
        """Forget what a subject has used of a resource, by whichever plan. Returns how many plans were looked at."""
        plans = configuration.plans_of(tenant_id)
        policy = configuration.policies.get(tenant_id, NO_POLICIES).find(resource)
        names = {resource, "*"} | ({policy.counter} if policy and policy.counter else set())
        calls = [
            encode(plan.policy, subject, endpoint_of(tenant_id, name), self._prefix, Operation.RESET, 0)
            for plan in plans
            for name in names
        ]
        answers = await self._limiters[OnOutage.CLOSED].decide_many(calls) if calls else []
        for answer in answers:
            if isinstance(answer, RateLimitUnavailable):
                raise unavailable(answer)
        return len(plans)

    def _call(
        self,
        target: Target,
        operation: Operation,
        cost: CostGiven,
        extra: Extra | None = None,
        slot: str | None = None,
    ) -> Call:
        plan = target.plan
        if plan.policy.has_slots and operation is CHECK:
            operation, slot = _ACQUIRE, new_slot()
        return encode(plan.policy, target.subject, target.endpoint, self._prefix, operation, cost, slot=slot, extra=extra)

    def _decision(self, target: Target, call: Call, result: RateLimitResult, mode: RateLimitMode, version: int) -> Decision:
        slot = None
        if call.operation is _ACQUIRE and call.slot is not None and result.allowed:
            slot = slots.text_of(Slot(call.slot, target.plan.id, target.counter, target.subject))
        decision = Decision.of(target, result, mode, version, slot)
        if not decision.allowed and call.operation in _JUDGED:
            self._violations.add(_violation(target, result))
        return decision


def _itself(decision: Decision) -> Decision:
    return decision


def unavailable(error: RateLimitUnavailable) -> Problem:
    """Return the 503 for a plan that refuses while the store cannot tell."""
    reason = error.reason.partition(":")[0]
    detail = "the limit cannot be checked now, and this plan refuses then"
    return Problem(503, detail, retry_after=whole_seconds(error.retry_after), members={"degraded": reason})


def _mode(target: Target, current: RateLimitMode) -> RateLimitMode:
    """Return the mode of a request: the weakest of the present one, which is read once, the plan's and the tenant's."""
    if target.plan.mode is _ON and target.tenant.mode is _ON:
        return current
    return weakest(current, target.plan.mode, target.tenant.mode)


def _violation(target: Target, result: RateLimitResult) -> Violation:
    at = datetime.datetime.fromtimestamp(clock.now(), datetime.UTC)
    count, most = result.request_count, result.max_requests
    return Violation(target.subject, target.resource, result.limit, at, count, most, target.tenant.id)
