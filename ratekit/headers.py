"""Header lines and the body of a refusal, made here and nowhere else.

Pure functions over the figures of a result; they know no other module of ratekit but its errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ratekit.errors import ConfigurationError

if TYPE_CHECKING:
    from ratekit.results import RateLimitResult, Tier

DEFAULT_STYLE = "ratelimit"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
PROBLEM_TYPE = "application/problem+json"


def render(result: RateLimitResult, style: str = DEFAULT_STYLE) -> dict[str, str]:
    """Return the headers of one result in one style, with Retry-After on a refusal."""
    lines = _style(style)
    if result.degraded is not None or result.unlimited or not result.is_enforced or lines is _none:
        return {}
    found = lines(result)
    return found if result.allowed else found | retry_after(result)


def render_many(results: Iterable[RateLimitResult], styles: Sequence[str] = (DEFAULT_STYLE,)) -> dict[str, str]:
    """Return one set of headers for several results on one answer: those of the most restrictive."""
    certain = [result for result in results if result.degraded is None]
    if not certain:
        return {}
    strictest = certain[0] if len(certain) == 1 else most_restrictive(certain)
    if len(styles) == 1:
        return render(strictest, styles[0])
    merged: dict[str, str] = {}
    for style in styles:
        merged |= render(strictest, style)
    return merged


def most_restrictive(results: Sequence[RateLimitResult]) -> RateLimitResult:
    """Return the result that refuses, for the longest; else the one with the least left."""
    return min(results, key=_restriction)


def _restriction(result: RateLimitResult) -> tuple[float, ...]:
    if result.is_over_limit:
        wait = result.retry_after
        return (0, float("-inf") if wait is None else -wait)
    return (2 if result.unlimited else 1, result.remaining, -result.reset_after)


def retry_after(result: RateLimitResult) -> dict[str, str]:
    """Return Retry-After for a refusal that waiting can mend: whole seconds, rounded up, at least one."""
    if result.allowed:
        return {}
    wait = result.retry_after
    if wait is None:
        return {}
    return {"Retry-After": str(whole_seconds(wait))}


def whole_seconds(seconds: float) -> int:
    """Round a wait up to whole seconds, at least one."""
    return max(1, -int(-seconds // 1))


def problem(result: RateLimitResult) -> dict[str, Any]:
    """Return the body of a 429, for application/problem+json."""
    return {
        "type": QUOTA_EXCEEDED,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": result.describe(),
        "violated-policies": list(result.violated),
    }


def unavailable_problem(reason: str) -> dict[str, Any]:
    """Return the body of a 503: the store cannot tell, and the limiter refuses then."""
    return {
        "type": REDUCED_CAPACITY,
        "title": "Request cannot be satisfied due to temporary server capacity constraints",
        "status": 503,
        "detail": f"The rate limit cannot be checked now: {reason}",
    }


def check_style(style: str) -> str:
    """Return the name of a style, or raise ConfigurationError if there is none of that name."""
    _style(style)
    return style


def _ratelimit(result: RateLimitResult) -> dict[str, str]:
    most, remaining, reset_seconds = result.window
    return {
        "RateLimit-Limit": str(most),
        "RateLimit-Remaining": str(remaining),
        "RateLimit-Reset": str(reset_seconds),
    }


def _x_ratelimit(result: RateLimitResult) -> dict[str, str]:
    most, remaining, _ = result.window
    return {
        "X-RateLimit-Limit": str(most),
        "X-RateLimit-Remaining": str(remaining),
        "X-RateLimit-Reset": str(-int(-result.reset_at // 1)),
    }


def _draft_11(result: RateLimitResult) -> dict[str, str]:
    tiers = [tier for tier in result.tiers if not tier.limit.shadow and not tier.unlimited]
    return {
        "RateLimit-Policy": ", ".join(_policy_item(tier) for tier in tiers),
        "RateLimit": ", ".join(_state_item(tier) for tier in tiers if tier.name == result.limit),
    }


def _policy_item(tier: Tier) -> str:
    """Say a limit's quota and window; not the window where an override may have changed it. A bucket's is what it takes
    to fill it.
    """
    item = f'"{tier.name}";q={tier.max_requests}'
    if tier.limit.algorithm == "concurrency":
        return f'{item};qu="concurrent-requests"'
    if tier.overridden:
        return item
    return f"{item};w={whole_seconds(tier.limit.window * tier.limit.capacity / tier.limit.max_requests)}"


def _state_item(tier: Tier) -> str:
    # The effective window must not end after Retry-After says that it is worth trying again.
    wait = tier.reset_after if tier.allowed or tier.retry_after is None else tier.retry_after
    remaining = tier.remaining if tier.allowed else 0
    return f'"{tier.name}";r={remaining};t={-int(-wait // 1)}'


def _none(_: RateLimitResult) -> dict[str, str]:
    return {}


_STYLES: dict[str, Callable[[RateLimitResult], dict[str, str]]] = {
    "ratelimit": _ratelimit,
    "draft-11": _draft_11,
    "x-ratelimit": _x_ratelimit,
    "none": _none,
}


def _style(name: str) -> Callable[[RateLimitResult], dict[str, str]]:
    lines = _STYLES.get(name)
    if lines is None:
        raise ConfigurationError(f"style {name!r} is unknown: it is one of {', '.join(_STYLES)}")
    return lines
