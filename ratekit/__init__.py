"""One rate limiter for every Python framework: one Lua script, in Redis or in the process."""

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

__version__ = "0.2.0"

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
