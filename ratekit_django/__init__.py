"""ratekit for Django: a decorator, a mixin, a middleware, throttles for DRF and Ninja, checks and a command."""

try:
    import django as _  # noqa: F401
except ImportError:
    from ratekit.core.errors import MissingExtraError

    raise MissingExtraError("ratekit_django", "django") from None

from ratekit.core.errors import RateLimitExceeded, RateLimitUnavailable, UnusableRequestError
from ratekit_django.apply import (
    aapply_element_rate_limit,
    aapply_rate_limit,
    apply_element_rate_limit,
    apply_rate_limit,
)
from ratekit_django.conf import get_async_limiter, get_limiter, get_plans
from ratekit_django.decisions import client_address
from ratekit_django.decorators import RateLimitMixin, rate_limit
from ratekit_django.requests import usage_of

__all__ = [
    "RateLimitExceeded",
    "RateLimitMixin",
    "RateLimitUnavailable",
    "UnusableRequestError",
    "aapply_element_rate_limit",
    "aapply_rate_limit",
    "apply_element_rate_limit",
    "apply_rate_limit",
    "client_address",
    "get_async_limiter",
    "get_limiter",
    "get_plans",
    "rate_limit",
    "usage_of",
]
