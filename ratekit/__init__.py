"""One rate limiter for every Python framework: one Lua script, in Redis or in the process."""

from ratekit.errors import (
    ConfigurationError,
    RatekitError,
    RateLimitExceeded,
    RateLimitUnavailable,
)
from ratekit.limiter import AsyncRateLimiter, RateLimiter
from ratekit.limits import Algorithm, Limit, Policy
from ratekit.modes import RateLimitMode, get_rate_limit_mode
from ratekit.results import RateLimitResult

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "AsyncRateLimiter",
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
