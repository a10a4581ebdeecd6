"""What is declared on a view, in a throttle or in a rule: a policy, whom it limits, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ratekit.anonymous import check_anonymous
from ratekit.errors import ConfigurationError
from ratekit.front import checked_cost, checked_mode
from ratekit.identity import KeyFunction, as_key_function
from ratekit.limits import Limit, Policy
from ratekit.modes import RateLimitMode
from ratekit.outage import OnOutage, as_on_outage
from ratekit.rules import RuleLimits, check_endpoint, policy_of
from ratekit_django.urls import Url

PROJECT, USER, ENDPOINT = "project", "user", "endpoint"
By = KeyFunction | Callable[[Any], str | None] | str
Cost = int | Callable[[Any], Any]


class Who(NamedTuple):
    """Whom a limit counts: by a key function of ratekit's, by a callable of the project's, or in one of three ways."""

    kind: str
    key: KeyFunction | None = None  # it is asked about ratekit's view of the request
    call: Callable[[Any], Any] | None = None  # it is asked about Django's request, and may be awaited


class ViewLimit(NamedTuple):
    """A limit as it is declared, checked when it is made."""

    policy: Policy
    cost: Cost
    who: Who
    methods: frozenset[str] | None
    endpoint: str | None
    mode: RateLimitMode | None
    on_outage: OnOutage | None
    anonymous: str | None

    def counts(self, method: str) -> bool:
        """Whether a request of that method is limited. HEAD is GET without the body; a preflight is the browser's doing."""
        if self.methods is None:
            return method != "OPTIONS"
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def endpoint_on(self, url: Url, method: str) -> str:
        """Return what is limited unless it was given: the endpoint of the URL; apart for some methods, if it has some."""
        return url.endpoint(method) if self.methods is None else f"{','.join(sorted(self.methods))} {url.route}"


def view_limit(
    max_requests: int | None = None,
    expiry: float | None = None,
    *,
    limits: RuleLimits | None = None,
    policy: Policy | Limit | None = None,
    cost: Cost = 1,
    by: By = PROJECT,
    methods: Iterable[str] | None = None,
    endpoint: str | None = None,
    mode: str | RateLimitMode | None = None,
    on_outage: str | None = None,
    anonymous: str | None = None,
) -> ViewLimit:
    """Limit a view: max_requests per expiry seconds, several limits, or a policy.

    by says who is limited: the project (default; what RATEKIT["IDENTIFY"] says), "user", "ip", "header:X-API-Key" and its
    like, "endpoint" for all together, a key function, or a callable of the request, which may be async, like cost.
    anonymous ("pass", "ip", "refuse") is what happens where there is no project or user. methods limits only those, apart;
    endpoint is the URL pattern unless it is given. What makes no sense is a ConfigurationError.
    """
    return ViewLimit(
        policy=policy_of(max_requests, expiry, limits, policy),
        cost=checked_cost(cost),
        who=_who(by),
        methods=None if methods is None else _checked_methods(methods),
        endpoint=check_endpoint(endpoint),
        mode=checked_mode(mode),
        on_outage=None if on_outage is None else as_on_outage(on_outage),
        anonymous=None if anonymous is None else check_anonymous(anonymous),
    )


def _who(by: By) -> Who:
    if by in (PROJECT, USER, ENDPOINT):
        return Who(str(by))
    if isinstance(by, str | KeyFunction):
        try:
            return Who("key", key=as_key_function(by))
        except ConfigurationError as error:
            known = f"{error}; here also {PROJECT!r}, {USER!r} or {ENDPOINT!r}"
            raise ConfigurationError(known if "unknown" in str(error) else str(error)) from None
    if not callable(by):
        raise ConfigurationError(f"by {by!r} is neither a text nor a callable")
    return Who("call", call=by)


def _checked_methods(methods: Iterable[str]) -> frozenset[str]:
    given = None if isinstance(methods, str) or not isinstance(methods, Iterable) else list(methods)
    if not given or not all(isinstance(method, str) and method.isalpha() for method in given):
        raise ConfigurationError(f"methods {methods!r} is not a list of methods like ['POST']")
    return frozenset(method.upper() for method in given)
