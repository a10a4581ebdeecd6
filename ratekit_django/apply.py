"""Limits that depend on the content of a request: called by the view itself. The middleware answers what they raise."""

from __future__ import annotations

from typing import Any, Unpack

from ratekit.core import keys
from ratekit.core.results import RateLimitResult
from ratekit.web.steps import Verdict
from ratekit.web.view_limit import ApplyOptions, applied_limit
from ratekit_django.decisions import adecide, decide
from ratekit_django.urls import url_of


def apply_rate_limit(
    request: Any,
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int = 1,
    subject: str | None = None,
    **options: Unpack[ApplyOptions],
) -> RateLimitResult | None:
    """Limit a request by numbers that the view has found, for its project or a subject that is given.

    increment_amount is what it costs. Returns the result, None if the request is not limited; raises RateLimitExceeded.
    To look without spending, use get_limiter().peek: a cost of 0 passes even where nothing is left.
    """
    limit = applied_limit(max_requests, expiry, increment_amount, subject, **options)
    return _result(decide([limit], request, once=False))


async def aapply_rate_limit(
    request: Any,
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int = 1,
    subject: str | None = None,
    **options: Unpack[ApplyOptions],
) -> RateLimitResult | None:
    """Do what apply_rate_limit does, awaiting."""
    return _result(
        await adecide([applied_limit(max_requests, expiry, increment_amount, subject, **options)], request, once=False)
    )


def apply_element_rate_limit(
    request: Any,
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int,
    subject: str | None = None,
    key_suffix: str = keys.ELEMENTS_SUFFIX,
    **options: Unpack[ApplyOptions],
) -> RateLimitResult | None:
    """Limit the elements of requests, apart from the requests themselves: a matrix of 10 x 5 costs 50."""
    options["endpoint"] = _element_endpoint(request, options.get("endpoint"), key_suffix)
    return apply_rate_limit(
        request, max_requests=max_requests, expiry=expiry, increment_amount=increment_amount, subject=subject, **options
    )


async def aapply_element_rate_limit(
    request: Any,
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int,
    subject: str | None = None,
    key_suffix: str = keys.ELEMENTS_SUFFIX,
    **options: Unpack[ApplyOptions],
) -> RateLimitResult | None:
    """Do what apply_element_rate_limit does, awaiting."""
    options["endpoint"] = _element_endpoint(request, options.get("endpoint"), key_suffix)
    return await aapply_rate_limit(
        request, max_requests=max_requests, expiry=expiry, increment_amount=increment_amount, subject=subject, **options
    )


def _element_endpoint(request: Any, endpoint: str | None, suffix: str) -> str:
    return keys.element_endpoint(endpoint or url_of(request).route, suffix)


def _result(verdict: Verdict) -> RateLimitResult | None:
    if verdict.error is not None:
        raise verdict.error
    return verdict.result
