"""Throttles for Django REST framework: all of a view's are decided in one call, and charge all or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Unpack, cast

from django.core.exceptions import ImproperlyConfigured

from ratekit.core.errors import ConfigurationError, MissingExtraError, RateLimitExceeded
from ratekit.web.answers import ErrorResponse
from ratekit.web.plans import LimitsFunction, RuleLimits
from ratekit.web.steps import Verdict
from ratekit.web.view_limit import USER, ViewLimit, ViewOptions, Who, view_limit
from ratekit_django.conf import conf
from ratekit_django.decisions import client_address, decide, user_subject
from ratekit_django.requests import RequestState

try:
    from rest_framework.exceptions import APIException
    from rest_framework.settings import api_settings
    from rest_framework.throttling import BaseThrottle
except ImportError:
    raise MissingExtraError("ratekit_django.drf", "drf") from None


class Refused(APIException):
    """The answer to a request that cannot be decided: the store cannot tell, or the request does not say enough."""

    def __init__(self, refusal: ErrorResponse) -> None:
        self.status_code = refusal.status
        super().__init__(json.loads(refusal.body)["detail"])  # not the error's own text: it names the store
        self.wait = int(refusal.headers.get("Retry-After", 0))


class RateLimitThrottle(BaseThrottle):
    """Limits each user, and requests without a user by the address.

    rate is the limit: a rate, several, a Limit, a Policy, or a callable of the request (in the body of a class, a
    staticmethod), as for rate_limit. Without one, the scope has it: in the view's throttle_rates, in
    THROTTLE_RATES of the class, else in DEFAULT_THROTTLE_RATES; None there means not limited. The views of a scope are
    counted together; without a scope, each URL pattern is counted for itself. options are those of rate_limit: by, cost,
    methods, endpoint, mode, on_outage, anonymous. Subclasses may override get_rate and get_cache_key, as those of DRF.
    """

    rate: RuleLimits | LimitsFunction | None = None
    scope: str | None = None
    THROTTLE_RATES: Mapping[str, RuleLimits | None] | None = None
    cache_format = "throttle_%(scope)s_%(ident)s"  # for a get_cache_key that was written for DRF
    options: dict[str, Any] = {}  # noqa: RUF012 - for subclasses to replace, like DRF's own

    _refused: RateLimitExceeded | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.rate is not None:
            cls.make_limit(cls.rate, None)  # one that makes no sense is told now

    @classmethod
    def of(cls, rate: RuleLimits | LimitsFunction, **options: Unpack[ViewOptions]) -> type[RateLimitThrottle]:
        """Make a throttle for `throttle_classes`: `[RateLimitThrottle.of("20/min", by="ip")]`."""
        given = staticmethod(rate) if callable(rate) else rate
        attributes = {"rate": given, "options": cls.options | options, "__module__": cls.__module__}
        return type(cls.__name__, (cls,), attributes)

    @classmethod
    def make_limit(cls, rate: RuleLimits | LimitsFunction, endpoint: str | None) -> ViewLimit:
        """Make the limit of a rate; for a scope, it is counted under that name."""
        defaults = {"by": USER, "anonymous": "ip", "endpoint": endpoint}
        return view_limit(limits=rate, **(defaults | cls.options))

    def get_rate(self) -> RuleLimits | None:
        """Return the rate of the scope, None if it is not limited."""
        if not self.scope:
            raise ImproperlyConfigured(f"{type(self).__name__} has neither a rate nor a scope")
        rates: Any = self.THROTTLE_RATES
        if rates is None:
            rates = api_settings.DEFAULT_THROTTLE_RATES or {}
        if self.scope not in rates:
            raise ImproperlyConfigured(f"scope {self.scope!r} has no rate: put one, or None, into DEFAULT_THROTTLE_RATES")
        rate: RuleLimits | None = rates[self.scope]
        return rate

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Return who is limited, None if the request is not. Only a subclass's own is asked, in place of by."""
        return user_subject(request) or client_address(request)

    def get_ident(self, request: Any) -> str:
        """Return the client's address, of the peer or as the trusted proxies say."""
        return (client_address(request) or "").removeprefix("ip:")

    def scope_of(self, view: Any) -> str | None:
        """Return the scope in which a view is counted."""
        return self.scope

    def limit_on(self, view: Any) -> ViewLimit | None:
        """Return the limit that this throttle puts on a view, None if there is none."""
        self.scope = self.scope_of(view)
        rates = getattr(view, "throttle_rates", None) or {}
        rate = self.rate
        if rate is None:
            rate = rates[self.scope] if self.scope in rates else self.get_rate()
        endpoint = self.scope or (type(self).__name__ if self.has_own_keys() else None)
        return None if rate is None else _limit_of(cast("Any", type(self)), _hashable(rate), endpoint)

    def limit_for(self, request: Any, view: Any) -> ViewLimit | None:
        """Return the limit of a request, None if this throttle does not limit it."""
        limit = self.limit_on(view)
        if limit is None or not self.has_own_keys():
            return limit
        key = self.get_cache_key(request, view)
        return None if key is None else limit._replace(who=Who("call", call=lambda _: key))

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide the request by all of the view's throttles of ratekit, when the first of them is asked."""
        if self._was_decided(request):
            return True
        verdict = decide(_limits_of(request, view), request, decider=RateLimitThrottle)
        _write_headers(RequestState.of(request), view, verdict)
        if verdict.error is None or verdict.response is None:
            return True
        if not isinstance(verdict.error, RateLimitExceeded):
            raise Refused(verdict.response)
        self._refused = verdict.error
        return False

    def wait(self) -> float | None:
        """Return how many seconds to wait, None if waiting does not help."""
        return None if self._refused is None else self._refused.result.retry_after

    def _was_decided(self, request: Any) -> bool:
        """Whether another throttle was asked about this request of the framework; not if this one is asked again."""
        asked: set[type] = vars(request).setdefault("_ratekit_asked", set())
        if not asked or type(self) in asked:
            asked.clear()
        asked.add(type(self))
        return len(asked) > 1

    @classmethod
    def has_own_keys(cls) -> bool:
        """Whether a subclass says by get_cache_key who is limited."""
        return cls.get_cache_key not in _OUR_KEYS


class UserRateLimitThrottle(RateLimitThrottle):
    """Limits each user by the rate of the scope "user", over all views; by the address who is not authenticated."""

    scope = "user"


class AnonRateLimitThrottle(RateLimitThrottle):
    """Limits the address of who is not authenticated, by the rate of the scope "anon", over all views."""

    scope = "anon"
    options = {"by": "ip"}  # noqa: RUF012

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        """Return the address, None for a user."""
        return None if request.user and request.user.is_authenticated else client_address(request)

    def limit_for(self, request: Any, view: Any) -> ViewLimit | None:
        """Return the limit, None for a user."""
        is_limited = self.has_own_keys() or self.get_cache_key(request, view) is not None
        return super().limit_for(request, view) if is_limited else None


class ScopedRateLimitThrottle(RateLimitThrottle):
    """Limits by the scope that the view names as its throttle_scope, if any."""

    scope_attr = "throttle_scope"

    def scope_of(self, view: Any) -> str | None:
        """Return the view's scope."""
        scope: str | None = getattr(view, self.scope_attr, None)
        return scope

    def limit_on(self, view: Any) -> ViewLimit | None:
        """Return the limit of the view's scope, None if the view has none."""
        return super().limit_on(view) if self.scope_of(view) else None


_OUR_KEYS = (RateLimitThrottle.get_cache_key, AnonRateLimitThrottle.get_cache_key)
_IGNORED = ("cache", "timer", "parse_rate", "throttle_success", "throttle_failure", "get_ident")  # DRF uses them


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


def _write_headers(state: RequestState, view: Any, verdict: Verdict) -> None:
    """Write the headers on what the view will answer, whatever that is; those of the results not if the middleware will."""
    headers = getattr(view, "headers", None)
    if headers is None:
        return
    if not state.has_middleware:
        headers.update(conf.writer.lines(state.ledger.results, refused=False))
    if verdict.response is not None:
        headers.update({name: line for name, line in verdict.response.headers.items() if name != "Content-Type"})


class DeclaredView:
    """A view of DRF as a URL declares it: the attributes of its class, and those that as_view() was given."""

    def __init__(self, cls: type, given: Mapping[str, Any]) -> None:
        self.cls = cls
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cls, name)

    @property
    def throttles(self) -> list[type[RateLimitThrottle]]:
        """Its throttles that are ratekit's."""
        classes = self.throttle_classes
        return [throttle for throttle in classes if isinstance(throttle, type) and issubclass(throttle, RateLimitThrottle)]

    def limits(self) -> list[ViewLimit]:
        """Return the limits of its throttles, but for those that are misconfigured."""
        return [limit for throttle in self.throttles if isinstance(limit := self._limit_by(throttle), ViewLimit)]

    def faults(self) -> list[str]:
        """Return what is wrong with its throttles: scopes without a rate, and rates that make no sense."""
        found = (self._limit_by(throttle) for throttle in self.throttles)
        return [f"{self.cls.__qualname__}: {error}" for error in found if isinstance(error, Exception)]

    def ignored(self) -> list[str]:
        """Return what its throttles define that DRF would use, and ratekit does not."""
        return [f"{throttle.__qualname__}.{name}" for throttle in self.throttles for name in _ignored_by(throttle)]

    def _limit_by(self, throttle: type[RateLimitThrottle]) -> ViewLimit | Exception | None:
        try:
            return throttle().limit_on(self)
        except (ImproperlyConfigured, ConfigurationError) as error:
            return error


def declared_view(view: Any) -> DeclaredView | None:
    """Return what the view of a URL declares, None if it is not one of DRF."""
    is_of_drf = hasattr(view, "initkwargs") and hasattr(getattr(view, "cls", None), "throttle_classes")
    return DeclaredView(view.cls, view.initkwargs) if is_of_drf else None


def _ignored_by(throttle: type[RateLimitThrottle]) -> list[str]:
    own = {name for cls in throttle.__mro__ if _is_of_application(cls) for name in vars(cls)}
    return [name for name in _IGNORED if name in own and not (name == "get_ident" and throttle.has_own_keys())]


def _is_of_application(cls: type) -> bool:
    return not cls.__module__.startswith(("rest_framework.", "ratekit_django.", "builtins"))
