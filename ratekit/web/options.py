"""What the ASGI and the WSGI middleware share: their arguments, and the checks that they make of a request."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from ratekit.core.cache import Cache
from ratekit.core.errors import RatekitError
from ratekit.core.headers import DEFAULT_STYLE
from ratekit.core.limit_names import OPTIONS, qualified
from ratekit.core.limits import Policy
from ratekit.core.modes import RateLimitMode
from ratekit.limiter.operations import LimiterOptions, Operations
from ratekit.web.answers import BodyFunction, ErrorResponse, ResponseWriter, error_response
from ratekit.web.arguments import checked_cost, checked_mode, cost_of, mode_reader, refuse_unknown
from ratekit.web.client_address import X_FORWARDED_FOR, TrustedProxies
from ratekit.web.decide import Check, Group, grouped
from ratekit.web.identity import KeyFunction, as_key_function, client_ip, note_pass, subject_of, why_nobody
from ratekit.web.requests import FrontRequest
from ratekit.web.table import Rule, RuleLimits, Rules, as_rule_policy

ADDRESS_ENDPOINT = "address"
_MOST_KNOWN = 16384
_ON = RateLimitMode.ON


class UnverifiedIdentityWarning(UserWarning):
    """Clients are limited by what they say of themselves, with no limit by address beside it."""


class MiddlewareArguments(TypedDict, total=False):
    """The arguments of a middleware that do not concern its limiter: see MiddlewareOptions."""

    default: RuleLimits | Mapping[str, Any] | None
    rules: Mapping[str, RuleLimits | Mapping[str, Any]] | None
    by: KeyFunction | Callable[[Any], str | None] | str
    cost: int | Callable[[Any], int]
    exempt: Iterable[str]
    headers: str | Iterable[str]
    body: BodyFunction | None
    mode: str | RateLimitMode | None
    trusted_hops: int | Iterable[str] | str | None
    trusted_header: str
    address_limit: RuleLimits | None


class MiddlewareKeywords(MiddlewareArguments, LimiterOptions, total=False):
    """All keyword arguments of the middleware but its store and its limiter."""

    fleet_mode: bool


class MiddlewareOptions:
    """The arguments of a middleware, checked when it is built.

    default, rules and exempt say which policy a path has; by says who is limited; cost is a number or a callable of the
    request; headers names one style or several; body makes the body of a 429 of the result; trusted_hops is a number of
    proxies or their networks, and trusted_header the header that they set; address_limit limits every address, beside the
    rest.
    """

    def __init__(
        self,
        limiter: Operations[Any, Any, Any],
        *,
        default: RuleLimits | Mapping[str, Any] | None = "100/min",
        rules: Mapping[str, RuleLimits | Mapping[str, Any]] | None = None,
        by: KeyFunction | Callable[[Any], str | None] | str = "ip",
        cost: int | Callable[[Any], int] = 1,
        exempt: Iterable[str] = (),
        headers: str | Iterable[str] = DEFAULT_STYLE,
        body: BodyFunction | None = None,
        mode: str | RateLimitMode | None = None,
        trusted_hops: int | Iterable[str] | str | None = None,
        trusted_header: str = X_FORWARDED_FOR,
        address_limit: RuleLimits | None = None,
    ) -> None:
        self._cost = checked_cost(cost)
        self.rules = Rules(rules, default, exempt, cost=self._cost)
        self.by = as_key_function(by)
        self.writer = ResponseWriter(headers, body)
        self.proxies = TrustedProxies.of(trusted_hops, trusted_header)
        self.mode = mode_reader(checked_mode(mode))
        self._prefix = limiter.prefix
        self._one_slot = limiter.store.one_slot
        self._address_policy: Policy | None = None
        if address_limit is not None:
            self._address_policy = as_rule_policy(ADDRESS_ENDPOINT, address_limit)
        elif self.by.is_claimed:
            _warn_of_claims(self.by)
        # The checks of a peer by a rule, where nothing but the peer makes a difference.
        self._is_by_peer = self.by == client_ip() and self.proxies.is_empty and not callable(self._cost)
        self._known: Cache[tuple[Rule, str | None], Sequence[Group] | None]
        self._known = Cache(lambda key: None, _MOST_KNOWN, lambda key, value: value is not None)

    def known_groups(self, rule: Rule, peer: str | None, mode: RateLimitMode) -> Sequence[Group] | None:
        """Return the checks of an earlier request of the same peer, if they are the same for each; else None."""
        return self._known[rule, peer] if mode is _ON else None

    def read(self, request: FrontRequest, rule: Rule, mode: RateLimitMode) -> Sequence[Group] | ErrorResponse:
        """Return the checks of a request, or the response to one that cannot be limited; no checks in monitor mode."""
        try:
            if request.body_error is not None:
                raise request.body_error
            return self.groups(request, rule, mode)
        except RatekitError as error:
            return error_response(error, mode) or ()

    def groups(self, request: FrontRequest, rule: Rule, mode: RateLimitMode) -> Sequence[Group]:
        """Return the checks of a request: by its address if there is such a limit, and by its rule."""
        groups = grouped(self._checks(request, rule, mode), one_slot=self._one_slot)
        # A soft limit draws a number for each request, and a slot is one request's own.
        is_same = self._is_by_peer and bool(groups) and not request.looks_for_proxy
        if is_same and mode is _ON and not any(_is_single_use(group) for group in groups):
            self._known.keep((rule, request.peer), groups)
        return groups

    def _checks(self, request: FrontRequest, rule: Rule, mode: RateLimitMode) -> Sequence[Check]:
        checks = []
        policy = self._address_policy
        if policy is not None and (address := request.address()) is not None:
            policy = qualified(policy, OPTIONS) if request.method.upper() == "OPTIONS" else policy
            checks.append(Check.of(policy, address, ADDRESS_ENDPOINT, self._prefix, 1, mode, rule.on_outage))
        if rule.policy is None:
            return checks
        subject = subject_of(self.by, request)
        if subject is None:
            note_pass(rule.endpoint, why_nobody(self.by))
            return checks
        cost = cost_of(self._cost, request)
        checks.append(Check.of(rule.policy, subject, rule.endpoint, self._prefix, cost, mode, rule.on_outage))
        return checks


def _is_single_use(group: Group) -> bool:
    return group.call.compiled.is_soft or group.call.compiled.has_slots


def _warn_of_claims(by: KeyFunction) -> None:
    warnings.warn(
        f"by={by.name} limits clients by what they say of themselves: a client that sends another value each time is never "
        "limited. Verify it before this middleware, or set address_limit beside it",
        UnverifiedIdentityWarning,
        stacklevel=4,
    )


def split_arguments(keywords: Mapping[str, Any]) -> tuple[MiddlewareArguments, LimiterOptions, bool]:
    """Split the keyword arguments of a middleware: its own, those of its limiter, and fleet_mode.

    A misspelt one is a TypeError that names the right one.
    """
    own, of_limiter = MiddlewareArguments.__annotations__, LimiterOptions.__annotations__
    refuse_unknown("RateLimitMiddleware", keywords, {*own, *of_limiter, "store", "limiter", "fleet_mode"})
    options: Any = {name: value for name, value in keywords.items() if name in own}
    limiter: Any = {name: value for name, value in keywords.items() if name in of_limiter}
    return options, limiter, bool(keywords.get("fleet_mode", False))
