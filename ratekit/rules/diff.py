"""What changes between two documents: who gets more, and who less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ratekit.core.limits import Limit
from ratekit.rules.compiled import DocumentRule, compile_document
from ratekit.rules.custom import split_stars
from ratekit.rules.document import Document, RuleModel

EVERY_OTHER = "everybody else"


class Change(NamedTuple):
    """What a document changes for some key: more, less, or otherwise (more of one limit and less of another)."""

    kind: str
    rule: str
    key: str
    before: str
    after: str


def changes(old: Document, new: Document) -> list[Change]:
    """Return what a new document changes, rule by rule, in the order of the new one; then the rules that are gone."""
    before, after = _by_label(old), _by_label(new)
    labels = [*after, *(label for label in before if label not in after)]
    return [change for label in labels for change in _of_rule(label, before.get(label), after.get(label))]


class _Side(NamedTuple):
    model: RuleModel
    rule: DocumentRule


def _by_label(document: Document) -> dict[str, _Side]:
    """Return the rules of a document that count, by their names, or by what they match."""
    enabled = document.model_copy(
        update={"rules": tuple(_without_functions(model) for model in document.rules if model.enabled)}
    )
    compiled = compile_document(enabled)
    found: dict[str, _Side] = {}
    for model, rule in zip(enabled.rules, compiled.rules, strict=True):
        label = model.name or " ".join([*model.match.method, model.match.described() or "every request"])
        found.setdefault(label, _Side(model, rule))
    return found


def _without_functions(model: RuleModel) -> RuleModel:
    """Return a rule that can be compiled without the application: its limits are compared, not its functions."""
    return model.model_copy(update={"by": None, "cost": model.cost if isinstance(model.cost, int) else 1})


def _of_rule(label: str, before: _Side | None, after: _Side | None) -> Iterator[Change]:
    for key in _keys(before, after):
        old, new = _limits(before, key), _limits(after, key)
        if old != new:
            yield Change(_kind(old, new), label, key, _text(old), _text(new))


def _keys(*sides: _Side | None) -> list[str]:
    """Return every key and pattern that a rule names on either side, and everybody else."""
    named = [key for side in sides if side for key in (*side.model.custom, *side.model.overrides)]
    return [*dict.fromkeys(named), EVERY_OTHER]


def _limits(side: _Side | None, key: str) -> tuple[Limit, ...] | None:
    """Return the limits of a key; none if it is not limited. None: no rule is for it."""
    if side is None:
        return None
    if key == EVERY_OTHER:
        limits = side.model.limits
    elif len(split_stars(key)) > 1 and key in side.model.custom:
        limits = side.model.custom[key]
    else:
        limits = side.rule.limits_of("".join(split_stars(key)), 0.0)
    if limits is None:
        return None
    return side.rule.plans[limits.plan].own if limits.plan is not None else limits.own


def _kind(before: tuple[Limit, ...] | None, after: tuple[Limit, ...] | None) -> str:
    if not before or not after:
        return "less" if after else "more"
    old, new = (
        {limit.name: limit.max_requests / limit.window for limit in side if not limit.shadow} for side in (before, after)
    )
    is_more = any(new.get(name, float("inf")) > rate for name, rate in old.items())
    is_less = any(rate < old.get(name, float("inf")) for name, rate in new.items())
    if is_more != is_less:
        return "more" if is_more else "less"
    return "otherwise"


def _text(limits: tuple[Limit, ...] | None) -> str:
    return "; ".join(map(str, limits)) if limits else "unlimited"
