"""Limits that depend on the content of a request: called by the endpoint itself."""

from __future__ import annotations

from typing import TypedDict, Unpack

from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekit.core import keys
from ratekit.core.errors import RatekitError
from ratekit.core.modes import RateLimitMode
from ratekit.core.results import RateLimitResult
from ratekit.stores.contract import AsyncClient
from ratekit.web.arguments import cost_of, refuse_unknown
from ratekit.web.checks import grouped
from ratekit.web.identity import By
from ratekit_fastapi.decisions import raise_undecided, run, write_headers
from ratekit_fastapi.dependencies import ProjectRateLimiter
from ratekit_fastapi.settings import settings_of

_NUMBERS = ("max_requests", "expiry", "increment_amount")


class ApplyOptions(TypedDict, total=False):
    """Further arguments, with the meaning that they have for ProjectRateLimiter."""

    mode: str | RateLimitMode | None
    on_outage: str | None
    anonymous: str


async def apply_rate_limit(
    request: HTTPConnection,
    response: Response,
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int = 1,
    endpoint: str | None = None,
    subject: str | None = None,
    redis_client: AsyncClient | None = None,
    **options: Unpack[ApplyOptions],
) -> RateLimitResult | None:
    """Limit a request by numbers that the endpoint has found, for its project or a subject that is given.

    Returns the result, None if the request is not limited (the mode is off, or anonymous is "pass"); raises
    RateLimitExceeded. To look without spending, use limiter.peek: a cost of 0 passes even where nothing is left.
    redis_client is used instead of the installed store.
    """
    refuse_unknown("apply_rate_limit", options, {*ApplyOptions.__annotations__, *_NUMBERS, "subject", "endpoint"})
    limiter = ProjectRateLimiter(max_requests, expiry, endpoint=endpoint, by=_by(subject), **options)
    return await _apply(limiter, request, response, increment_amount, redis_client)


async def apply_element_rate_limit(
    request: HTTPConnection,
    response: Response,
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int,
    endpoint: str | None = None,
    subject: str | None = None,
    redis_client: AsyncClient | None = None,
    key_suffix: str = keys.ELEMENTS_SUFFIX,
    **options: Unpack[ApplyOptions],
) -> RateLimitResult | None:
    """Limit the elements of requests, apart from the requests themselves: a matrix of 10 x 5 costs 50."""
    known = {*ApplyOptions.__annotations__, *_NUMBERS, "subject", "endpoint", "key_suffix"}
    refuse_unknown("apply_element_rate_limit", options, known)
    limiter = _ElementRateLimiter(max_requests, expiry, endpoint=endpoint, by=_by(subject), **options)
    limiter.key_suffix = key_suffix
    return await _apply(limiter, request, response, increment_amount, redis_client)


class _ElementRateLimiter(ProjectRateLimiter):
    """Limits elements, under an endpoint of their own."""

    key_suffix = keys.ELEMENTS_SUFFIX

    def endpoint_for(self, request: HTTPConnection) -> str:
        """Return what is limited: the elements of what the requests are limited by."""
        return keys.element_endpoint(super().endpoint_for(request), self.key_suffix)


def _by(subject: str | None) -> By | None:
    return None if subject is None else lambda _: subject


async def _apply(
    limiter: ProjectRateLimiter, request: HTTPConnection, response: Response, amount: int, redis_client: AsyncClient | None
) -> RateLimitResult | None:
    settings = settings_of(request.scope)
    mode = limiter.current_mode()
    if mode is RateLimitMode.OFF:
        return None
    try:
        await settings.identity(request)
        check = limiter.check_of(request, settings, mode, cost=cost_of(amount, request))
    except RatekitError as error:
        raise_undecided(error, mode, request.scope)
        return None
    if check is None:
        return None
    decider = settings.limiter(None, redis_client)
    groups = grouped([check], one_slot=decider.store.one_slot)
    result = await run(groups, decider, request, settings, once=False)
    write_headers(response, request.scope, settings)
    return result
