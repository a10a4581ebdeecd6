"""The report in formats for other programs: values for JSON, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from ratekit.report.model import Affected, LimitReport, SubjectUse

_ABOUT = ("endpoint", "limit", "mode", "max_requests", "unit", "window", "calendar")
_COLUMNS = (
    *(*_ABOUT, "kind"),
    *("subject", "refused", "refused_at_most", "peak", "times_over", "first", "last"),
)


def as_document(report: LimitReport, top: int) -> dict[str, Any]:
    """Return the report of a limit as values for JSON, with at most `top` subjects of each kind."""
    others = ("policy", "algorithm", "requests", "allowed", "denied", "would_deny", "degraded", "subjects", "is_reserved")
    return {
        **{name: getattr(report, name) for name in (*_ABOUT, *others)},
        "first": as_time(report.first),
        "last": as_time(report.last),
        "affected": as_share(report.affected_by()),
        "refused": [_as_values(report, use) for use in report.refused[:top]],
        "near": [_as_values(report, use) for use in report.near[:top]],
    }


def as_share(affected: Affected) -> dict[str, Any]:
    """Return how many subjects are affected, as values for JSON."""
    return {"subjects": affected.subjects, "share": affected.share, "is_exact": affected.is_exact}


def as_csv(reports: Sequence[LimitReport], top: int) -> str:
    """Return a CSV row for each subject that was refused, would be, or is near: at most `top` of each kind and limit."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for report in reports:
        writer.writerows(_rows(report, top))
    return text.getvalue()


def as_time(seconds: float | None) -> str | None:
    """Return a time in the format of ISO 8601, to the second."""
    return None if seconds is None else datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def times_over(report: LimitReport, use: SubjectUse) -> float | None:
    """Return a subject's peak as a multiple of the maximum; None if either is unknown or 0."""
    return None if use.peak is None or not report.max_requests else round(use.peak / report.max_requests, 2)


def _rows(report: LimitReport, top: int) -> Iterator[dict[str, Any]]:
    about = {name: getattr(report, name) for name in _ABOUT}
    for kind, uses in (("refused", report.refused), ("near", report.near)):
        for use in uses[:top]:
            yield {**about, "kind": kind, **{name: _safe(value) for name, value in _as_values(report, use).items()}}


def _as_values(report: LimitReport, use: SubjectUse) -> dict[str, Any]:
    return {
        "subject": use.subject,
        "refused": use.refused,
        "refused_at_most": use.refused_at_most,
        "peak": use.peak,
        "times_over": times_over(report, use),
        "first": as_time(use.first),
        "last": as_time(use.last),
    }


def _safe(value: Any) -> Any:
    """Escape a subject that a spreadsheet would run as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value
