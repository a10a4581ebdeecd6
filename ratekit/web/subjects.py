"""Which limits of an endpoint a subject belongs to, where there is no request: by what the subject looks like.

A limit by ip counts subjects such as "ip:203.0.113.7", one by form:username those such as "form:username:5e88…". What a
callable of the application answers cannot be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

from ratekit.web.identity import CLAIMS
from ratekit.web.table import Rule

_LABELLED = re.compile(rf"[A-Za-z_][\w.-]*=({'|'.join(CLAIMS)}|ip|principal|everyone)\b.*", re.DOTALL).fullmatch
_NESTED = re.compile(r"(first_of|combine)\((.*)\)", re.DOTALL).fullmatch
_ADDRESS, _EVERYONE = "ip:", "*"


class Fit(IntEnum):
    """Whether a limit counts a subject."""

    NO = 0
    PERHAPS = 1  # it cannot be told, or only for requests that lack what the limit goes by
    YES = 2


def fitting(rules: Sequence[Rule], subject: str) -> tuple[list[Rule], bool]:
    """Return the rules that count a subject, and whether that is certain: of several that differ in by, all are returned.

    Rules that certainly count it come before those that perhaps do. If none does, all are returned.
    """
    fits = [fit(counted_by(rule), subject) for rule in rules]
    best = max(fits, default=Fit.NO)
    if best is Fit.YES:
        return [rule for rule, one in zip(rules, fits, strict=True) if one is Fit.YES], True
    found = [rule for rule, one in zip(rules, fits, strict=True) if one is best]
    return found, len({counted_by(rule) for rule in found}) <= 1


def counted_by(rule: Rule) -> str | None:
    """Return whom a rule counts, as lists say it; None if the middleware says so."""
    return None if rule.by is None else rule.by.name


def fit(by: str | None, subject: str) -> Fit:
    """Return whether a limit counts a subject; by is as lists have it: "client_ip", "form:username", "project"."""
    if by is None:
        return Fit.PERHAPS
    if nested := _NESTED(by):
        return _fit_of_several(nested[1], _split(nested[2]), subject)
    if by in ("ip", "client_ip"):
        return _yes_or_no(subject.startswith(_ADDRESS))
    if by in ("endpoint", "everyone"):
        return _yes_or_no(subject.startswith(_EVERYONE))
    if _LABELLED(by):
        labels = [part.partition("=")[0] for part in by.split(" + ")]
        is_one = re.fullmatch(":".join(f"{re.escape(label)}:[^:]+" for label in labels), subject) is not None
        return Fit.YES if is_one else _fit_in_place_of(subject)
    if by in ("user", "principal") or by.partition(":")[0] in CLAIMS:
        return Fit.YES if subject.startswith(f"{by}:") else _fit_in_place_of(subject)
    if by == "project" and _is_of_another_kind(subject):
        return _fit_in_place_of(subject)
    return Fit.PERHAPS


def _fit_of_several(kind: str, parts: Sequence[str], subject: str) -> Fit:
    if kind == "first_of":
        return max((fit(part, subject) for part in parts), default=Fit.PERHAPS)
    subjects = [text.replace("%7C", "|").replace("%25", "%") for text in subject.split("|")]
    if len(subjects) != len(parts):
        return _fit_in_place_of(subject)
    return min(fit(part, text) for part, text in zip(parts, subjects, strict=True))


def _split(parts: str) -> list[str]:
    """Return the names in "header:x, first_of(json:a, client_ip)"."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(parts):
        depth += (character == "(") - (character == ")")
        if depth == 0 and parts.startswith(", ", at):
            found.append(parts[start:at])
            start = at + 2
    return [*found, parts[start:]]


def _fit_in_place_of(subject: str) -> Fit:
    """Return whether a limit counts a subject in place of what requests lack: the address of who does not say it."""
    return Fit.PERHAPS if subject.startswith(_ADDRESS) else Fit.NO


def _is_of_another_kind(subject: str) -> bool:
    kinds: Iterable[str] = ("ip", *CLAIMS)
    return subject.startswith(_EVERYONE) or any(subject.startswith(f"{kind}:") for kind in kinds)


def _yes_or_no(answer: bool) -> Fit:
    return Fit.YES if answer else Fit.NO
