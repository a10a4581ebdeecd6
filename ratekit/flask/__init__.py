"""ratekit for Flask: an extension, a decorator for views and blueprints, limits from within a view, and a command."""

try:
    import flask as _  # noqa: F401
except ImportError:
    from ratekit.core.errors import MissingExtraError

    raise MissingExtraError("ratekit.flask", "flask") from None

from ratekit.flask.apply import apply_element_rate_limit, apply_rate_limit
from ratekit.flask.decorators import RateLimit, rate_limit
from ratekit.flask.errors import RateLimitExceeded, RateLimitUnavailable, UnusableRequestError
from ratekit.flask.extension import RateLimits, install
from ratekit.flask.settling import usage

__all__ = [
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitUnavailable",
    "RateLimits",
    "UnusableRequestError",
    "apply_element_rate_limit",
    "apply_rate_limit",
    "install",
    "rate_limit",
    "usage",
]
