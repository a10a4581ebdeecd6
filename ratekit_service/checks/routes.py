"""The hot paths as FastAPI routes: the documentation, and the reference that the front is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.security import APIKeyHeader
from pydantic import BaseModel

from ratekit_service.administration import problems
from ratekit_service.checks import models, requests
from ratekit_service.checks.front import address_of
from ratekit_service.checks.handlers import Answer
from ratekit_service.configuration.records import Key

if TYPE_CHECKING:
    from ratekit_service.service import Service

router = APIRouter(tags=["deciding"])
_key_header = APIKeyHeader(name="x-api-key", auto_error=False, description="An API key of a tenant.")
_PROBLEMS = problems(400, 401, 403, 404, 408, 413, 422, 503)
LIMITED = {"Retry-After": {"description": "Seconds; on a refusal that waiting can mend.", "schema": {"type": "integer"}}}
NUMBERS = {
    name: {"description": text, "schema": {"type": "integer"}}
    for name, text in {
        "X-RateLimit-Limit": "The maximum.",
        "X-RateLimit-Remaining": "What is left of it.",
        "X-RateLimit-Reset": "When it is whole again, in seconds since the epoch.",
    }.items()
}


def _decided(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of a path that answers 200 or 429 with the same body."""
    schema = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    refused = {"application/json": schema, "application/problem+json": problem}
    return {
        **_PROBLEMS,
        200: {"description": "Allowed.", "headers": NUMBERS, "model": model},
        429: {"description": "Refused.", "headers": NUMBERS | LIMITED, "content": refused},
    }


def _answers_of(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {**_PROBLEMS, **problems(429), 200: {"description": "Done.", "model": model}}


class Caller:
    """A dependency: the key of a request, which has to have a scope."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    async def __call__(self, request: Request, text: Annotated[str | None, Depends(_key_header)]) -> Key:
        """Return the key. Raises Problem if there is none."""
        service: Service = request.app.state.service
        return service.authentication.key(text, self._scope, address_of(request.scope))


Checker = Annotated[Key, Depends(Caller("check"))]
Reader = Annotated[Key, Depends(Caller("read"))]
Charger = Annotated[Key, Depends(Caller("charge"))]


@router.post("/v1/check", responses=_decided(models.CheckAnswer))
async def check(body: models.CheckBody, key: Checker, request: Request) -> Response:
    """Decide a request by a plan, and spend its cost if it is allowed."""
    answer = await _service(request).handlers.check(key, _check(body))
    return response_of(request, answer, models.CheckAnswer)


@router.post("/v1/check/batch", responses=_answers_of(models.BatchAnswer))
async def check_batch(body: models.BatchBody, key: Checker, request: Request) -> Response:
    """Decide several requests, each for itself, in one round trip. Nothing is decided if one of them makes no sense."""
    answer = await _service(request).handlers.batch(key, requests.BatchRequest([_check(one) for one in body.checks]))
    return response_of(request, answer, models.BatchAnswer)


@router.post("/check", responses=_decided(models.RuleAnswer))
async def check_rule(body: models.RuleBody, key: Checker, request: Request) -> Response:
    """Decide a request by the rules of a client key and an endpoint; by a plan if there is no rule."""
    asked = requests.RuleRequest(body.client_key, body.endpoint, body.cost)
    return response_of(request, await _service(request).handlers.check_rule(key, asked), models.RuleAnswer)


@router.post("/v1/peek", responses=_answers_of(models.CheckAnswer))
async def peek(body: models.CheckBody, key: Reader, request: Request) -> Response:
    """Say what a check would answer, and spend nothing."""
    return response_of(request, await _service(request).handlers.peek(key, _check(body)), models.CheckAnswer)


@router.post("/v1/charge", responses=_answers_of(models.CheckAnswer))
async def charge(body: models.CheckBody, key: Charger, request: Request) -> Response:
    """Spend a cost whatever the maximum: what a request turned out to cost."""
    return response_of(request, await _service(request).handlers.charge(key, _check(body)), models.CheckAnswer)


@router.post("/v1/refund", responses=_answers_of(models.CheckAnswer))
async def refund(body: models.CheckBody, key: Charger, request: Request) -> Response:
    """Give a cost back in the same window, never more than is used."""
    return response_of(request, await _service(request).handlers.refund(key, _check(body)), models.CheckAnswer)


@router.post("/v1/release", responses=_answers_of(models.SlotAnswer))
async def release(body: models.SlotBody, key: Checker, request: Request) -> Response:
    """Free a slot of a concurrency plan; no matter if it is free already."""
    answer = await _service(request).handlers.release(key, requests.SlotRequest(body.slot))
    return response_of(request, answer, models.SlotAnswer)


@router.post("/v1/renew", responses=_answers_of(models.SlotAnswer))
async def renew(body: models.SlotBody, key: Checker, request: Request) -> Response:
    """Keep a slot for as long again. `held` is false if it was free already."""
    answer = await _service(request).handlers.renew(key, requests.SlotRequest(body.slot))
    return response_of(request, answer, models.SlotAnswer)


@router.post("/v1/reserve", responses=_decided(models.ReservationAnswer))
async def reserve(body: models.ReserveBody, key: Checker, request: Request) -> Response:
    """Spend an estimate now, and settle it by a commit when the cost is known. The answer has the id for it."""
    asked = requests.ReserveRequest(**dict(body))
    return response_of(request, await _service(request).handlers.reserve(key, asked), models.ReservationAnswer)


@router.post("/v1/commit", responses=_answers_of(models.ReservationAnswer))
async def commit(body: models.CommitBody, key: Checker, request: Request) -> Response:
    """Settle a reservation: what it did not need returns to its window, what it needed beyond is charged. Idempotent."""
    asked = requests.CommitRequest(**dict(body))
    return response_of(request, await _service(request).handlers.commit(key, asked), models.ReservationAnswer)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _check(body: models.CheckBody) -> requests.CheckRequest:
    return requests.CheckRequest(**dict(body))


def response_of(request: Request, answer: Answer, model: type[BaseModel]) -> Response:
    """Return the response of an answer, written by the model that documents it."""
    _service(request).note(request.url.path, answer.decisions)
    body = model.model_validate(msgspec.to_builtins(answer.body))
    response = Response(body.model_dump_json(exclude_unset=True), answer.status)
    response.raw_headers = [*answer.headers, (b"content-length", b"%d" % len(response.body))]
    return response
