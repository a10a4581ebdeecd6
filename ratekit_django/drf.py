"""Throttles for Django REST framework: all of a view's are decided in one call, and charge all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from django.core.exceptions import ImproperlyConfigured

from ratekit.errors import ConfigurationError, MissingExtraError, RatekitError, RateLimitExceeded
from ratekit.front import Refusal
from ratekit.rules import RuleLimits
from ratekit.wsgi import RESULTS
from ratekit_django.conf import conf
from ratekit_django.decisions import Outcome, decide
from ratekit_django.limits import USER, ViewLimit, view_limit
from ratekit_django.requests import MIDDLEWARE, state_of

try:
    from rest_framework.exceptions import APIException
    from rest_framework.settings import api_settings
    from rest_framework.throttling import BaseThrottle
except ImportError:
    raise MissingExtraError("ratekit_django.drf", "drf") from None

DECIDED = "ratekit.django.drf"  # the views whose throttles have decided the request


class Refused(APIException):
    """The answer to a request that cannot be decided: the store cannot tell, or the request does not say enough."""

    def __init__(self, refusal: Refusal, error: RatekitError) -> None:
        self.status_code = refusal.status
        super().__init__(getattr(error, "detail", str(error)))
        self.wait = int(refusal.headers.get("Retry-After", 0))


class RateLimitThrottle(BaseThrottle):
    """Limits each user, and who is not authenticated by the address.

    rate is the limit: a rate, several, a Limit or a Policy; it counts for each URL pattern. Without one, scope names a rate
    of the view's throttle_rates, else of DEFAULT_THROTTLE_RATES, and the URLs of a scope are counted together. options are
    those of rate_limit: by, cost, methods, endpoint, mode, on_outage, anonymous.
    """

    rate: RuleLimits | None = None
    scope: str | None = None
    options: dict[str, Any] = {}  # noqa: RUF012 - for subclasses to replace, like DRF's own

    _refused: RateLimitExceeded | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.rate is not None:
            cls.make_limit(cls.rate, None)  # one that makes no sense is told now

    @classmethod
    def of(cls, rate: RuleLimits, **options: Any) -> type[RateLimitThrottle]:
        """Make a throttle for `throttle_classes`: `[RateLimitThrottle.of("20/min", by="ip")]`."""
        return type(cls.__name__, (cls,), {"rate": rate, "options": cls.options | options, "__module__": cls.__module__})

    @classmethod
    def make_limit(cls, rate: RuleLimits, endpoint: str | None) -> ViewLimit:
        """Make the limit of a rate; for a scope, it is counted under that name."""
        defaults = {"by": USER, "anonymous": "ip", "endpoint": endpoint}
        return view_limit(limits=rate, **(defaults | cls.options))

    def scope_of(self, view: Any) -> str | None:
        """Return the scope in which a view is counted."""
        return self.scope

    def limit_for(self, request: Any, view: Any) -> ViewLimit | None:
        """Return the limit of a request, None if this throttle does not limit it."""
        if self.rate is not None:
            return _limit_of(cast("Any", type(self)), _hashable(self.rate), None)
        scope = self.scope_of(view)
        if scope is None:
            return None
        rate = getattr(view, "throttle_rates", {}).get(scope) or (api_settings.DEFAULT_THROTTLE_RATES or {}).get(scope)
        if rate is None:
            raise ImproperlyConfigured(f"scope {scope!r} has no rate: put one into DEFAULT_THROTTLE_RATES")
        return _limit_of(cast("Any", type(self)), _hashable(rate), scope)

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide the request by all of the view's throttles of ratekit, when the first of them is asked."""
        decided = state_of(request).setdefault(DECIDED, [])
        if any(other is view for other in decided):
            return True
        decided.append(view)
        outcome = decide(_limits_of(request, view), request)
        _write_headers(request, view, outcome)
        if outcome.error is None or outcome.refusal is None:
            return True
        if not isinstance(outcome.error, RateLimitExceeded):
            raise Refused(outcome.refusal, outcome.error)
        self._refused = outcome.error
        return False

    def wait(self) -> float | None:
        """Return how many seconds to wait, None if waiting does not help."""
        return None if self._refused is None else self._refused.result.retry_after


class UserRateLimitThrottle(RateLimitThrottle):
    """Limits each user by the rate of the scope "user", over all views; by the address who is not authenticated."""

    scope = "user"


class AnonRateLimitThrottle(RateLimitThrottle):
    """Limits the address of who is not authenticated, by the rate of the scope "anon", over all views."""

    scope = "anon"
    options = {"by": "ip"}  # noqa: RUF012

    def limit_for(self, request: Any, view: Any) -> ViewLimit | None:
        """Return the limit, None for a user."""
        known = request.user is not None and request.user.is_authenticated
        return None if known else super().limit_for(request, view)


class ScopedRateLimitThrottle(RateLimitThrottle):
    """Limits by the scope that the view names as its throttle_scope, if any."""

    def scope_of(self, view: Any) -> str | None:
        """Return the view's scope."""
        scope: str | None = getattr(view, "throttle_scope", None)
        return scope


def _limits_of(request: Any, view: Any) -> list[ViewLimit]:
    throttles = [throttle for throttle in view.get_throttles() if isinstance(throttle, RateLimitThrottle)]
    found = (throttle.limit_for(request, view) for throttle in throttles)
    return [limit for limit in found if limit is not None]


@lru_cache(maxsize=1024)
def _limit_of(throttle: Any, rate: Any, endpoint: str | None) -> ViewLimit:
    limit: ViewLimit = throttle.make_limit(rate, endpoint)
    return limit


def _hashable(rate: Any) -> Any:
    return tuple(rate) if isinstance(rate, Sequence) and not isinstance(rate, str) else rate


def _write_headers(request: Any, view: Any, outcome: Outcome) -> None:
    """Write the headers on what the view will answer, whatever that is; not if the middleware will."""
    state = state_of(request)
    headers = getattr(view, "headers", None)
    if headers is None or MIDDLEWARE in state:
        return
    headers.update(conf.answers.lines(state.get(RESULTS, ()), refused=False))
    if outcome.refusal is not None:
        headers.update({name: line for name, line in outcome.refusal.headers.items() if name != "Content-Type"})


def faults_of(view: Any) -> list[str]:
    """Return what is wrong with the throttles of a view's class: scopes without a rate, and rates that make no sense."""
    found = []
    for throttle in getattr(view, "throttle_classes", ()):
        if isinstance(throttle, type) and issubclass(throttle, RateLimitThrottle):
            try:
                throttle().limit_for(_Nobody(), view)
            except (ImproperlyConfigured, ConfigurationError) as error:
                found.append(f"{view.__qualname__}: {error}")
    return found


class _Nobody:
    """A request of nobody, to ask throttles for their limits by."""

    user = None
