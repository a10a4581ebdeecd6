"""What the ASGI and the WSGI middleware share: their arguments, and the checks that they make of a request."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypedDict

from ratekit.core.cache import Cache
from ratekit.core.errors import ConfigurationError, RatekitError
from ratekit.core.headers import DEFAULT_STYLE
from ratekit.core.limit_names import OPTIONS, qualified
from ratekit.core.limits import Policy
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.limiter.limiters import AsyncRateLimiter
from ratekit.limiter.operations import LimiterOptions, Operations
from ratekit.web.answers import BodyFunction, ErrorResponse, ResponseWriter, error_response
from ratekit.web.arguments import (
    blocking_mode,
    checked_cost,
    checked_mode,
    counter_answered,
    is_awaited,
    mode_reader,
    refuse_unknown,
)
from ratekit.web.charged_checks import charged_check
from ratekit.web.charging import meaning_of
from ratekit.web.checks import Check, Group, grouped
from ratekit.web.client_address import X_FORWARDED_FOR, TrustedProxies
from ratekit.web.exemptions import NOTHING, Exempt, Exemptions, is_exempt
from ratekit.web.identity import (
    By,
    KeyFunction,
    as_key_function,
    asubject_of,
    client_ip,
    note_pass,
    subject_of,
    why_nobody,
)
from ratekit.web.plans import (
    NO_LIMITS,
    Cost,
    PlanFunction,
    Plans,
    RuleLimits,
    as_plans,
    as_rule_policy,
    asked_for_limits,
    checked_plan_of,
)
from ratekit.web.requests import FrontRequest
from ratekit.web.steps import Ask, Decide, Step
from ratekit.web.table import NO_RULE, Rule, RuleGiven, Rules, RuleSet

ADDRESS_ENDPOINT, ATTEMPT_ENDPOINT = "address", "attempts"
MOST_KNOWN = 16384
_ON, _OFF = RateLimitMode.ON, RateLimitMode.OFF
_CLIENT_IP = client_ip()


class UnverifiedIdentityWarning(UserWarning):
    """Clients are limited by what they say of themselves, with no limit by address beside it."""


class AnyMiddlewareArguments(TypedDict, total=False):
    """The arguments of a middleware, whatever says which limits a request has."""

    by: By
    exempt: Iterable[Exempt]
    headers: str | Iterable[str]
    body: BodyFunction | None
    mode: str | RateLimitMode | None
    trusted_hops: int | Iterable[str] | str | None
    trusted_header: str
    address_limit: RuleLimits | None
    attempt_limit: RuleLimits | None


class MiddlewareArguments(AnyMiddlewareArguments, total=False):
    """The arguments of a middleware that do not concern its limiter: see MiddlewareOptions."""

    default: RuleGiven | None
    rules: Mapping[str, RuleGiven] | RuleSet | None
    cost: Cost
    plans: Plans | Mapping[str, RuleLimits] | None
    plan_of: PlanFunction | None


class MiddlewareKeywords(MiddlewareArguments, LimiterOptions, total=False):
    """All keyword arguments of the middleware but its store and its limiter."""

    fleet_mode: bool


class RuleKeywords(AnyMiddlewareArguments, LimiterOptions, total=False):
    """The keyword arguments of a middleware whose rules are a document."""

    plan_of: PlanFunction | None
    fleet_mode: bool


Reading = Generator[Step, Any, Sequence[Group] | ErrorResponse]
LoadBody = Callable[[KeyFunction], Any]  # reads the body of a request for a key function; it may have to be awaited


class MiddlewareOptions:
    """The arguments of a middleware, checked when it is built.

    default, rules and exempt say which limits a path has; rules may also be a RuleSet, which finds the rules of a request
    itself, and then default has no say. by says who is limited; cost is a number or a callable of the request; plans are
    named sets of limits, and plan_of says which one a request has; headers names one style or several; body makes the body
    of a 429 of the result; trusted_hops is a number of proxies or their networks, and trusted_header the header that they
    set; address_limit limits every address, beside the rest; attempt_limit does so too, and counts refused requests as well.
    route_of, which a front gives, names the route of a request.
    """

    def __init__(
        self,
        limiter: Operations[Any, Any, Any],
        *,
        default: RuleGiven | None = "100/min",
        rules: Mapping[str, RuleGiven] | RuleSet | None = None,
        by: By = "ip",
        cost: Cost = 1,
        exempt: Iterable[Exempt] = (),
        headers: str | Iterable[str] = DEFAULT_STYLE,
        body: BodyFunction | None = None,
        mode: str | RateLimitMode | None = None,
        trusted_hops: int | Iterable[str] | str | None = None,
        trusted_header: str = X_FORWARDED_FOR,
        address_limit: RuleLimits | None = None,
        attempt_limit: RuleLimits | None = None,
        plans: Plans | Mapping[str, RuleLimits] | None = None,
        plan_of: PlanFunction | None = None,
        route_of: Callable[[Any], Any] | None = None,
    ) -> None:
        self._cost = checked_cost(cost)
        self._exempt = Exemptions.of(exempt)
        self._address_policies = _address_policies(address_limit, attempt_limit)
        self.table = None if isinstance(rules, RuleSet) else self._table(rules, default, route_of)
        self.rules: RuleSet = self.table or rules  # type: ignore[assignment] # a table, unless rules are a set
        self.by = as_key_function(by)
        self.writer = ResponseWriter(headers, body)
        self.proxies = TrustedProxies.of(trusted_hops, trusted_header)
        self.mode = mode_reader(checked_mode(mode))
        self.plans = as_plans(plans)
        self._plan_of = checked_plan_of(plan_of)
        self._prefix = limiter.prefix
        self._one_slot = limiter.store.one_slot
        if not self._address_policies and self.by.is_claimed:
            _warn_of_claims(self.by)
        self._check_rules([] if self.table is None else self.table.rules, awaits=isinstance(limiter, AsyncRateLimiter))
        # The checks of a peer by its rules, where nothing but the peer makes a difference.
        self._known: Cache[tuple[Sequence[Rule], str | None], Sequence[Group] | None]
        self._known = Cache(lambda key: None, MOST_KNOWN, lambda key, value: value is not None)

    def _table(
        self, rules: Mapping[str, RuleGiven] | None, default: RuleGiven | None, route_of: Callable[[Any], Any] | None
    ) -> Rules:
        return Rules(rules, default, self._exempt, self._cost, route_of, finds_all=bool(self._address_policies))

    @cached_property
    def without_rule(self) -> Sequence[Rule]:
        """The rules of a request for which a set has none: limits by address count it too. A table knows what is exempt."""
        return (NO_RULE,) if self.table is None and self._address_policies else ()

    @property
    def _has_exempt_paths(self) -> bool:
        """Whether patterns that are exempt are looked at here: a table knows them, and another set of rules does not."""
        return self.table is None and bool(self._exempt.patterns)

    def known_groups(self, rules: Sequence[Rule], peer: str | None, mode: RateLimitMode) -> Sequence[Group] | None:
        """Return the checks of an earlier request of the same peer, if they are the same for each; else None."""
        return self._known[rules, peer] if mode is _ON else None

    def read(self, request: FrontRequest, rules: Sequence[Rule], mode: RateLimitMode, load_body: LoadBody) -> Reading:
        """Find out the checks of a request, or the response to one that cannot be limited. Drive it by web.drivers.

        load_body reads the body for a key function that looks into it: into request.body, or request.body_error.
        """
        exempt = self._exempt
        is_asked = exempt.networks or exempt.functions or self._has_exempt_paths
        if is_asked and (yield from is_exempt(self._exempt, request)):
            return ()
        checks = self._address_checks(request, mode, rules)
        found = yield from self.rule_checks(request, rules, mode, load_body)
        if isinstance(found, ErrorResponse):
            yield from _count_attempt(checks)
            return found
        checks += found
        groups = grouped(checks, one_slot=self._one_slot)
        if mode is _ON and groups and self._is_by_peer(request, rules, groups):
            self._known.keep((rules, request.peer), groups)
        return groups

    def rule_checks(
        self, request: FrontRequest, rules: Sequence[Rule], mode: RateLimitMode, load_body: LoadBody
    ) -> Generator[Step, Any, list[Check] | ErrorResponse]:
        """Find out the checks of a request by its rules, or the response to one that cannot be limited."""
        checks: list[Check] = []
        for rule in rules:
            own_mode = blocking_mode(mode if rule.mode is None else weakest(mode, rule.mode), block=rule.block)
            try:
                check = None if own_mode is _OFF else (yield from self._check(request, rule, own_mode, load_body))
            except RatekitError as error:
                if (response := error_response(error, own_mode)) is not None:
                    return response
            else:
                checks += [] if check is None else [check]
        return checks

    def _address_checks(self, request: FrontRequest, mode: RateLimitMode, rules: Sequence[Rule]) -> list[Check]:
        """Return the checks of the address: by address_limit, and by attempt_limit, whose charge is kept."""
        if not self._address_policies or (address := request.address()) is None:
            return []
        checks = []
        for endpoint, policy in self._address_policies:
            counted = qualified(policy, OPTIONS) if request.method.upper() == "OPTIONS" else policy
            check = Check.of(counted, address, endpoint, self._prefix, 1, mode, rules[0].on_outage)
            checks.append(check._replace(is_kept=endpoint == ATTEMPT_ENDPOINT))
        return checks

    def _check(
        self, request: FrontRequest, rule: Rule, mode: RateLimitMode, load_body: LoadBody
    ) -> Generator[Step, Any, Check | None]:
        """Find out what there is to decide by a rule: which limits, on which endpoint, who asks, and what it costs."""
        if rule.exempt is not NOTHING and (yield from is_exempt(rule.exempt, request)):
            return None
        endpoint = rule.endpoint if rule.counter is None else (yield from _counter(rule.counter, request))
        policy = rule.policy
        if policy is None and (policy := (yield from self._asked_policy(request, rule))) is None:
            note_pass(endpoint, NO_LIMITS)
            return None
        by = rule.by or self.by
        subject = (yield from _subject(by, request, load_body)) if by.aread or by.needs_body else subject_of(by, request)
        if subject is None:
            note_pass(endpoint, why_nobody(by))
            return None
        cost, prefix = self._cost if rule.cost is None else rule.cost, self._prefix
        if rule.charging is None and type(cost) is int:
            return Check.of(policy, subject, endpoint, prefix, cost, mode, rule.on_outage)
        ask, units = partial(_asking, request), None if rule.policy is not None else self.plans.units
        charging, on_outage = rule.charging, rule.on_outage
        return (yield from charged_check(policy, subject, endpoint, prefix, cost, charging, mode, on_outage, ask, units))

    def _asked_policy(self, request: FrontRequest, rule: Rule) -> Generator[Step, Any, Policy | None]:
        function = asked_for_limits(self._plan_of if rule.is_by_plan else rule.limits)
        answer = yield Ask(function, request.application_request, function)
        cost = self._cost if rule.cost is None else rule.cost
        return self.plans.policy(answer, rule.qualifier, meaning_of(cost, rule.charging), is_plan=rule.is_by_plan)

    def _is_by_peer(self, request: FrontRequest, rules: Sequence[Rule], groups: Sequence[Group]) -> bool:
        """Whether every request of this peer by these rules has the same checks."""
        if self._has_exempt_paths:
            return False
        if callable(self._cost) or self._exempt.functions or not self.proxies.is_empty or request.looks_for_proxy:
            return False
        is_by_address = all((rule.by or self.by) == _CLIENT_IP and rule.is_fixed for rule in rules)
        return is_by_address and not any(group.is_single_use for group in groups)

    def _check_rules(self, rules: Sequence[Rule], *, awaits: bool) -> None:
        """Refuse rules that need what there is not: a lookup of plans, or an event loop."""
        for rule in rules:
            if rule.policy is None:
                asked_for_limits(self._plan_of if rule.is_by_plan else rule.limits)
        if awaits:
            return
        asked = {"plan_of": self._plan_of, "cost": self._cost, "by": self.by}
        for what, value in [*asked.items(), *((what, value) for rule in rules for what, value in _asked_by(rule))]:
            refuse_awaited(what, value)
        for function in self._exempt.functions:
            refuse_awaited("exempt", function)


def _address_policies(address_limit: RuleLimits | None, attempt_limit: RuleLimits | None) -> list[tuple[str, Policy]]:
    given = {ADDRESS_ENDPOINT: address_limit, ATTEMPT_ENDPOINT: attempt_limit}
    made = [(endpoint, as_rule_policy(endpoint, limits)) for endpoint, limits in given.items() if limits is not None]
    if any(policy.has_slots for endpoint, policy in made if endpoint == ATTEMPT_ENDPOINT):
        raise ConfigurationError("attempt_limit counts attempts: a concurrency limit, which counts what runs, cannot")
    return made


def _count_attempt(checks: Sequence[Check]) -> Generator[Step, Any, None]:
    """Count a request that is refused before it is decided, where every attempt counts."""
    for check in checks:
        if check.is_kept:
            with suppress(RatekitError):  # the store cannot tell: the request is refused anyway
                yield Decide((check.call,), check.mode, check.on_outage)


def refuse_awaited(what: str, value: object) -> None:
    """Raise ConfigurationError if something has to be awaited, where there is no event loop."""
    if value.aread is not None if isinstance(value, KeyFunction) else is_awaited(value):
        raise ConfigurationError(f"{what} {value!r} has to be awaited, and there is no event loop: write it without async")


def _asked_by(rule: Rule) -> list[tuple[str, object]]:
    asked: list[tuple[str, object]] = [("limits", rule.limits), ("cost", rule.cost), ("counter", rule.counter)]
    asked += [] if rule.charging is None else rule.charging.callables
    return [*asked, *((("by", rule.by),) if rule.by else ()), *(("exempt", one) for one in rule.exempt.functions)]


def _subject(by: KeyFunction, request: FrontRequest, load_body: LoadBody) -> Generator[Step, Any, str | None]:
    """Find out who is limited, by what the body says or by what has to be awaited."""
    if by.looks_into_body(request):
        if request.body is None and request.body_error is None:
            yield Ask(load_body, by, load_body)
        if request.body_error is not None:
            raise request.body_error
    subject: str | None = yield Ask(partial(subject_of, by), request, partial(asubject_of, by))
    return subject


def _counter(function: Callable[[Any], Any], request: FrontRequest) -> Generator[Step, Any, str]:
    return counter_answered((yield Ask(function, request.application_request, function)))


def _asking(request: FrontRequest, function: Callable[[Any], Any]) -> Ask:
    return Ask(function, request.application_request, function)


def _warn_of_claims(by: KeyFunction) -> None:
    warnings.warn(
        f"by={by.name} limits clients by what they say of themselves: a client that sends another value each time is never "
        "limited. Verify it before this middleware, or set address_limit or attempt_limit beside it",
        UnverifiedIdentityWarning,
        stacklevel=4,
    )


def split_arguments(keywords: Mapping[str, Any], of: type) -> tuple[MiddlewareArguments, LimiterOptions, bool]:
    """Split the keyword arguments of a middleware, which is a class: its own, those of its limiter, and fleet_mode.

    A misspelt one is a TypeError that names the right one.
    """
    own, of_limiter = MiddlewareArguments.__annotations__, LimiterOptions.__annotations__
    refuse_unknown(of.__name__, keywords, {*own, *of_limiter, "store", "limiter", "fleet_mode"})
    options: Any = {name: value for name, value in keywords.items() if name in own}
    limiter: Any = {name: value for name, value in keywords.items() if name in of_limiter}
    return options, limiter, bool(keywords.get("fleet_mode", False))
