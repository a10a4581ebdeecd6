"""Refusals that FastAPI and Starlette turn into responses by themselves."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ratekit import errors
from ratekit.front import Refusal
from ratekit.results import RateLimitResult


class _Refused(HTTPException):
    """An answer of ratekit's: with `install` its own body, without it FastAPI's {"detail": …}."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        lines = {name: value for name, value in refusal.headers.items() if name != "Content-Type"}
        super().__init__(refusal.status, detail=detail, headers=lines)
        self.refusal = refusal


class RateLimitExceeded(_Refused, errors.RateLimitExceeded):
    """A 429. `result` says by how much and until when."""

    def __init__(self, refusal: Refusal, result: RateLimitResult) -> None:
        _Refused.__init__(self, refusal, detail=result.describe())
        self.result = result


class RateLimitUnavailable(_Refused, errors.RateLimitUnavailable):
    """A 503: the store cannot tell, and the limiter refuses then."""

    def __init__(self, refusal: Refusal, error: errors.RateLimitUnavailable) -> None:
        _Refused.__init__(self, refusal, detail=str(error))
        self.reason, self.retry_after = error.reason, error.retry_after


class UnusableRequestError(_Refused, errors.UnusableRequestError):
    """A 4xx: the request does not say what a limit needs to know."""

    def __init__(self, refusal: Refusal, error: errors.UnusableRequestError) -> None:
        _Refused.__init__(self, refusal, detail=error.detail)
        self.status = error.status


REFUSALS = (RateLimitExceeded, RateLimitUnavailable, UnusableRequestError)


async def answer(_: Request, error: Exception) -> Response:
    """Answer a refusal with ratekit's own body."""
    refusal: Refusal = error.refusal  # type: ignore[attr-defined]
    return Response(refusal.body, refusal.status, headers=refusal.headers)


def answer_in(scope: MutableMapping[str, Any]) -> None:
    """Let the application that runs answer refusals like the one that it is mounted in, unless it has a way of its own."""
    handlers = scope.get("starlette.exception_handlers")
    if isinstance(handlers, tuple):
        for kind in REFUSALS:
            handlers[0].setdefault(kind, answer)
