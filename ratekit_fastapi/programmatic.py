"""Limits that depend on the content of a request: called by the endpoint itself."""

from __future__ import annotations

from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekit import keys
from ratekit.errors import RatekitError
from ratekit.front import cost_of
from ratekit.modes import RateLimitMode
from ratekit.results import RateLimitResult
from ratekit_fastapi.decisions import raise_as_response, run, write_headers
from ratekit_fastapi.dependencies import ProjectRateLimiter
from ratekit_fastapi.settings import settings_of


async def apply_rate_limit(
    request: HTTPConnection,
    response: Response,
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int = 1,
    endpoint: str | None = None,
    subject: str | None = None,
    redis_client: Any = None,
    **options: Any,
) -> RateLimitResult | None:
    """Limit a request by numbers that the endpoint has found, for its project or a subject that is given.

    Returns the result, None if the request is not limited (no project, or the mode is off); raises RateLimitExceeded.
    redis_client is used instead of the installed store.
    """
    settings = settings_of(request.scope)
    by = None if subject is None else lambda _: subject
    limiter = ProjectRateLimiter(max_requests, expiry, endpoint=endpoint, by=by, **options)
    mode = limiter.current_mode()
    if mode is RateLimitMode.OFF:
        return None
    result = None
    try:
        await settings.identity(request)
        call = limiter.call(request, settings, cost_of(increment_amount, request))
        if call is None:
            limiter.note_pass(request)
            return None
        result = await run(limiter, request, call, mode, settings, redis_client)
    except RatekitError as error:
        raise_as_response(error, mode, request.scope)
    write_headers(response, request.scope, settings)
    return result


async def apply_element_rate_limit(
    request: HTTPConnection,
    response: Response,
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int,
    key_suffix: str = keys.ELEMENTS_SUFFIX,
    **options: Any,
) -> RateLimitResult | None:
    """Limit the elements of requests, apart from the requests themselves: a matrix of 10 x 5 costs 50."""
    limiter = ProjectRateLimiter(max_requests, expiry, endpoint=options.pop("endpoint", None))
    endpoint = keys.element_endpoint(limiter.endpoint_for(request), key_suffix)
    return await apply_rate_limit(
        request,
        response,
        max_requests=max_requests,
        expiry=expiry,
        increment_amount=increment_amount,
        endpoint=endpoint,
        **options,
    )
