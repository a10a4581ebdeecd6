"""Refusals that FastAPI and Starlette turn into responses by themselves."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ratekit.core import errors
from ratekit.core.results import RateLimitResult
from ratekit.web.answers import ANSWERED, ErrorResponse
from ratekit.web.decide import refusal_of, refuse
from ratekit.web.drivers import arun
from ratekit.web.ledger import Ledger
from ratekit_fastapi.settings import settings_of


class _Refused(HTTPException):
    """An answer of ratekit's: with `install` its own body, without it FastAPI's {"detail": …}.

    Subclasses name the core's class first: an application's handler for that one is used before one for HTTPException.
    """

    def __init__(self, response: ErrorResponse, detail: str) -> None:
        lines = {name: value for name, value in response.headers.items() if name != "Content-Type"}
        super().__init__(response.status, detail=detail, headers=lines)
        self.response = response


class RateLimitExceeded(errors.RateLimitExceeded, _Refused):
    """A 429. `result` says by how much and until when."""

    def __init__(self, response: ErrorResponse, result: RateLimitResult) -> None:
        _Refused.__init__(self, response, detail=result.describe())
        self.result = result


class RateLimitUnavailable(errors.RateLimitUnavailable, _Refused):
    """A 503: the store cannot tell, and the limiter refuses then."""

    def __init__(self, response: ErrorResponse, error: errors.RateLimitUnavailable) -> None:
        detail = json.loads(response.body)["detail"]  # not the error's own text: it names the store
        _Refused.__init__(self, response, detail=detail)
        self.reason, self.retry_after = error.reason, error.retry_after


class UnusableRequestError(errors.UnusableRequestError, _Refused):
    """A 4xx: the request does not say what a limit needs to know."""

    def __init__(self, response: ErrorResponse, error: errors.UnusableRequestError) -> None:
        _Refused.__init__(self, response, detail=error.detail)
        self.status = error.status


async def answer(request: Request, error: Exception) -> Response:
    """Answer a refusal with ratekit's own body: by our limiters, or by one that the application has called itself.

    Raises any other error of ratekit's, and what a WebSocket has to be closed for.
    """
    if isinstance(error, _Refused):
        response = error.response
    elif isinstance(error, ANSWERED) and request.scope["type"] == "http":
        response = await answer_to(error, request.scope)
    else:
        raise error
    return Response(response.body, response.status, headers=response.headers)


async def answer_to(error: errors.RatekitError, scope: MutableMapping[str, Any]) -> ErrorResponse:
    """Return the response to an error of a limiter that the application has called; give back what the request has spent."""
    settings, ledger = settings_of(scope), Ledger.of(scope)
    limiter = settings.limiter()
    await arun(refuse(ledger, limiter.store.place), limiter)
    return refusal_of(error, ledger, settings.writer)


def answer_in(scope: MutableMapping[str, Any]) -> None:
    """Let the application that runs answer refusals like the one that it is mounted in, unless it has a way of its own."""
    handlers = scope.get("starlette.exception_handlers")
    if isinstance(handlers, tuple):
        handlers[0].setdefault(errors.RatekitError, answer)
