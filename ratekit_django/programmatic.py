"""Limits that depend on the content of a request: called by the view itself. The middleware answers what they raise."""

from __future__ import annotations

from typing import Any

from ratekit import keys
from ratekit.results import RateLimitResult
from ratekit_django.decisions import Ledger, Outcome, adecide, decide
from ratekit_django.limits import ViewLimit, view_limit
from ratekit_django.urls import url_of


def apply_rate_limit(request: Any, *, max_requests: int, expiry: float, **options: Any) -> RateLimitResult | None:
    """Limit a request by numbers that the view has found, for its project or a subject that is given.

    increment_amount is what it costs; subject, endpoint and what rate_limit takes may be given too. Returns the result, None
    if the request is not limited; raises RateLimitExceeded.
    """
    limit = _limit(max_requests, expiry, **options)
    return _result(decide([limit], request, ledger=Ledger()))


async def aapply_rate_limit(request: Any, *, max_requests: int, expiry: float, **options: Any) -> RateLimitResult | None:
    """Do what apply_rate_limit does, awaiting."""
    limit = _limit(max_requests, expiry, **options)
    return _result(await adecide([limit], request, ledger=Ledger()))


def apply_element_rate_limit(request: Any, *, increment_amount: int, **options: Any) -> RateLimitResult | None:
    """Limit the elements of requests, apart from the requests themselves: a matrix of 10 x 5 costs 50."""
    return apply_rate_limit(request, **_of_elements(request, increment_amount, **options))


async def aapply_element_rate_limit(request: Any, *, increment_amount: int, **options: Any) -> RateLimitResult | None:
    """Do what apply_element_rate_limit does, awaiting."""
    return await aapply_rate_limit(request, **_of_elements(request, increment_amount, **options))


def _limit(
    max_requests: int, expiry: float, *, increment_amount: int = 1, subject: str | None = None, **options: Any
) -> ViewLimit:
    if subject is not None:
        options["by"] = lambda _: subject
    return view_limit(max_requests, expiry, cost=lambda _: increment_amount, **options)


def _of_elements(request: Any, increment_amount: int, **options: Any) -> dict[str, Any]:
    whole = options.pop("endpoint", None) or url_of(request).endpoint(request.method)
    endpoint = keys.element_endpoint(whole, options.pop("key_suffix", keys.ELEMENTS_SUFFIX))
    return options | {"increment_amount": increment_amount, "endpoint": endpoint}


def _result(outcome: Outcome) -> RateLimitResult | None:
    if outcome.error is not None:
        raise outcome.error
    return outcome.result
