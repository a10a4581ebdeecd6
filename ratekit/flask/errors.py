"""Refusals that Flask turns into responses by itself, or hands to the application's own errorhandler."""

from __future__ import annotations

from functools import lru_cache

from flask import current_app
from werkzeug import exceptions

from ratekit.core import errors
from ratekit.core.headers import whole_seconds
from ratekit.core.results import RateLimitResult
from ratekit.web.answers import ErrorResponse


class _Refused(exceptions.HTTPException):
    """An answer of ratekit's, unless the application has an errorhandler for it."""

    def __init__(self, response: ErrorResponse, description: str) -> None:
        Exception.__init__(self, description)  # not that of werkzeug, which would call those of ratekit's errors
        self.description = description
        self.response = current_app.response_class(response.body, response.status, response.headers)


class RateLimitExceeded(_Refused, exceptions.TooManyRequests, errors.RateLimitExceeded):
    """A 429, for `errorhandler(429)` too. `result` says by how much and until when."""

    def __init__(self, response: ErrorResponse, result: RateLimitResult) -> None:
        super().__init__(response, result.describe())
        self.result = result
        self.retry_after = _whole(result.retry_after)


class RateLimitUnavailable(_Refused, exceptions.ServiceUnavailable, errors.RateLimitUnavailable):  # type: ignore[misc]
    """A 503: the store cannot tell, and the limiter refuses then."""

    def __init__(self, response: ErrorResponse, error: errors.RateLimitUnavailable) -> None:
        super().__init__(response, str(error))
        self.reason, self.retry_after = error.reason, _whole(error.retry_after)


class UnusableRequestError(_Refused, errors.UnusableRequestError):
    """A 4xx: the request does not say what a limit needs to know."""

    def __init__(self, response: ErrorResponse, error: errors.UnusableRequestError) -> None:
        super().__init__(response, error.detail)
        self.detail, self.status = error.detail, error.status


def as_exception(response: ErrorResponse, error: errors.RatekitError) -> Exception:
    """Return what Flask understands in place of an error of ratekit's."""
    if isinstance(error, errors.RateLimitExceeded):
        return RateLimitExceeded(response, error.result)
    if isinstance(error, errors.RateLimitUnavailable):
        return RateLimitUnavailable(response, error)
    return _unusable(response.status)(response, error) if isinstance(error, errors.UnusableRequestError) else error


@lru_cache(maxsize=16)
def _unusable(status: int) -> type[UnusableRequestError]:
    """Return the class for a status: Flask looks for an errorhandler by the class."""
    kind = exceptions.default_exceptions.get(status, exceptions.BadRequest)
    return type("UnusableRequestError", (UnusableRequestError, kind), {"code": status, "__module__": __name__})


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else whole_seconds(seconds)
