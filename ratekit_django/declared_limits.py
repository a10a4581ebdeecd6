"""The limits that a project declares, by endpoint: for who asks from outside of a request."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.web.table import Rule, Rules
from ratekit.web.view_limit import ViewLimit
from ratekit_django.conf import conf
from ratekit_django.decorators import limits_of_view
from ratekit_django.urls import Url, every_url, operations_of

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_STRENGTHS = (RateLimitMode.OFF, RateLimitMode.MONITOR, RateLimitMode.ON)


class Declared(NamedTuple):
    """A limit, on which URL, for which methods of its view (None: all)."""

    url: Url
    limit: ViewLimit
    methods: Sequence[str] | None = None
    where: str = "code"  # that declares it

    @property
    def endpoint(self) -> str:
        """Under what the limit counts."""
        return self.limit.fixed_endpoint or self.url.route

    def counts(self, method: str) -> bool:
        """Whether a request of that method is limited."""
        return self.limit.counts(method) and (self.methods is None or method in self.methods)


class DeclaredRules(Rules):
    """Finds what is limited under an endpoint: by decorators, mixins and throttles on views, by RULES and DEFAULT.

    An endpoint is what keys have: a URL pattern, or the scope under which throttles count several views together. A pattern,
    or the name of a URL, whose limits all count under another endpoint stands for the first of those.
    """

    def at(self, method: str, path: str) -> Rule | None:
        """Return the limits of an endpoint in one policy, with its mode; None if nothing declares any.

        There is no policy where all of them depend on the request.
        """
        found = [one for one in every_limit() if one.counts(method) and path in (one.endpoint, one.url.route, one.url.name)]
        if not found:
            return None
        endpoint = path if any(one.endpoint == path for one in found) else found[0].endpoint
        limits: dict[str, Limit] = {}
        counted = [one for one in found if one.endpoint == endpoint]
        for one in counted:
            fixed = one.limit.policy_on(method, one.url.operation)
            if fixed is not None:  # others depend on the request
                limits = {limit.name: limit for limit in fixed.limits} | limits
        policy = Policy(endpoint, limits.values()) if limits else None
        return Rule(endpoint=endpoint, policy=policy, mode=_mode_of(counted))


def _mode_of(declared: Sequence[Declared]) -> RateLimitMode | None:
    """Return the mode that the project sets for limits: the strongest of theirs, or RATEKIT["MODE"] if that is weaker."""
    own = max((one.limit.mode or RateLimitMode.ON for one in declared), key=_STRENGTHS.index)
    mode = own if conf.mode is None else weakest(own, conf.mode)
    return None if mode is RateLimitMode.ON and conf.mode is None else mode


def every_limit() -> Iterator[Declared]:
    """Yield every limit of the project, URL by URL."""
    for url in every_url():
        found = {"code": limits_of_view(url.view), "DRF": _limits_of_drf(url.view)}
        for where, limits in found.items():
            yield from (Declared(url, limit, where=where) for limit in limits)
        for limit, methods in conf.rules.found_by_method(_METHODS, url.route, url.name):
            yield Declared(url, limit, methods, "DEFAULT" if limit is conf.rules.default else "RULES")
        yield from _declared_by_ninja(url)
    for limit in conf.rules.limits:
        if limit.fixed_endpoint is not None:
            yield Declared(Url(limit.fixed_endpoint, "", None), limit, where="RULES")


def _limits_of_drf(view: Any) -> Sequence[ViewLimit]:
    """Return the limits of throttles, if the project uses ours in Django REST framework."""
    drf = sys.modules.get("ratekit_django.drf")
    declared = None if drf is None else drf.declared_view(view)
    return [] if declared is None else declared.limits()


def _declared_by_ninja(url: Url) -> Iterator[Declared]:
    """Yield what limits the operations of a path of Django Ninja: throttles, and decorators on their functions."""
    for operation in operations_of(url.view):
        throttles = (getattr(throttle, "limit", None) for throttle in operation.throttle_objects)
        limits = [limit for limit in throttles if isinstance(limit, ViewLimit)]
        yield from (Declared(url, limit, operation.methods, "Ninja") for limit in limits)
        yield from (Declared(url, limit, operation.methods) for limit in limits_of_view(operation.view_func))


declared = DeclaredRules()
