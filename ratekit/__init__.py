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
    from ratekit.limiter.reservations import Reservation

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
    "Reservation",
    "get_rate_limit_mode",
]


def __getattr__(name: str) -> Any:
    """Load what few programs name when it is asked for: calendars need time zones."""
    if name == "Calendar":
        from ratekit.core.calendars import Calendar

        return Calendar
    if name == "Reservation":
        from ratekit.limiter.reservations import Reservation

        return Reservation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
