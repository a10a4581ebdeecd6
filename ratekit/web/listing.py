"""Limits as people read them in a list: on which route, who is counted, and where the limit comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ratekit.core.limits import Limit
from ratekit.web.table import Rule

COLUMNS = ("route", "methods", "limits", "by", "counted under", "declared by")
_BETWEEN = ", "
UNKNOWN = "asked for each request"  # limits that a callable answers


class ListedLimit(NamedTuple):
    """One line of the list. No limits: nothing limits the route."""

    route: str
    methods: str
    limits: str | None = None
    by: str | None = None
    endpoint: str | None = None
    where: str | None = None


def limit_texts(limits: Iterable[Limit]) -> str:
    """Return limits in one text, which split_texts takes apart again."""
    return _BETWEEN.join(dict.fromkeys(map(str, limits)))


def split_texts(texts: str) -> list[str]:
    """Return each of the limits in a text."""
    return texts.split(_BETWEEN)


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
        )
        for rule in rules
    ]
