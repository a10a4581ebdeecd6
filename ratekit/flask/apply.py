"""Limits that depend on the content of a request: called by the view itself."""

from __future__ import annotations

from typing import Unpack

from flask import request

from ratekit.core import keys
from ratekit.core.results import RateLimitResult
from ratekit.flask.extension import enforce
from ratekit.flask.requests import UNMATCHED
from ratekit.web.view_limit import ApplyOptions, applied_limit


def apply_rate_limit(
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int = 1,
    subject: str | None = None,
    **options: Unpack[ApplyOptions],
) -> RateLimitResult | None:
    """Limit the request that runs by numbers that the view has found, for its project or a subject that is given.

    increment_amount is what it costs. Returns the result, None if the request is not limited; raises RateLimitExceeded.
    """
    return enforce([applied_limit(max_requests, expiry, increment_amount, subject, **options)], once=False)


def apply_element_rate_limit(
    *,
    max_requests: int,
    expiry: float,
    increment_amount: int,
    subject: str | None = None,
    key_suffix: str = keys.ELEMENTS_SUFFIX,
    **options: Unpack[ApplyOptions],
) -> RateLimitResult | None:
    """Limit the elements of requests, apart from the requests themselves: a matrix of 10 x 5 costs 50."""
    route = UNMATCHED if request.url_rule is None else request.url_rule.rule
    options["endpoint"] = keys.element_endpoint(options.get("endpoint") or route, key_suffix)
    return apply_rate_limit(
        max_requests=max_requests, expiry=expiry, increment_amount=increment_amount, subject=subject, **options
    )
