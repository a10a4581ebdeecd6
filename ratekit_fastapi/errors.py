"""Refusals that FastAPI and Starlette turn into responses by themselves."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ratekit.core import errors
from ratekit.core.results import RateLimitResult
from ratekit.web.answers import ErrorResponse


class _Refused(HTTPException):
    """An answer of ratekit's: with `install` its own body, without it FastAPI's {"detail": …}."""

    def __init__(self, response: ErrorResponse, detail: str) -> None:
        lines = {name: value for name, value in response.headers.items() if name != "Content-Type"}
        super().__init__(response.status, detail=detail, headers=lines)
        self.response = response


class RateLimitExceeded(_Refused, errors.RateLimitExceeded):
    """A 429. `result` says by how much and until when."""

    def __init__(self, response: ErrorResponse, result: RateLimitResult) -> None:
        _Refused.__init__(self, response, detail=result.describe())
        self.result = result


class RateLimitUnavailable(_Refused, errors.RateLimitUnavailable):
    """A 503: the store cannot tell, and the limiter refuses then."""

    def __init__(self, response: ErrorResponse, error: errors.RateLimitUnavailable) -> None:
        _Refused.__init__(self, response, detail=str(error))
        self.reason, self.retry_after = error.reason, error.retry_after


class UnusableRequestError(_Refused, errors.UnusableRequestError):
    """A 4xx: the request does not say what a limit needs to know."""

    def __init__(self, response: ErrorResponse, error: errors.UnusableRequestError) -> None:
        _Refused.__init__(self, response, detail=error.detail)
        self.status = error.status


REFUSALS = (RateLimitExceeded, RateLimitUnavailable, UnusableRequestError)


async def answer(_: Request, error: Exception) -> Response:
    """Answer a refusal with ratekit's own body."""
    response: ErrorResponse = error.response  # type: ignore[attr-defined]
    return Response(response.body, response.status, headers=response.headers)


def answer_in(scope: MutableMapping[str, Any]) -> None:
    """Let the application that runs answer refusals like the one that it is mounted in, unless it has a way of its own."""
    handlers = scope.get("starlette.exception_handlers")
    if isinstance(handlers, tuple):
        for kind in REFUSALS:
            handlers[0].setdefault(kind, answer)
