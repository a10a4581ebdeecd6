"""The application: composes the routes of all subjects, and the front before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

import ratekit
from ratekit.core.errors import DatabaseUnavailable
from ratekit_service import status
from ratekit_service.audit import routes as audit
from ratekit_service.checks import routes as checks
from ratekit_service.checks import usage
from ratekit_service.checks.front import Front
from ratekit_service.checks.models import CheckAnswer, ProblemModel, ReservationAnswer, RuleAnswer
from ratekit_service.gateways import documentation as authorize
from ratekit_service.gateways.authorize import AuthorizeMiddleware
from ratekit_service.gateways.deciding import authorize_by
from ratekit_service.keys import routes as keys
from ratekit_service.overrides import routes as overrides
from ratekit_service.page import routes as page
from ratekit_service.page import trials
from ratekit_service.plans import routes as plans
from ratekit_service.policies import routes as policies
from ratekit_service.problems import Problem
from ratekit_service.rules import routes as rules
from ratekit_service.service import Service
from ratekit_service.settings import Settings, load
from ratekit_service.tenants import routes as tenants
from ratekit_service.validation import problem_of
from ratekit_service.violations import routes as violations

ROUTERS = (checks, usage, status, tenants, plans, keys, policies, rules, overrides, violations, audit, page)
_DETAILS = {
    400: "the body cannot be read: it is not JSON in UTF-8, is nested too deeply, or has a number of thousands of digits",
    404: "there is no such path",
}
_DESCRIPTION = "One rate limiter for services in any language. Callers have an `x-api-key`, administrators a bearer token."


def create_app(settings: Settings | None = None) -> Front:
    """Return the service as an ASGI application. Without settings, the environment says what it needs."""
    service = Service(load() if settings is None else settings)
    app = FastAPI(
        title="ratekit",
        version=ratekit.__version__,
        description=_DESCRIPTION,
        lifespan=_lifespan,
        docs_url=None,  # FastAPI's pages load scripts from another host: page/routes.py has one of ours
        redoc_url=None,
        redirect_slashes=False,  # a redirect would send a key to whatever host the request names, perhaps without TLS
    )
    app.state.service = service
    for module in (*ROUTERS, trials) if service.settings.demo else ROUTERS:
        app.include_router(module.router)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(DatabaseUnavailable, _without_database)
    app.add_exception_handler(HTTPException, _http_error)
    _document_problems(app)
    return Front(AuthorizeMiddleware(app, authorize_by(service)), service)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    await service.start()
    try:
        yield
    finally:
        await service.stop()


def _document_problems(app: FastAPI) -> None:
    """Put the models that answers refer to into the OpenAPI document."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        document = original()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = ProblemModel.model_json_schema()
        document["paths"] |= authorize.paths()
        for model in (CheckAnswer, ReservationAnswer, RuleAnswer):
            schemas.setdefault(model.__name__, model.model_json_schema(ref_template="#/components/schemas/{model}"))
        return document

    app.openapi = openapi  # type: ignore[method-assign]


async def _problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - it is registered for this class
    response = Response(error.body, error.status)
    response.raw_headers = [*error.headers, (b"content-length", b"%d" % len(error.body))]
    return response


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    return await _problem(request, problem_of(error.errors(), request.headers.get("content-type")))


async def _without_database(request: Request, error: Exception) -> Response:
    return await _problem(request, Problem(503, "the database does not answer; checks go on without it", retry_after=1))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    if error.status_code == 405:
        methods = ", ".join(_methods(request))
        detail = f"{request.method} is no method of this path, which has {methods}"
        return await _problem(request, Problem(405, detail, headers=((b"allow", methods.encode()),)))
    lines = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    detail = _DETAILS.get(error.status_code, str(error.detail))
    return await _problem(request, Problem(error.status_code, detail, headers=lines))


def _methods(request: Request) -> list[str]:
    """Return all methods of a path: several routes may share it, and Starlette tells those of the first one only."""
    routes = request.app.router.routes
    return [
        method
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
