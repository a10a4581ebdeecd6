"""Which policy a path has: a table of patterns, a default, and what is exempt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ratekit.core.cache import Cache
from ratekit.core.errors import ConfigurationError
from ratekit.core.limit_names import OPTIONS, by_methods, qualified, with_cost
from ratekit.core.limits import Limit, Policy
from ratekit.core.outages import OnOutage, as_on_outage
from ratekit.web.methods import split_method
from ratekit.web.patterns import Pattern

RuleLimits = Policy | Limit | str | Iterable[Limit | str]
DEFAULT_ENDPOINT = "default"
_MOST_FOUND, _LONGEST_FOUND, _LONGEST_METHOD = 4096, 200, 20  # entries, and characters: a cache of long ones is too large


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A policy for the paths of a pattern. The pattern is the endpoint under which they are counted together.

    A method before the pattern is part of the names of the limits, not of the endpoint. Compared by identity.
    """

    endpoint: str
    policy: Policy | None  # None: exempt
    on_outage: OnOutage | None = None  # None: as the limiter does
    of_options: Rule | None = None  # for OPTIONS, which has counters of its own where no method is named


class Rules:
    """Finds the rule of a method and a path: an exact one, else the first pattern that fits, else the default.

    Patterns: "/search", "/items/{id}", "/files/{name:path}", "/static/*", or Flask's "/users/<int:id>"; "POST /login"
    is for one method. A rule is a rate, a limit, a policy, or several of them; or a mapping, {"limits": …, "on_outage":
    "closed"}, to do something else there when the store cannot tell. cost is what a request costs where the table is used.
    """

    def __init__(
        self,
        rules: Mapping[str, RuleLimits | Mapping[str, Any]] | None = None,
        default: RuleLimits | Mapping[str, Any] | None = None,
        exempt: Iterable[str] = (),
        *,
        cost: int | Callable[[Any], Any] = 1,
    ) -> None:
        if not isinstance(rules, Mapping | None):
            raise ConfigurationError(f"rules {rules!r} is not a mapping of patterns to rates")
        if isinstance(exempt, str) or not isinstance(exempt, Iterable):
            what = "is one text: give" if isinstance(exempt, str) else "is not"
            raise ConfigurationError(f"exempt {exempt!r} {what} a list of patterns")
        table = [(key, Rule(key.pattern.text, None)) for key in map(_key, exempt)]
        table += [(key, _rule(key.pattern.text, given, key.method, cost)) for key, given in _keys(rules or {})]
        exact = [(key, rule) for key, rule in reversed(table) if key.pattern.is_one_path]
        self._exact = {(key.method, key.pattern.text): rule for key, rule in exact}
        self._patterns = [(key, rule) for key, rule in table if not key.pattern.is_one_path]
        self._default = None if default is None else _rule(DEFAULT_ENDPOINT, default, None, cost)
        # The rule of a method and a path, None if it is not limited.
        self.found: Cache[tuple[str, str], Rule | None] = Cache(self._look, _MOST_FOUND, _is_short)

    @property
    def policies(self) -> list[Policy]:
        """Every policy of the table."""
        rules = [*self._exact.values(), *(rule for _, rule in self._patterns), self._default]
        return [rule.policy for rule in rules if rule is not None and rule.policy is not None]

    def find(self, method: str, path: str) -> Rule | None:
        """Return the rule of a method and a path, None if it is not limited."""
        return self.found[method, path]

    def _look(self, of: tuple[str, str]) -> Rule | None:
        method = of[0].upper()  # as the application reads it
        rule = self._match(method, of[1])
        if rule is None or rule.policy is None:
            return None
        return rule.of_options if method == "OPTIONS" and rule.of_options is not None else rule

    def _match(self, method: str, path: str) -> Rule | None:
        path = "/" + re.sub(r"/+", "/", path).strip("/")
        methods = (method, "GET", None) if method == "HEAD" else (method, None)  # HEAD is GET without the body
        for only in methods:
            if (only, path) in self._exact:
                return self._exact[only, path]
        for key, candidate in self._patterns:
            if key.method in methods and key.pattern.matches(path):
                return candidate
        return self._default


class _Key(NamedTuple):
    """A key of a table: a pattern, for one method or for all."""

    method: str | None
    pattern: Pattern


def _key(text: str) -> _Key:
    if not isinstance(text, str):
        raise ConfigurationError(f"pattern {text!r} is not a path: it is not a text")
    method, path = split_method(text, f"pattern {text!r}")
    return _Key(method, Pattern(path))


def _keys(rules: Mapping[str, Any]) -> Iterator[tuple[_Key, Any]]:
    return ((_key(text), given) for text, given in rules.items())


def _is_short(key: tuple[str, str], _: object) -> bool:
    return len(key[0]) <= _LONGEST_METHOD and len(key[1]) <= _LONGEST_FOUND


def _rule(
    endpoint: str, given: RuleLimits | Mapping[str, Any], method: str | None, cost: int | Callable[[Any], Any]
) -> Rule:
    limits, on_outage = _parts(endpoint, given) if isinstance(given, Mapping) else (given, None)
    policy = with_cost(as_rule_policy(endpoint, limits), cost)
    if method is not None:
        return Rule(endpoint, qualified(policy, by_methods([method])), on_outage)
    return Rule(endpoint, policy, on_outage, Rule(endpoint, qualified(policy, OPTIONS), on_outage))


def _parts(endpoint: str, given: Mapping[str, Any]) -> tuple[RuleLimits, OnOutage | None]:
    if unknown := sorted(set(given) - {"limits", "on_outage"}) or ("limits" not in given and ["no limits"]):
        raise ConfigurationError(f"rule {dict(given)!r} of {endpoint!r} has {unknown[0]}: it has limits, and on_outage")
    on_outage = given.get("on_outage")
    return given["limits"], None if on_outage is None else as_on_outage(on_outage)


def as_rule_policy(endpoint: str, limits: RuleLimits) -> Policy:
    """Make the policy of an endpoint of what a user gives: a policy, a limit, a rate, or several."""
    if isinstance(limits, Policy):
        return limits
    if isinstance(limits, Limit | str):
        return Policy(endpoint, [limits])
    if isinstance(limits, Iterable):
        return Policy(endpoint, limits)
    raise ConfigurationError(f"rule {limits!r} of {endpoint!r} is neither a policy, nor a limit, nor a rate")
