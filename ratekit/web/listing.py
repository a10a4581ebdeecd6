"""Limits as people read them in a list: on which route, who is counted, and where the limit comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode, weakest
from ratekit.web.identity import KeyFunction, client_ip
from ratekit.web.table import Rule
from ratekit.web.view_limit import ViewLimit

COLUMNS = ("route", "methods", "limits", "by", "counted under", "declared by")
UNKNOWN = "asked for each request"  # limits that a callable answers


class ListedLimit(NamedTuple):
    """One line of the list. No limits: nothing limits the route."""

    route: str
    methods: str
    limits: str | None = None
    by: str | None = None
    endpoint: str | None = None
    where: str | None = None
    rule: Rule | None = None  # what the line says, for who asks what would be decided
    name: str = ""  # of the route, where it has one

    @property
    def shown(self) -> dict[str, str | None]:
        """What people see of the line."""
        return {name: getattr(self, name) for name in self._fields if name not in ("rule", "name")}


def limit_texts(limits: Iterable[Limit]) -> str:
    """Return limits in one text."""
    return ", ".join(dict.fromkeys(map(str, limits)))


def named_by(name: str) -> KeyFunction:
    """Return what names whom a rule counts, where there is no request to ask about."""
    own = name.lower() if name.startswith("header:") else name  # as in subjects
    return client_ip() if name == "ip" else KeyFunction(own, lambda _: None)


class Line(Protocol):
    """A limit that is declared on a route, which may have a name."""

    @property
    def route(self) -> str:
        """The template of the route."""

    @property
    def endpoint(self) -> str | None:
        """Under what the limit counts."""

    @property
    def name(self) -> str:
        """The name of the route; empty if it has none."""


AnyLine = TypeVar("AnyLine", bound=Line)


def of_endpoint(lines: Iterable[AnyLine], endpoint: str) -> list[AnyLine]:
    """Return the limits of a route, under whatever they count, and those that count under an endpoint.

    If there are none, those of the route of that name.
    """
    every = list(lines)
    found = [line for line in every if endpoint in (line.endpoint, line.route)]
    return found or [line for line in every if line.name == endpoint]


def counted_under(rules: Sequence[Rule], endpoint: str) -> list[Rule]:
    """Return those of some rules that count under an endpoint; if none does, those that count under the first one's."""
    endpoints = [rule.endpoint for rule in rules]
    counted = endpoint if endpoint in endpoints else next(iter(endpoints), endpoint)
    return [rule for rule in rules if rule.endpoint == counted]


def weakest_of(*modes: RateLimitMode | None) -> RateLimitMode | None:
    """Return the weakest of the modes that are set, None if none is."""
    given = [mode for mode in modes if mode is not None]
    return weakest(*given) if given else None


def rule_of_view(limit: ViewLimit, endpoint: str, policy: Policy | None, mode: RateLimitMode | None) -> Rule:
    """Return what is declared on a view as the rule of an endpoint; mode is that of the application, if it sets one."""
    return Rule(
        endpoint=endpoint,
        policy=policy,
        by=named_by(limit.who.name),
        cost=limit.cost,
        charging=limit.charging,
        mode=weakest_of(limit.mode, mode),
        block=limit.block,
    )


def listed_rules(route: str, methods: Sequence[str], rules: Iterable[Rule], by: str, where: str) -> list[ListedLimit]:
    """Return the lines of the rules of a route."""
    return [
        ListedLimit(
            route,
            " ".join(methods),
            UNKNOWN if rule.policy is None else limit_texts(rule.policy.limits),
            by if rule.by is None else rule.by.name,
            rule.endpoint,
            where,
            rule if rule.by is not None else replace(rule, by=named_by(by)),
        )
        for rule in rules
    ]
