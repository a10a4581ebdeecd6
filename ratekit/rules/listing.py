"""The rules of a document that a route has, for lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ratekit.rules.compiled import DocumentRule
from ratekit.rules.reload import Rules
from ratekit.web.listing import ListedLimit, limit_texts, named_by


def listed_by_document(
    rules: Rules, route: str, methods: Sequence[str], by: str = "ip", name: str = ""
) -> list[ListedLimit]:
    """Return the lines of the rules that match a route by its template, or by its name, for some of its methods."""
    compiled = rules.compiled_once
    found: dict[int, tuple[DocumentRule, list[str]]] = {}
    for method in methods:
        for rule in dict.fromkeys([*compiled.of_path(method, route), *(compiled.of_path(method, name) if name else ())]):
            found.setdefault(id(rule), (rule, []))[1].append(method)
    return [_line(rule, route, of, by, rules.origin) for rule, of in found.values()]


def _line(rule: DocumentRule, route: str, methods: Sequence[str], by: str, origin: str) -> ListedLimit:
    if rule.own is None:
        limits = "by key only"
    elif rule.own.is_by_plan:
        limits = f"plan: {', '.join(rule.plans)}"
    else:
        limits = "unlimited" if rule.is_unlimited(rule.own) else limit_texts(rule.policy_of(rule.own).limits)
    who = by if rule.by is None else rule.by.name
    named = rule if rule.by is not None else replace(rule, by=named_by(by))
    return ListedLimit(route, " ".join(methods), limits, who, rule.endpoint, f"rule {rule.name} of {origin}", named)
