"""One rate limiter for every Python framework: one Lua script, in Redis or in the process."""

from typing import TYPE_CHECKING, Any

from ratekit.core.errors import (
    ConfigurationError,
    RatekitError,
    RateLimitExceeded,
    RateLimitUnavailable,
)
from ratekit.core.limits import Algorithm, Limit, Policy
from ratekit.core.modes import RateLimitMode, get_rate_limit_mode
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter

if TYPE_CHECKING:
    from ratekit.core.calendars import Calendar

__version__ = "0.2.0"

__all__ = [
    "Algorithm",
    "AsyncRateLimiter",
    "Calendar",
    "ConfigurationError",
    "Limit",
    "Policy",
    "RateLimitExceeded",
    "RateLimitMode",
    "RateLimitResult",
    "RateLimitUnavailable",
    "RateLimiter",
    "RatekitError",
    "get_rate_limit_mode",
]


def __getattr__(name: str) -> Any:
    """Load calendars when they are asked for: few limits have one, and they need time zones."""
    if name != "Calendar":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ratekit.core.calendars import Calendar

    return Calendar
