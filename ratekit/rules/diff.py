"""What changes between two documents: who gets more, and who less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf
from typing import NamedTuple

from ratekit.core.limits import Algorithm, Limit
from ratekit.rules.compiled import DocumentRule, compile_document
from ratekit.rules.custom import split_stars
from ratekit.rules.document import Document, RuleModel
from ratekit.rules.fields import ByUnit
from ratekit.rules.identities import Part
from ratekit.rules.limits import Limits

EVERY_OTHER = "everybody else"
EVERY_RULE = "every rule"
_PLAN = "everybody else on the plan "
_CHARGED = ("cost", "estimate", "actual", "hide", "count", "reset_when", "share", "anchor")


class Change(NamedTuple):
    """What a document changes for some key: more, less, or otherwise (more of one limit and less of another).

    A key in parentheses is a field of the rule that has changed: "(mode)".
    """

    kind: str
    rule: str
    key: str
    before: str
    after: str


def changes(old: Document, new: Document) -> list[Change]:
    """Return what a new document changes, rule by rule, in the order of the new one; then the rules that are gone."""
    before, after = _by_label(old), _by_label(new)
    labels = [*after, *(label for label in before if label not in after)]
    found = [change for label in labels for change in _of_rule(label, before.get(label), after.get(label))]
    return [*_of_document(old, new, [*before], [*after]), *found]


class _Side(NamedTuple):
    model: RuleModel
    rule: DocumentRule
    fields: dict[str, str]


def _by_label(document: Document) -> dict[str, _Side]:
    """Return the rules of a document that count, by their names, or by what they match."""
    enabled = without_functions(document)
    compiled = compile_document(enabled)
    given = [model for model in document.rules if model.enabled]
    found: dict[str, _Side] = {}
    for model, rule, whole in zip(enabled.rules, compiled.rules, given, strict=True):
        found.setdefault(model.name or _requests(model), _Side(model, rule, _fields(whole, document)))
    return found


def _requests(model: RuleModel) -> str:
    return " ".join([*model.match.method, model.match.described() or "every request"])


def _fields(model: RuleModel, document: Document) -> dict[str, str]:
    """Return what a rule says beside its limits, with what the document says for it."""
    said = model.model_dump(mode="json", include=set(_CHARGED))
    given = {
        "match": _requests(model),
        "by": model.by or document.by,
        **{name: said.get(name) for name in _CHARGED},
        "counter": model.counter,
        "mode": model.mode or document.mode or "on",
        "on_outage": model.on_outage or document.on_outage,
        "anonymous": model.anonymous,
        "valid_from": model.valid_from,
        "valid_until": model.valid_until,
    }
    return {name: "-" if value is None else str(value) for name, value in given.items()}


def _of_document(old: Document, new: Document, before: Sequence[str], after: Sequence[str]) -> Iterator[Change]:
    """Yield what changes for every rule: which of those that match apply, and in which order they are asked."""
    if old.apply != new.apply:
        yield Change("otherwise", EVERY_RULE, "(apply)", old.apply, new.apply)
    was = [label for label in before if label in after]
    now = [label for label in after if label in before]
    if was != now and new.apply == "first":
        moved = next(at for at, pair in enumerate(zip(was, now, strict=True)) if pair[0] != pair[1])
        yield Change("otherwise", EVERY_RULE, "(order)", f"{was[moved]} is number {moved + 1}", f"{now[moved]} is")


def without_functions(document: Document) -> Document:
    """Return a document that can be compiled without the application: the rules that are enabled, by nobody's function."""
    return document.model_copy(update={"rules": tuple(map(_without_functions, filter(_is_enabled, document.rules)))})


def _is_enabled(model: RuleModel) -> bool:
    return model.enabled


def _without_functions(model: RuleModel) -> RuleModel:
    costs = {"cost": _without_parts(model.cost), "estimate": model.estimate and _without_parts(model.estimate)}
    return model.model_copy(update={"by": None, **costs})


def _without_parts(cost: int | Part | ByUnit) -> int | ByUnit:
    if isinstance(cost, ByUnit):
        return ByUnit(tuple((unit, one if isinstance(one, int) else 1) for unit, one in cost.costs))
    return cost if isinstance(cost, int) else 1


def _of_rule(label: str, before: _Side | None, after: _Side | None) -> Iterator[Change]:
    for key in _keys(before, after):
        old, new = _limits(before, key), _limits(after, key)
        if old != new:
            yield Change(_kind(old, new), label, key, _text(old), _text(new))
    if before is not None and after is not None:
        for name, was in before.fields.items():
            if (now := after.fields[name]) != was:
                yield Change(_mode_kind(was, now) if name == "mode" else "otherwise", label, f"({name})", was, now)


def _mode_kind(before: str, after: str) -> str:
    """Say what a mode changes: only one that is on refuses."""
    return "otherwise" if "on" not in (before, after) else "less" if after == "on" else "more"


def _keys(*sides: _Side | None) -> list[str]:
    """Return every key and pattern that a rule names on either side, and everybody else."""
    named = [key for side in sides if side for key in (*side.model.custom, *side.model.overrides)]
    plans = [name for side in sides if side and _is_by_plan(side) for name in side.rule.plans]
    others = [f"{_PLAN}{name}" for name in dict.fromkeys(plans)] or [EVERY_OTHER]
    return [*dict.fromkeys(named), *others]


def _is_by_plan(side: _Side) -> bool:
    return side.model.limits is not None and side.model.limits.is_by_plan


def _limits(side: _Side | None, key: str) -> tuple[Limit, ...] | None:
    """Return the limits of a key; none if it is not limited. None: no rule is for it."""
    if side is None:
        return None
    limits: Limits | None
    if key == EVERY_OTHER:
        limits = side.model.limits
    elif key.startswith(_PLAN):
        limits = side.rule.plans.get(key.removeprefix(_PLAN)) if _is_by_plan(side) else side.model.limits
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
    kinds = {(_counts(limit), of.window) for limit in (*before, *after) for of in (*before, *after)}
    pairs = [(_most(before, *kind), _most(after, *kind)) for kind in kinds]
    is_more, is_less = any(new > old for old, new in pairs), any(new < old for old, new in pairs)
    if is_more != is_less:
        return "more" if is_more else "less"
    return "otherwise"


def _counts(limit: Limit) -> str:
    """Return what a limit counts: those of different units are not compared."""
    return "slots" if limit.algorithm is Algorithm.CONCURRENCY else limit.unit


def _most(limits: tuple[Limit, ...], counts: str, seconds: float) -> float:
    """Return how much limits admit within some seconds, at most."""
    return min((_admitted(limit, seconds) for limit in limits if _counts(limit) == counts and not limit.shadow), default=inf)


def _admitted(limit: Limit, seconds: float) -> float:
    if limit.algorithm is Algorithm.CONCURRENCY:
        return limit.max_requests
    if limit.algorithm is Algorithm.TOKEN_BUCKET:
        return limit.capacity + limit.max_requests * seconds / limit.window
    return limit.max_requests * ceil(seconds / limit.window)


def _text(limits: tuple[Limit, ...] | None) -> str:
    return "; ".join(map(str, limits)) if limits else "unlimited"
