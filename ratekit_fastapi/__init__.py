"""ratekit for FastAPI: limiters for Depends, limits from within an endpoint, and their installation."""

try:
    import fastapi as _  # noqa: F401
except ImportError:
    from ratekit.core.errors import MissingExtraError

    raise MissingExtraError("ratekit_fastapi", "fastapi") from None

from ratekit.limiter.reservations import Reservation
from ratekit_fastapi.apply import apply_element_rate_limit, apply_rate_limit
from ratekit_fastapi.dependencies import PathRateLimiter, ProjectRateLimiter, RateLimiterDependency
from ratekit_fastapi.errors import RateLimitExceeded, RateLimitUnavailable, UnusableRequestError
from ratekit_fastapi.installation import install
from ratekit_fastapi.middleware import RateLimitMiddleware
from ratekit_fastapi.openapi import RATE_LIMIT_RESPONSES
from ratekit_fastapi.reserving import ReserveLimiter
from ratekit_fastapi.settings import limiter_of

__all__ = [
    "RATE_LIMIT_RESPONSES",
    "PathRateLimiter",
    "ProjectRateLimiter",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "RateLimitUnavailable",
    "RateLimiterDependency",
    "Reservation",
    "ReserveLimiter",
    "UnusableRequestError",
    "apply_element_rate_limit",
    "apply_rate_limit",
    "install",
    "limiter_of",
]
