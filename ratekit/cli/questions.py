"""What a command asks about: an endpoint, and the limits that decide a subject's requests to it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ratekit.cli.applications import ListedRules, imported, kinds, listed
from ratekit.core import clock
from ratekit.core.limit_names import by_operation, qualified
from ratekit.core.limits import REQUESTS, UNNAMED_POLICY, Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import CostGiven
from ratekit.web.arguments import blocking_mode
from ratekit.web.charging import Charging, spent_by
from ratekit.web.listing import counted_under
from ratekit.web.methods import split_endpoint
from ratekit.web.plans import as_rule_policy
from ratekit.web.subjects import counted_by, fitting
from ratekit.web.table import Rule, Rules

if TYPE_CHECKING:
    from ratekit.rules.reload import Rules as Documents

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")  # of which a rule may be for one
_CHARGE = Charging()
UNCLEAR = "the subject does not tell which of these limits count it: they differ in whom they count"


class Asked(NamedTuple):
    """What decides a request: the limits of one limiter, or of several that decide alike."""

    policy: Policy
    endpoint: str  # that they are counted under
    by: str | None = None  # whom it counts, if that is known
    cost: CostGiven | None = None  # None: it is not known, or 1
    share: float | None = None
    anchor: int | date | None = None
    mode: RateLimitMode | None = None  # that the application sets for it
    asked: tuple[str, ...] = ()  # arguments that the application answers for each request
    rule: str | None = None  # that matched

    def costing(self, given: CostGiven | None) -> CostGiven:
        """Return what a request costs: what is given, else what the limiter says, else 1. Raises UsageError.

        Of what the application is asked for, it is what looks.
        """
        is_asked = not {"cost", "estimate"}.isdisjoint(self.asked)
        own = self.looking if is_asked else 1 if self.cost is None else self.cost
        return _in_units(self.policy, own if given is None else given)

    @property
    def looking(self) -> CostGiven:
        """The cost that looks: 1, as a request would cost; nothing of other units, whose cost is not known."""
        others = [unit for unit in self.policy.units if unit != REQUESTS]
        return dict.fromkeys(others, 0) if others else 1


class Unknown(NamedTuple):
    """Limits that the application is asked for: whom they count, and under what."""

    by: str
    endpoint: str


class Question(NamedTuple):
    """An endpoint, with what decides a subject's requests to it; nothing, if the command was not told."""

    endpoint: str  # that the first of the limits count under
    asked: tuple[Asked, ...] = ()
    is_clear: bool = True  # False: the limits differ in whom they count, and the subject does not tell which of them it is
    unknown: tuple[Unknown, ...] = ()  # further limits, which the application is asked for

    def costs(self, given: CostGiven | None) -> list[CostGiven]:
        """Return what a request costs each of what decides; of given, --cost, each takes the units that it counts."""
        if not isinstance(given, Mapping) or len(self.asked) < 2:
            return [one.costing(given) for one in self.asked]
        units = {unit for one in self.asked for unit in one.policy.units} | {REQUESTS}
        if unknown := [unit for unit in given if unit not in units]:
            raise _unknown_unit(unknown[0], sorted(units))
        own = [{unit: number for unit, number in given.items() if unit in one.policy.units} for one in self.asked]
        return [one.costing(cost or None) for one, cost in zip(self.asked, own, strict=True)]

    @property
    def endpoints(self) -> list[str]:
        """Every endpoint that the limits count under."""
        counted = [*(one.endpoint for one in self.asked), *(one.endpoint for one in self.unknown)]
        return list(dict.fromkeys(counted or [self.endpoint]))

    @property
    def unknown_endpoints(self) -> list[str]:
        """The endpoints of limits that only the application knows."""
        return list(dict.fromkeys(one.endpoint for one in self.unknown))

    @property
    def unknown_lines(self) -> list[str]:
        """A line for each of the limits that perhaps count the subject, and that only the application knows."""
        unknown = dict.fromkeys(one.by for one in self.unknown)
        return [f"limit     asked for each request, by {by}: give it by --limit" for by in unknown]

    def told(self) -> tuple[Asked, ...]:
        """Return what decides. Raises UsageError if it is not known, or not clear."""
        if not self.asked:
            raise click.UsageError(f"the limits of {self.endpoint!r} are unknown: give --limit or --rules")
        if not self.is_clear:
            limits = "; ".join(f"{_texts(one.policy)} by {one.by}" for one in self.asked)
            raise click.UsageError(
                f"the subject does not tell which limits of {self.endpoint!r} count it ({limits}): give --limit"
            )
        return self.asked


def question_of(endpoint: str, rates: Sequence[str], rules: str | None, subject: str) -> Question:
    """Return an endpoint with the limits of --limit or --rules that count a subject."""
    if not endpoint:
        raise click.UsageError("the endpoint is empty: give a route's template, or a name")
    if rates and rules:
        raise click.UsageError("--limit and --rules both give the limits: give one of them")
    if rules is None:
        return _question_by_rates(endpoint, rates)
    return _question_by_document(endpoint, rules, subject) if _is_document(rules) else _by_rules(endpoint, rules, subject)


def _question_by_rates(endpoint: str, rates: Sequence[str]) -> Question:
    """Return an endpoint with the limits of --limit. A method before its path is in their names, as FastAPI counts them."""
    method, path = split_endpoint(endpoint, "the endpoint") if "/" in endpoint else (None, endpoint)
    if not rates:
        return Question(path)
    return Question(path, (Asked(qualified(Policy(path, rates), by_operation([method]) if method else ""), path),))


def load_rules(where: str) -> Any:
    """Return what --rules names: Rules, or whatever limits of one endpoint can be made of."""
    value = imported(where, f"--rules {where!r}")
    if isinstance(value, Mapping):
        return Rules(value)
    if isinstance(value, Rules | Policy | Limit | str | Iterable):
        return value
    lines = listed(value)
    if lines is None:
        known = f"an application of {kinds()}, a mapping of paths to limits, Rules, a Policy or a Limit"
        raise click.UsageError(f"--rules {where!r} is a {type(value).__name__}: it has to be {known}")
    return ListedRules(lines)


def rules_of(rules: Rules, endpoint: str) -> Sequence[Rule]:
    """Return the rules of an endpoint, which is a name, a path, or a method and a path: of the first method that has any."""
    method, path = _split(rules, endpoint)
    found = (rules.all_at(one, path) for one in ([method] if method else _METHODS))
    return next((some for some in found if some), ())


def every_rule_of(rules: Rules, endpoint: str) -> list[Rule]:
    """Return the rules that count under an endpoint, or else under the first endpoint of its route: as overrides are.

    The endpoint is a name, a path, or a method and a path. The rules are those of all methods.
    """
    method, path = _split(rules, endpoint)
    found = [rule for one in ([method] if method else _METHODS) for rule in rules.all_at(one, path)]
    return counted_under(found, path)


def _split(rules: Rules, endpoint: str) -> tuple[str | None, str]:
    """Return the method before an endpoint, None if there is none, and the endpoint. A name that is known has no method."""
    is_name = any(rule.endpoint == endpoint for one in _METHODS for rule in rules.all_at(one, endpoint))
    return (None, endpoint) if is_name else split_endpoint(endpoint, "the endpoint")


def limit_titles(rules: Rules, endpoint: str) -> dict[str, str]:
    """Return the titles of the limits of an endpoint by their names; none if one of them depends on the request."""
    policies = [rule.policy for rule in every_rule_of(rules, endpoint)]
    if None in policies:
        return {}
    return {limit.name: limit.title for policy in policies if policy is not None for limit in policy.limits}


def name_of_limit(given: str, titles: Mapping[str, str]) -> str:
    """Return the name of the limit that is named, or that alone has this title: clients are shown the title. Else as given.

    titles are those of the limits of an endpoint, by name.
    """
    named = [name for name, title in titles.items() if title == given]
    return named[0] if given not in titles and len(named) == 1 else given


def _by_rules(endpoint: str, where: str, subject: str) -> Question:
    rules = load_rules(where)
    if not isinstance(rules, Rules):
        return Question(endpoint, (Asked(as_rule_policy(endpoint, rules), endpoint, rule=where),))
    found = rules_of(rules, endpoint)
    if not found:
        raise click.UsageError(f"--rules {where!r} has no limits for {endpoint!r}")
    return _question(found, subject, {})


def _question(rules: Sequence[Rule], subject: str, told: Mapping[int, str]) -> Question:
    """Return what some rules of one endpoint decide by; told is what is said of each, by its identity."""
    now = clock.now()
    fitted, is_clear = fitting(rules, subject)
    policies = [(rule, rule.policy_for(rule.key_of(subject), now)) for rule in fitted]
    asked = [_asked(rule, policy, told.get(id(rule), rule.endpoint)) for rule, policy in policies if policy is not None]
    unknown = [Unknown(counted_by(rule) or "", rule.endpoint) for rule, policy in policies if policy is None]
    first = asked[0].endpoint if asked else fitted[0].endpoint
    return Question(first, tuple(_merged(asked)), is_clear, tuple(dict.fromkeys(unknown)))


def _asked(rule: Rule, policy: Policy, told: str) -> Asked:
    charging = rule.charging or _CHARGE
    given: dict[str, Any] = {"cost": rule.cost} if charging.estimate is None else {"estimate": charging.estimate}
    given |= {"share": charging.share, "anchor": charging.anchor}
    cost, share, anchor = _fixed(given)
    if cost is not None:
        named = tuple(unit for unit in cost if unit not in policy.units) if isinstance(cost, Mapping) else ()
        cost = spent_by(policy, cost, rule.charging, named)
    mode = rule.mode if rule.block else blocking_mode(rule.mode or RateLimitMode.ON, block=False)
    names = tuple(name for name, value in given.items() if callable(value))
    if policy.name == UNNAMED_POLICY:
        policy = Policy(rule.endpoint, policy.limits)
    return Asked(policy, rule.endpoint, counted_by(rule), cost, share, anchor, mode, names, told)


def _fixed(given: Mapping[str, Any]) -> list[Any]:
    return [None if callable(value) else value for value in given.values()]


def _merged(asked: Iterable[Asked]) -> list[Asked]:
    """Put limiters together that decide alike, as long as no counter has two limits."""
    merged: list[Asked] = []
    for one in asked:
        at = next((at for at, other in enumerate(merged) if _are_alike(one, other)), None)
        if at is None:
            merged.append(one)
        elif one != merged[at]:
            policy = merged[at].policy
            limits = [limit for limit in one.policy.limits if limit not in policy.limits]
            merged[at] = merged[at]._replace(policy=Policy(policy.name, [*policy.limits, *limits]))
    return merged


def _are_alike(one: Asked, other: Asked) -> bool:
    if one._replace(policy=other.policy) != other or one.policy.units != other.policy.units:
        return False
    names = {limit.name: limit for limit in other.policy.limits}
    return all(names.get(limit.name, limit) == limit for limit in one.policy.limits)


def _is_document(where: str) -> bool:
    return "://" in where or where.lower().endswith((".yaml", ".yml", ".toml", ".json"))


def _question_by_document(endpoint: str, where: str, subject: str) -> Question:
    """Return the limits that a document has for a subject, with the version of the document."""
    from ratekit.rules.reload import Rules as Documents

    sys.path.insert(0, "")  # for functions of the application
    try:
        documents = Documents(where)
    finally:
        sys.path.remove("")
    found = next(_rules_for_key(documents, endpoint, subject), [])
    if not found:
        raise click.UsageError(f"--rules {where!r} has no limits for {endpoint!r}")
    told = f"version {documents.status.version} of {documents.origin}, {_age(documents)}"
    return _question(found, subject, {id(rule): f"{rule.name}, {told}" for rule in found})


def _rules_for_key(documents: Documents, endpoint: str, subject: str) -> Iterator[list[Any]]:
    """Yield the rules that a document has for a subject by each of the methods that may be meant, if it has any."""
    compiled, now = documents.compiled_once, clock.now()
    is_name = any(rule.endpoint == endpoint for rule in compiled.rules)
    method, path = (None, endpoint) if is_name else split_endpoint(endpoint, "the endpoint")
    for one in [method] if method else _METHODS:
        found = []
        for rule in compiled.counted_under(one, path):
            limits = rule.limits_of(rule.key_of(subject), now) if rule.is_valid(now) else None
            if limits is not None and limits.is_by_plan:
                raise click.UsageError(
                    f"rule {rule.name!r} has the limits of the plan that plan_of of the application names"
                )
            found += [rule] if limits is not None else []
        if found:
            is_counter = all(rule.has_counter and rule.endpoint == path for rule in found)
            yield found if compiled.applies_all or is_counter else found[:1]


def _age(documents: Documents) -> str:
    """Return how old rules are by what the document says, or else since when they are loaded."""
    updated = documents.compiled_once.last_updated
    if updated is None:
        return f"loaded {documents.status.age:.0f} s ago, without last_updated"
    return f"updated {timedelta(seconds=int(clock.now() - updated.timestamp()))} ago"


def _in_units(policy: Policy, cost: CostGiven) -> CostGiven:
    """Return a cost for a policy, or raise UsageError if it does not name the units that the policy counts."""
    others = [unit for unit in policy.units if unit != REQUESTS]
    wanted = f"give --cost {','.join(f'{unit}=…' for unit in others)}"
    if not isinstance(cost, Mapping):
        if others:
            raise click.UsageError(f"--cost {cost} says no unit, and the limits count {', '.join(policy.units)}: {wanted}")
        return cost
    if unknown := [unit for unit in cost if unit not in (REQUESTS, *policy.units)]:
        raise _unknown_unit(unknown[0], policy.units)
    if missing := [unit for unit in others if unit not in cost]:
        raise click.UsageError(f"--cost does not name the unit {missing[0]!r}, which the limits count: {wanted}")
    return cost


def _unknown_unit(unit: str, units: Iterable[str]) -> click.UsageError:
    return click.UsageError(f"--cost names the unit {unit!r}, and the limits count {', '.join(units)}")


def _texts(policy: Policy) -> str:
    return ", ".join(map(str, policy.limits))
