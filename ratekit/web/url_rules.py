"""Limits from the settings of Django or Flask: by the names and patterns of URLs, without touching a view."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ratekit.core.errors import ConfigurationError
from ratekit.web.arguments import checked_per_route
from ratekit.web.exemptions import Exempt, Exemptions, split_exempt
from ratekit.web.methods import split_method
from ratekit.web.plans import PlanFunction
from ratekit.web.table import DEFAULT_ENDPOINT
from ratekit.web.view_limit import ViewLimit, view_limit

_KEY = re.compile(r"/[^\s*]*\*?|[^\s*/]+\*?")


class UrlRules:
    """Finds the limit of a URL: an exact rule, else the first with a '*' at its end that fits, else the default.

    Keys are names ("api:search", "api:*") or patterns as urls.py has them ("/datasets/<int:id>/search", "/api/*");
    "POST login" is for one method. Values are rates, or dicts of what rate_limit takes; per_route: True counts each URL for
    itself where a rule is for several. Networks are exempt too, and what callables say. spelled is how a framework spells
    the names of these arguments, for error messages.
    """

    def __init__(
        self,
        rules: Mapping[str, Any] | None,
        default: Any = None,
        exempt: Iterable[Exempt] = (),
        *,
        spelled: Callable[[str], str] = str.upper,
    ) -> None:
        if not isinstance(rules, Mapping | None):
            raise ConfigurationError(f"{spelled('rules')} {rules!r} is not a dict of URL names and patterns")
        if isinstance(exempt, str) or not isinstance(exempt, Iterable):
            raise ConfigurationError(f"{spelled('exempt')} {exempt!r} is not a list of URL names and patterns")
        urls, exempted = split_exempt(exempt)
        table: list[tuple[str, ViewLimit | None]] = [(key, None) for key in urls]
        table += [(key, _rule(spelled("rules"), key, value, exempted)) for key, value in (rules or {}).items()]
        self.table = [(_parsed(key)[1], limit) for key, limit in table]
        exact = [(key, limit) for key, limit in reversed(table) if not key.endswith("*")]
        self._exact: dict[tuple[str | None, str], ViewLimit | None]
        self._exact = {(method, _bare(text)): limit for key, limit in exact for method, text in [_parsed(key)]}
        self._prefixes: list[tuple[str | None, str, ViewLimit | None]]
        self._prefixes = [(*_parsed(key), limit) for key, limit in table if key.endswith("*")]
        self.default = None if default is None else _limit(spelled("default"), default, DEFAULT_ENDPOINT, exempted)
        self.limits = [limit for _, limit in table if limit is not None] + ([self.default] if self.default else [])
        self.is_empty = not self.limits

    def check_plans(self, plan_of: PlanFunction | None) -> None:
        """Raise ConfigurationError if a rule has the limits of a plan, and nothing says which plan a request has."""
        for limit in self.limits:
            if limit.policy is None:
                limit.declared.function(plan_of)

    def found_by_method(self, methods: Iterable[str], route: str, name: str) -> list[tuple[ViewLimit, list[str]]]:
        """Return each limit that a URL has by some of its methods, with those methods."""
        found: dict[int, tuple[ViewLimit, list[str]]] = {}
        for method in methods:
            if (limit := self.find(method, route, name)) is not None:
                found.setdefault(id(limit), (limit, []))[1].append(method)
        return list(found.values())

    def find(self, method: str, route: str, name: str) -> ViewLimit | None:
        """Return the limit of a URL, None if it has none."""
        methods = (method, "GET", None) if method == "HEAD" else (method, None)
        for only in methods:
            for text in (route, name):
                if (only, _bare(text)) in self._exact:
                    return self._exact[only, _bare(text)]
        for only, pattern, limit in self._prefixes:
            if only in methods and (route.startswith(pattern[:-1]) or name.startswith(pattern[:-1])):
                return limit
        return self.default


def fits(key: str, route: str, name: str) -> bool:
    """Whether a key of the rules means a URL."""
    if key.endswith("*"):
        return route.startswith(key[:-1]) or name.startswith(key[:-1])
    return _bare(key) in (_bare(route), _bare(name))


def _bare(text: str) -> str:
    return text.rstrip("/") or "/"


def _parsed(key: str) -> tuple[str | None, str]:
    method, text = split_method(key, f"rule {key!r}") if isinstance(key, str) else (None, "")
    if not _KEY.fullmatch(text):
        raise ConfigurationError(
            f"rule {key!r} is neither the name of a URL, like 'api:search', nor a pattern that starts with '/'; "
            "a '*' may stand at its end, and a method before it"
        )
    return method, text


def _rule(table: str, key: str, value: Any, exempt: Exemptions) -> ViewLimit:
    """Make the limit of a rule. If it is for several URLs, they are counted together, under the key without its method."""
    method, text = _parsed(key)
    if method is not None and isinstance(value, Mapping) and "methods" in value:
        raise ConfigurationError(
            f"{table}[{key!r}] names a method, and so do its methods {value['methods']!r}: give one of them"
        )
    methods = [method] if method else None
    return _limit(f"{table}[{key!r}]", value, text if text.endswith("*") else None, exempt, methods=methods)


def _limit(where: str, value: Any, endpoint: str | None, exempt: Exemptions, **options: Any) -> ViewLimit:
    given = dict(value) if isinstance(value, Mapping) else {"limits": value}
    try:
        per_route = checked_per_route(given.pop("per_route", False))
        if not per_route and "counter" not in given:
            options["endpoint"] = endpoint
        limit = view_limit(**({"by": "ip"} | options | given))
    except (ConfigurationError, TypeError) as error:
        raise ConfigurationError(f"{where}: {error}") from None
    return limit._replace(is_rule=True, exempt=limit.exempt.with_those_of(exempt))
