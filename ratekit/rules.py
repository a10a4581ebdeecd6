"""Which policy a path has: a table of patterns, a default, and what is exempt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ratekit.caches import Cache
from ratekit.errors import ConfigurationError
from ratekit.limits import UNNAMED_POLICY, Limit, Policy
from ratekit.outage import OnOutage, as_on_outage

RuleLimits = Policy | Limit | str | Iterable[Limit | str]
DEFAULT_ENDPOINT = "default"
_PARAMETER = re.compile(r"\{([A-Za-z_]\w*)(:path)?\}")
_MOST_FOUND, _LONGEST_FOUND = 4096, 200  # paths, and characters of one: a cache of long ones is too large
_METHOD = re.compile(r"([A-Z]+) +(/.*)")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A policy for the paths of a pattern. The pattern is the endpoint under which they are counted together.

    Compared by identity.
    """

    endpoint: str
    policy: Policy | None  # None: exempt
    on_outage: OnOutage | None = None  # None: as the limiter does


class Rules:
    """Finds the rule of a path: an exact one, else the first pattern that fits, else the default. OPTIONS has none: a
    preflight is the browser's doing, not the client's.

    Patterns: "/search", "/items/{id}", "/files/{name:path}", "/static/*"; "POST /login" is for one method. A rule is a rate,
    a limit, a policy, or several of them; or a mapping, {"limits": …, "on_outage": "closed"}, to do something else there
    when the store cannot tell.
    """

    def __init__(
        self,
        rules: Mapping[str, RuleLimits | Mapping[str, Any]] | None = None,
        default: RuleLimits | Mapping[str, Any] | None = None,
        exempt: Iterable[str] = (),
    ) -> None:
        if not isinstance(rules, Mapping | None):
            raise ConfigurationError(f"rules {rules!r} is not a mapping of patterns to rates")
        if isinstance(exempt, str) or not isinstance(exempt, Iterable):
            what = "is one text: give" if isinstance(exempt, str) else "is not"
            raise ConfigurationError(f"exempt {exempt!r} {what} a list of patterns")
        table = [(pattern, Rule(pattern, None)) for pattern in exempt]
        table += [(pattern, _rule(pattern, given)) for pattern, given in (rules or {}).items()]
        exact = [(pattern, rule) for pattern, rule in reversed(table) if not _is_pattern(pattern)]
        self._exact = {(_method_of(pattern), _path_of(pattern)): rule for pattern, rule in exact}
        self._patterns = [(_method_of(pattern), _compiled(pattern), rule) for pattern, rule in table if _is_pattern(pattern)]
        self._default = None if default is None else _rule(DEFAULT_ENDPOINT, default)
        # The rule of a method and a path, None if it is not limited.
        self.found: Cache[tuple[str, str], Rule | None] = Cache(
            self._look, _MOST_FOUND, lambda key: len(key[1]) <= _LONGEST_FOUND
        )

    @property
    def policies(self) -> list[Policy]:
        """Every policy of the table."""
        rules = [*self._exact.values(), *(rule for _, _, rule in self._patterns), self._default]
        return [rule.policy for rule in rules if rule is not None and rule.policy is not None]

    def find(self, method: str, path: str) -> Rule | None:
        """Return the rule of a path, None if it is not limited."""
        return self.found[method, path]

    def _look(self, of: tuple[str, str]) -> Rule | None:
        method, path = of
        rule = None if method == "OPTIONS" else self._match(method, path)
        return None if rule is None or rule.policy is None else rule

    def _match(self, method: str, path: str) -> Rule | None:
        path = "/" + re.sub(r"/+", "/", path).strip("/")
        methods = (method, "GET", None) if method == "HEAD" else (method, None)  # HEAD is GET without the body
        for only in methods:
            if (only, path) in self._exact:
                return self._exact[only, path]
        for only, pattern, candidate in self._patterns:
            if only in methods and pattern.fullmatch(path):
                return candidate
        return self._default


def _rule(endpoint: str, given: RuleLimits | Mapping[str, Any]) -> Rule:
    if not isinstance(given, Mapping):
        return Rule(endpoint, as_rule_policy(endpoint, given))
    if unknown := sorted(set(given) - {"limits", "on_outage"}) or ("limits" not in given and ["no limits"]):
        raise ConfigurationError(f"rule {dict(given)!r} of {endpoint!r} has {unknown[0]}: it has limits, and on_outage")
    on_outage = given.get("on_outage")
    policy = as_rule_policy(endpoint, given["limits"])
    return Rule(endpoint, policy, None if on_outage is None else as_on_outage(on_outage))


def as_rule_policy(endpoint: str, limits: RuleLimits) -> Policy:
    """Make the policy of an endpoint of what a user gives: a policy, a limit, a rate, or several."""
    if isinstance(limits, Policy):
        return limits
    if isinstance(limits, Limit | str):
        return Policy(endpoint, [limits])
    if isinstance(limits, Iterable):
        return Policy(endpoint, limits)
    raise ConfigurationError(f"rule {limits!r} of {endpoint!r} is neither a policy, nor a limit, nor a rate")


def policy_of(
    max_requests: int | None, expiry: float | None, limits: RuleLimits | None, policy: Policy | Limit | None
) -> Policy:
    """Make the policy of a limiter that is declared on a route, of the one way in which it was given."""
    policy = _policy_given(max_requests, expiry, limits, policy)
    if policy.has_slots:
        raise ConfigurationError(
            "a concurrency limit has to hold its slot until the response has ended: use ratekit.asgi or ratekit.wsgi"
        )
    return policy


def check_endpoint(endpoint: str | None) -> str | None:
    """Return an endpoint that was given, or raise ConfigurationError if it is no name."""
    if endpoint is not None and (not isinstance(endpoint, str) or not endpoint):
        raise ConfigurationError(f"endpoint {endpoint!r} is not a text with something in it")
    return endpoint


def _policy_given(
    max_requests: int | None, expiry: float | None, limits: RuleLimits | None, policy: Policy | Limit | None
) -> Policy:
    given = [max_requests is not None or expiry is not None, limits is not None, policy is not None]
    if sum(given) != 1:
        raise ConfigurationError("give exactly one of max_requests with expiry, limits, or policy")
    if policy is not None and not isinstance(policy, Policy | Limit):
        raise ConfigurationError(f"policy {policy!r} is neither a Policy nor a Limit")
    if policy is not None or limits is not None:
        return as_rule_policy(UNNAMED_POLICY, policy if policy is not None else limits)  # type: ignore[arg-type]
    if max_requests is None or expiry is None:
        raise ConfigurationError(f"max_requests {max_requests!r} and expiry {expiry!r} have to be given together")
    try:
        return Policy(UNNAMED_POLICY, [Limit(max_requests, expiry)])
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("window", "expiry", 1)) from None


def _is_pattern(pattern: str) -> bool:
    return "{" in _checked(pattern) or "*" in pattern


def _checked(pattern: str) -> str:
    path = _path_of(pattern) if isinstance(pattern, str) else ""
    if not path.startswith("/") or "//" in path or "*" in path[:-1] or (path != "/" and path.endswith("/")):
        raise ConfigurationError(
            f"pattern {pattern!r} is not a path: it starts with '/', may have {{parameters}}, and a '*' at its end"
        )
    if re.search(r"[{}]", _PARAMETER.sub("", path)):
        raise ConfigurationError(f"pattern {pattern!r} has a brace that belongs to no {{parameter}}")
    return pattern


def _method_of(pattern: str) -> str | None:
    match = _METHOD.fullmatch(pattern)
    return match[1] if match else None


def _path_of(pattern: str) -> str:
    match = _METHOD.fullmatch(pattern)
    return match[2] if match else pattern


def _compiled(pattern: str) -> re.Pattern[str]:
    """Make a regular expression of a pattern. "/static/*" and "/static/{x:path}" are also "/static" itself."""
    path = re.sub(r"/\{[A-Za-z_]\w*:path\}$", "/*", _path_of(pattern))
    parts = []
    at = 0
    for match in _PARAMETER.finditer(path):
        parts += [re.escape(path[at : match.start()]), ".+" if match[2] else "[^/]+"]
        at = match.end()
    rest = path[at:]
    if rest.endswith("/*"):
        return re.compile("".join(parts) + re.escape(rest[:-2]) + "(?:/.*)?", re.DOTALL)
    if rest.endswith("*"):
        return re.compile("".join(parts) + re.escape(rest[:-1]) + ".*", re.DOTALL)
    return re.compile("".join(parts) + re.escape(rest), re.DOTALL)
