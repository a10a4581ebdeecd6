"""What a tenant may know with its own key: its plans, and what a subject has used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from ratekit.core.protocol import Operation
from ratekit_service.administration import problems, refuse_unknown_query
from ratekit_service.checks import answers, models, quotas, requests
from ratekit_service.checks.routes import Reader
from ratekit_service.configuration.records import Plan
from ratekit_service.problems import invalid

if TYPE_CHECKING:
    from ratekit_service.service import Service

router = APIRouter(tags=["deciding"])


class PlanUsage(BaseModel):
    """A plan of the tenant, with its limits as texts, and the units that a cost names; none if it counts requests only."""

    id: str
    name: str
    limits: list[str]
    units: list[str]


class Usage(BaseModel):
    """What a tenant has, and what one of its subjects has used."""

    tenant: str
    config_version: int
    plans: list[PlanUsage]
    plan_id: str | None = None
    degraded: str | None = None
    limits: list[models.LimitState] | None = None


@router.get("/v1/usage", responses=problems(400, 401, 403, 404, 408, 413, 422, 429, 503))
async def usage(
    key: Reader,
    request: Request,
    resource: Annotated[models.Name | None, Query()] = None,
    subject: Annotated[models.Name | None, Query()] = None,
    plan_id: Annotated[models.PlanId | None, Query()] = None,
) -> Usage:
    """List the tenant's plans; with a resource and a subject, also what the subject has used. Spends nothing."""
    refuse_unknown_query(request)
    service: Service = request.app.state.service
    tenant = service.decider.tenant_of(key)
    configuration = service.refresher.configuration
    plans = [plan for plan in configuration.plans_of(tenant.id) if not plan.is_rule]
    answer = Usage(tenant=tenant.name, config_version=configuration.version, plans=list(map(_plan, plans)))
    if (resource is None) != (subject is None):
        raise invalid("a resource and a subject belong together", "subject" if subject is None else "resource")
    if resource is None or subject is None:
        return answer
    target = service.decider.place(key, tenant, requests.CheckRequest(resource, subject, plan_id=plan_id))
    decision = await service.decider.decide(target, Operation.PEEK, quotas.nothing(target.plan))
    states = [] if decision.result is None else answers.limit_states(decision.result)
    answer.plan_id, answer.limits = target.plan.id, [_shown(state) for state in states]
    answer.degraded = None if decision.result is None else decision.result.degraded
    return answer


def _plan(plan: Plan) -> PlanUsage:
    return PlanUsage(id=plan.id, name=plan.name, limits=list(map(str, plan.policy.limits)), units=list(plan.units))


def _shown(state: answers.LimitState) -> models.LimitState:
    """Return what a limit says, and whether it would let one more pass: the look itself has asked for nothing."""
    shown = models.LimitState.model_validate(state, from_attributes=True)
    shown.allowed = state.allowed and state.remaining > 0
    return shown
