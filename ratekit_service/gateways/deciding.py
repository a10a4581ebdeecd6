"""By what `/v1/authorize` decides: the keys, plans and counters of the check service."""

from __future__ import annotations

import msgspec

from ratekit_service.checks.answers import CheckAnswer
from ratekit_service.checks.requests import CheckRequest
from ratekit_service.gateways.authorize import PATH, Answer, Authorization, Authorize
from ratekit_service.problems import Problem
from ratekit_service.service import Service

_SCOPE = "check"  # that a key needs


class AuthorizeAnswer(msgspec.Struct, gc=False):
    """The body of a decision. Some proxies show it to clients, so it has what is theirs to know, and no id of a plan."""

    allowed: bool
    remaining: int
    reset_at: float
    retry_after_ms: int | None
    limit: int
    rule: str


def authorize_by(service: Service) -> Authorize:
    """Return what decides for proxies: a check like that of `/v1/check`."""

    async def authorize(asked: Authorization) -> Answer:
        try:
            key = service.authentication.key(asked.api_key, _SCOPE, asked.peer or "")
            checked = await service.handlers.check(key, _request(asked))
        except Problem as problem:
            return Answer(problem.status, problem.headers, problem.members, is_closed="degraded" in problem.members)
        service.note(PATH, checked.decisions)
        return Answer(checked.status, checked.headers, _shown(checked.body))

    return authorize


def _shown(body: CheckAnswer) -> AuthorizeAnswer:
    return AuthorizeAnswer(*(getattr(body, name) for name in AuthorizeAnswer.__struct_fields__))


def _request(asked: Authorization) -> CheckRequest:
    """Return the check. Raises Problem if a field of it is too long or too large."""
    fields = {"resource": asked.resource, "subject": asked.subject, "cost": asked.cost}
    try:
        return msgspec.convert(fields | ({"plan_id": asked.plan_id} if asked.plan_id else {}), CheckRequest)
    except msgspec.ValidationError as error:
        raise Problem(422, str(error)) from None
