"""Rules: which limits a request has, and a table that finds them by the path, with a default and what is exempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ratekit.core.cache import Cache
from ratekit.core.errors import ConfigurationError
from ratekit.core.limit_names import OPTIONS, by_methods, qualified, with_meaning
from ratekit.core.limits import Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.web.arguments import (
    checked_block,
    checked_cost,
    checked_counter,
    checked_mode,
    checked_on_outage,
    checked_per_route,
)
from ratekit.web.charging import Charging, ChargingOptions, charging_of, check_charging, meaning_of
from ratekit.web.exemptions import NOTHING, Exempt, Exemptions, RoutePattern, may_be_exempt, methods_of, normalized_path
from ratekit.web.identity import By, KeyFunction, as_key_function
from ratekit.web.methods import checked_methods
from ratekit.web.patterns import Pattern
from ratekit.web.plans import Cost, LimitsFunction, RuleLimits, declared_limits
from ratekit.web.requests import FrontRequest

DEFAULT_ENDPOINT = "default"
_MOST_FOUND, _LONGEST_FOUND, _LONGEST_METHOD = 4096, 200, 20  # entries, and characters: a cache of long ones is too large


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rule:
    """What some requests are limited by, whatever says so: a table of paths, a document, code. Compared by identity.

    It has a fixed policy, or limits that are asked for each request. endpoint is what its requests are counted under,
    together. A method that was declared is part of the names of the limits: a fixed policy has it there already, and
    qualifier is for the policies that are asked for.
    """

    endpoint: str
    policy: Policy | None = None
    limits: LimitsFunction | None = None  # a callable of the request, in place of policy
    is_by_plan: bool = False  # the application's plan_of is asked in place of limits
    qualifier: str = ""
    counter: Callable[[Any], Any] | None = None  # asked for the endpoint of a request
    by: KeyFunction | None = None  # None: as the middleware does
    cost: Cost | None = None  # None: as the middleware does
    charging: Charging | None = None  # how it charges, if that is more than a cost
    mode: RateLimitMode | None = None  # the weaker of it and the middleware's counts
    on_outage: OnOutage | None = None  # None: as the limiter does
    exempt: Exemptions = NOTHING
    block: bool = True  # False: counts, and never refuses
    of_options: Rule | None = None  # for OPTIONS, which has counters of its own where no method is named

    @property
    def is_fixed(self) -> bool:
        """Whether all that it says of a client's requests is the same, but for who asks."""
        is_same = self.policy is not None and self.counter is None and self.mode is None and self.block
        is_same = is_same and self.charging is None
        return is_same and not callable(self.cost) and self.exempt.is_by_address

    def key_of(self, subject: str) -> str:
        """Return the key of who is counted under a subject, as far as the rule names it; else the subject."""
        return subject

    def policy_for(self, key: str, now: float) -> Policy | None:
        """Return the policy of a key, None if the application is asked for it, or if the key is not limited."""
        return self.policy


# The rule of a request that none of the table's fits, where limits by address count every request.
NO_RULE = Rule(endpoint=DEFAULT_ENDPOINT, mode=RateLimitMode.OFF)


@runtime_checkable
class RuleSet(Protocol):
    """Finds the rules of a request: the first that matches, or all that match, which are checks of one decision.

    It may change while requests are decided: each request is decided by what one call of `find` has returned.
    """

    def find(self, request: FrontRequest) -> Sequence[Rule]:
        """Return the rules of a request, hashable (a tuple); empty: it is not limited."""


class RuleOptions(ChargingOptions, total=False):
    """A rule of a table that says more than its limits. How it charges is said as in ChargingOptions.

    - limits: as anywhere, a callable of the request included
    - by, cost, mode, on_outage: in place of those of the middleware
    - methods: only those, with counters of their own
    - exempt: patterns, networks, addresses and callables that this rule leaves out
    - counter: a name under which several rules are counted together, or a callable of the request that names one
    - per_route: True counts each route for itself, where the middleware knows the routes of the application
    - block: False counts, and never refuses: the application reads the result
    """

    limits: RuleLimits | LimitsFunction
    by: By
    cost: Cost
    methods: Iterable[str]
    exempt: Iterable[Exempt]
    counter: str | Callable[[Any], Any]
    per_route: bool
    mode: str | RateLimitMode
    on_outage: str
    block: bool


RuleGiven = RuleLimits | LimitsFunction | RuleOptions | Mapping[str, Any]


class Rules:
    """Finds the rule of a method and a path: an exact one, else the first pattern that fits, else the default.

    Patterns: "/search", "/items/{id}", "/files/{name:path}", "/static/*", or Flask's "/users/<int:id>"; "POST /login"
    is for one method. A rule is a rate, a limit, a policy, or several of them; a callable of the request; or a mapping of
    RuleOptions. cost is what a request costs where the table is used, unless a rule says so itself. route_of names the
    route of a request, where that is known. finds_all: without a default, what no rule fits and is not exempt has NO_RULE.
    """

    def __init__(
        self,
        rules: Mapping[str, RuleGiven] | None = None,
        default: RuleGiven | None = None,
        exempt: Iterable[str] | Exemptions = (),
        cost: Cost = 1,
        route_of: Callable[[Any], Any] | None = None,
        *,
        finds_all: bool = False,
    ) -> None:
        if not isinstance(rules, Mapping | None):
            raise ConfigurationError(f"rules {rules!r} is not a mapping of patterns to rates")
        self.cost = cost
        exempted = exempt if isinstance(exempt, Exemptions) else Exemptions.of(exempt)
        table = [_Entry(_methods_of_key(key), key.pattern, None) for key in exempted.patterns]
        table += [_entry(text, given, cost, route_of) for text, given in (rules or {}).items()]
        self._exact = {
            (method, entry.pattern.text): entry.rule
            for entry in reversed(table)
            if entry.pattern.is_one_path
            for method in entry.methods
        }
        self._patterns = [entry for entry in table if not entry.pattern.is_one_path]
        given_none = NO_RULE if finds_all else None
        self._default = given_none if default is None else _rule(DEFAULT_ENDPOINT, default, cost, route_of)
        # The rules of a method and a path, none if it is not limited.
        self.found: Cache[tuple[str, str], tuple[Rule, ...]] = Cache(self._look, _MOST_FOUND, _is_short)

    @property
    def rules(self) -> list[Rule]:
        """Every rule of the table."""
        rules = [*self._exact.values(), *(entry.rule for entry in self._patterns), self._default]
        return [rule for rule in rules if rule is not None and rule is not NO_RULE]

    @property
    def policies(self) -> list[Policy]:
        """Every fixed policy of the table."""
        return [rule.policy for rule in self.rules if rule.policy is not None]

    def find(self, request: FrontRequest) -> Sequence[Rule]:
        """Return the rule of a request, nothing if it is not limited."""
        return self.found[request.method, request.path]

    def at(self, method: str, path: str) -> Rule | None:
        """Return the rule of a method and a path, None if it is not limited."""
        return next(iter(self.all_at(method, path)), None)

    def all_at(self, method: str, path: str) -> Sequence[Rule]:
        """Return the rules of a method and a path, or of a counter's name.

        A table has one for a path; an application may declare several limits.
        """
        return (() if path.startswith("/") else self._counted_under(method, path)) or self.found[method, path]

    def _counted_under(self, method: str, name: str) -> tuple[Rule, ...]:
        methods = methods_of(method.upper())
        rules = [rule for (only, _), rule in reversed(self._exact.items()) if only in methods]
        rules += [entry.rule for entry in self._patterns if any(only in methods for only in entry.methods)]
        return tuple(rule for rule in rules if rule is not None and rule.endpoint == name)

    def _look(self, of: tuple[str, str]) -> tuple[Rule, ...]:
        method = of[0].upper()  # as the application reads it
        rule = self._match(method, normalized_path(of[1])) or (None if may_be_exempt(of[1]) else self._default)
        if rule is None:
            return ()
        return (rule.of_options,) if method == "OPTIONS" and rule.of_options is not None else (rule,)

    def _match(self, method: str, path: str) -> Rule | None:
        methods = methods_of(method)
        for only in methods:
            if (only, path) in self._exact:
                return self._exact[only, path]
        for entry in self._patterns:
            if any(only in methods for only in entry.methods) and entry.pattern.matches(path):
                return entry.rule
        return self._default


class _Entry(NamedTuple):
    """A line of a table: a pattern, the methods that it is for, and its rule; no rule: exempt."""

    methods: tuple[str | None, ...]  # None stands for all
    pattern: Pattern
    rule: Rule | None


def _entry(text: str, given: RuleGiven, cost: Cost, route_of: Callable[[Any], Any] | None) -> _Entry:
    key = RoutePattern.of(text)
    methods = None if key.method is None else [key.method]
    if isinstance(given, Mapping) and given.get("methods") is not None:
        if methods is not None:
            raise ConfigurationError(f"rule {text!r} names a method, and so do its methods {given['methods']!r}: give one")
        methods = sorted(checked_methods(given["methods"]))
    return _Entry(tuple(methods or [None]), key.pattern, _rule(key.pattern.text, given, cost, route_of, methods))


def _methods_of_key(key: RoutePattern) -> tuple[str | None, ...]:
    return (key.method,)


def _is_short(key: tuple[str, str], _: object) -> bool:
    return len(key[0]) <= _LONGEST_METHOD and len(key[1]) <= _LONGEST_FOUND


def _rule(
    endpoint: str,
    given: RuleGiven,
    cost: Cost,
    route_of: Callable[[Any], Any] | None,
    methods: Sequence[str] | None = None,
) -> Rule:
    options: Mapping[str, Any] = given if isinstance(given, Mapping) else {"limits": given}
    _refuse_unknown_options(endpoint, options)
    counter = checked_counter(options.get("counter"))
    rule = _unqualified(counter if isinstance(counter, str) else endpoint, options, cost)
    if callable(counter) or checked_per_route(options.get("per_route", False)):
        rule = replace(rule, counter=counter if callable(counter) else _known_routes(endpoint, route_of))
    if methods is not None:
        return rule if counter is not None else _qualified(rule, by_methods(methods))
    return replace(rule, of_options=_qualified(rule, OPTIONS))


def _known_routes(endpoint: str, route_of: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if route_of is None:
        raise ConfigurationError(
            f"per_route True of {endpoint!r}: this middleware does not know the routes of the application. "
            "Use that of ratekit_fastapi, or give counter= a callable of the request that names the route"
        )
    return route_of


def _unqualified(endpoint: str, options: Mapping[str, Any], cost: Cost) -> Rule:
    """Make the rule of an endpoint, for all methods."""
    own_cost = None if options.get("cost") is None else checked_cost(options["cost"])
    limits = declared_limits(endpoint, options["limits"])
    by, charging = options.get("by"), charging_of(options)
    meaning = meaning_of(cost if own_cost is None else own_cost, charging)
    check_charging(limits.policy, meaning.cost, charging)
    return Rule(
        endpoint=endpoint,
        policy=None if limits.policy is None else with_meaning(limits.policy, meaning),
        limits=limits.limits,
        is_by_plan=limits.is_by_plan,
        by=None if by is None else as_key_function(by),
        cost=own_cost,
        charging=charging,
        mode=checked_mode(options.get("mode")),
        on_outage=checked_on_outage(options.get("on_outage")),
        exempt=Exemptions.of(options.get("exempt", ())),
        block=checked_block(options.get("block", True)),
    )


def _qualified(rule: Rule, qualifier: str) -> Rule:
    policy = None if rule.policy is None else qualified(rule.policy, qualifier)
    return replace(rule, policy=policy, qualifier=qualifier)


def _refuse_unknown_options(endpoint: str, options: Mapping[str, Any]) -> None:
    known = {**ChargingOptions.__annotations__, **RuleOptions.__annotations__}
    if unknown := sorted(set(options) - set(known)) or ("limits" not in options and ["no limits"]):
        raise ConfigurationError(
            f"rule {dict(options)!r} of {endpoint!r} has {unknown[0]}: it has limits, and {', '.join(sorted(known)[:-1])}"
        )
