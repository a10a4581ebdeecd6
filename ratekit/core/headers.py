"""Header lines and the body of a refusal, made here and nowhere else.

Pure functions over the figures of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import REQUESTS

if TYPE_CHECKING:
    from ratekit.core.results import RateLimitResult, Tier

DEFAULT_STYLE = "ratelimit"
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
REDUCED_CAPACITY = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
PROBLEM_TYPE = "application/problem+json"
RawLine = tuple[bytes, bytes]


class Style:
    """A set of header lines: their names, and what a result puts into each."""

    def __init__(self, names: Sequence[str], values: Callable[[RateLimitResult], Iterable[int | str]]) -> None:
        self.names = tuple(names)
        self.values = values
        self._raw_names = [name.lower().encode() for name in names]

    @property
    def window_names(self) -> tuple[bytes, ...]:
        """The names as ASGI has them, if the values are max_requests, remaining and ttl; else none."""
        return tuple(self._raw_names) if self.values is _window else ()

    def lines(self, result: RateLimitResult) -> dict[str, str]:
        """Return the header lines of a result, as texts."""
        return dict(zip(self.names, map(str, self.values(result)), strict=True))

    def raw_lines(self, result: RateLimitResult) -> list[RawLine]:
        """Return the header lines of a result, as ASGI has them."""
        values = self.values(result)
        return [(name, str(value).encode()) for name, value in zip(self._raw_names, values, strict=True)]


def render(result: RateLimitResult, style: str = DEFAULT_STYLE) -> dict[str, str]:
    """Return the headers of one result in one style, with Retry-After on a refusal."""
    return render_many((result,), (check_style(style),))


def render_many(results: Sequence[RateLimitResult], styles: Sequence[str] = (DEFAULT_STYLE,)) -> dict[str, str]:
    """Return one set of headers for several results on one answer: those of the most restrictive, in every style."""
    result = shown(results)
    if result is None:
        return {}
    lines = combined(styles).lines(result)
    return lines | retry_after(result) if lines else lines


def shown(results: Sequence[RateLimitResult]) -> RateLimitResult | None:
    """Return the most restrictive of several results: the one that headers show; None if there is none to show."""
    certain = results if len(results) == 1 else [result for result in results if result.degraded is None]
    if not certain:
        return None
    result = certain[0] if len(certain) == 1 else most_restrictive(certain)
    return result if result.is_shown else None


def most_restrictive(results: Sequence[RateLimitResult]) -> RateLimitResult:
    """Return the result that refuses, for the longest; else the one with the least left, relative to its maximum."""
    return min(results, key=_restriction)


def _restriction(result: RateLimitResult) -> tuple[float, ...]:
    if result.is_over_limit:
        wait = result.retry_after
        return (0, float("-inf") if wait is None else -wait)
    return (2 if result.unlimited else 1, result.remaining / max(result.max_requests, 1), -result.reset_after)


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
        "violated-policies": [tier.limit.title for tier in result.tiers if not tier.allowed and not tier.limit.shadow],
    } | ({} if result.retry_after is None else {"retry_after": whole_seconds(result.retry_after)})


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
    if style not in _STYLES:
        raise ConfigurationError(f"style {style!r} is unknown: it is one of {', '.join(_STYLES)}")
    return style


def _epoch_window(result: RateLimitResult) -> tuple[int, ...]:
    most, remaining, reset_us = result.window_us
    return most, remaining, -int(-(result.decided_at + reset_us / 1_000_000) // 1)


def _items(result: RateLimitResult) -> tuple[str, ...]:
    """Say the quota of every limit, and what is left of the binding one, and of the scarcest of every other unit."""
    all_tiers = result.tiers
    tiers = [tier for tier in all_tiers if not tier.limit.shadow and not tier.unlimited]
    shown_tiers = {tier.limit.unit: tier for tier in sorted(tiers, key=_left, reverse=True) if not _is_slot(tier)}
    binding = all_tiers[result.binding]
    others = [tier for unit, tier in shown_tiers.items() if unit != binding.limit.unit]
    state = [_state_item(tier) for tier in ([binding] if binding in tiers else []) + others]
    return ", ".join(_policy_item(tier, result.decided_at) for tier in tiers), ", ".join(state)


def _left(tier: Tier) -> float:
    return tier.remaining / max(tier.max_requests, 1)


def _is_slot(tier: Tier) -> bool:
    return tier.limit.algorithm == "concurrency"


def _policy_item(tier: Tier, decided_at: float) -> str:
    """Say a limit's quota and window; not the window where an override may have changed it. A bucket's is what it takes
    to fill it, and a calendar's is the period that runs.
    """
    item = f'"{tier.limit.title}";q={tier.max_requests}'
    if _is_slot(tier):
        return f'{item};qu="concurrent-requests"'
    if tier.limit.unit != REQUESTS:
        item = f'{item};qu="{tier.limit.unit}"'
    if tier.overridden:
        return item
    return f"{item};w={whole_seconds(_window_seconds(tier, decided_at))}"


def _window_seconds(tier: Tier, decided_at: float) -> float:
    if tier.limit.calendar is None:
        return tier.limit.refill_seconds
    before_end = decided_at + max(tier.reset_after - 1, 0)
    return tier.limit.calendar.seconds_at(round(before_end * 1_000_000))


def _state_item(tier: Tier) -> str:
    # The effective window must not end after Retry-After says that it is worth trying again.
    wait = tier.reset_after if tier.allowed or tier.retry_after is None else tier.retry_after
    remaining = tier.remaining if tier.allowed else 0
    return f'"{tier.limit.title}";r={remaining};t={-int(-wait // 1)}'


_window = attrgetter("window")
_STYLES: dict[str, Style] = {
    "ratelimit": Style(("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"), _window),
    "draft-11": Style(("RateLimit-Policy", "RateLimit"), _items),
    "x-ratelimit": Style(("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"), _epoch_window),
    "none": Style((), lambda _: ()),
}


def combined(names: Sequence[str]) -> Style:
    """Return one or several styles as one."""
    styles = [_STYLES[name] for name in dict.fromkeys(names)]
    if len(styles) == 1:
        return styles[0]
    lines = tuple(line for style in styles for line in style.names)
    return Style(lines, lambda result: [value for style in styles for value in style.values(result)])
