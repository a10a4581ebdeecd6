"""Trials: checks by numbers that the caller makes up. Only the demo has them, and only for its own tenant.

They are decided as all checks are, so that overrides and violations work too. What they can fill is bounded: the demo's
tenant may ask so many a second, and no trial's counter lives longer than LONGEST_SECONDS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from ratekit.core.protocol import CHECK, Operation
from ratekit_service.administration import problems
from ratekit_service.checks import answers, models, quotas
from ratekit_service.checks.answers import Decision, Target
from ratekit_service.checks.handlers import Answer, answer_of
from ratekit_service.checks.routes import Checker, Reader, response_of
from ratekit_service.configuration.records import Key, Plan
from ratekit_service.models import Body
from ratekit_service.plans.definitions import PlanError, Terms, terms_of
from ratekit_service.plans.models import Definition
from ratekit_service.policies.resources import endpoint_of
from ratekit_service.problems import Problem, invalid

if TYPE_CHECKING:
    from ratekit_service.service import Service

router = APIRouter(prefix="/v1/demo", tags=["demo"], responses=problems(400, 401, 403, 422, 429, 503))
TENANT = "demo"
TENANT_LIMIT = "200/s burst 1000"
LONGEST_SECONDS = 300
_NAME = "trial"


class TrialBody(Body):
    """Who asks for what, at what cost, and the numbers to decide it by."""

    resource: models.Name
    subject: models.Name
    cost: models.Cost = 1
    plan: Definition


@router.post("/check")
async def check(body: TrialBody, key: Checker, request: Request) -> Response:
    """Decide a request by the given numbers, and spend its cost if it is allowed."""
    decision = await _decide(request, key, body, CHECK)
    return response_of(request, answer_of(decision), models.CheckAnswer)


@router.post("/peek")
async def peek(body: TrialBody, key: Reader, request: Request) -> Response:
    """Say what a check would answer, and spend nothing."""
    decision = await _decide(request, key, body, Operation.PEEK)
    answer = Answer(200, answers.header_lines(decision, refused=False), answers.check_answer(decision))
    return response_of(request, answer, models.CheckAnswer)


async def _decide(request: Request, key: Key, body: TrialBody, operation: Operation) -> Decision:
    service: Service = request.app.state.service
    tenant = service.decider.tenant_of(key)
    if tenant.name != TENANT:
        raise Problem(403, "trials are for keys of the demo's tenant")
    policy, algorithm, mode, on_outage = _terms(body)
    plan = Plan(_NAME, tenant.id, _NAME, policy, algorithm, mode, on_outage)
    quotas.refuse_bad_cost(plan, body.cost, "cost")
    target = Target(tenant, plan, endpoint_of(tenant.id, body.resource), body.subject, body.resource)
    return await service.decider.decide(target, operation, body.cost)


def _terms(body: TrialBody) -> Terms:
    try:
        terms = terms_of(_NAME, body.plan.model_dump(exclude_none=True))
    except PlanError as error:
        raise invalid(str(error), f"plan.{error.field}") from None
    longest = max(limit.refill_seconds for limit in terms.policy.limits)
    if longest > LONGEST_SECONDS:
        detail = f"these numbers take {longest:g} s to be whole again: a trial has {LONGEST_SECONDS} at most"
        raise invalid(detail, "plan")
    return terms
