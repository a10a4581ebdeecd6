"""The command report: who is refused, or would be, and which limit would affect how many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from ratekit.admin.explain import printable
from ratekit.cli.session import Session, coloured, table, with_store
from ratekit.core.limit_text import format_seconds
from ratekit.core.limits import REQUESTS
from ratekit.report import Affected, LimitReport, ReportSize, SubjectUse, clear_report, read_report
from ratekit.report.export import as_csv, as_document, as_share, as_time, times_over


class Share(click.ParamType):  # type: ignore[type-arg]
    """A share of all subjects: 1%, 0.5% or 0.01."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share, between 0 and 1."""
        text = str(value)
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"{text!r} is not a share, such as 1% or 0.01", param, ctx)
        return share


class Question(NamedTuple):
    """What to show of the report."""

    top: int
    share: float | None
    candidate: int | None


@click.command(short_help="Show who is refused, or would be.")
@click.argument("endpoint", required=False)
@click.option(
    "--top", type=click.IntRange(0), default=10, show_default=True, help="How many subjects to show of each limit."
)
@click.option("--share", type=Share(), help="Show which maximum would affect at most this share of the subjects: 1%.")
@click.option("--if", "candidate", type=click.IntRange(0), help="Show how many subjects this maximum would affect.")
@click.option("--days", type=click.IntRange(1), default=7, show_default=True, help="How many days to look back.")
@click.option("--csv", "is_csv", is_flag=True, help="Print CSV with a row for each subject.")
@click.option("--clear", "clears", is_flag=True, help="Delete the report, of ENDPOINT or of all.")
@with_store
def report(session: Session, endpoint: str | None, days: int, is_csv: bool, clears: bool, **options: Any) -> None:
    """Show who is refused, or would be, who is near the limit, and which limit would affect how many.

    The application records the report after `ratekit.report.install()`. Limits in monitor mode and shadow limits are in it,
    too: it shows who would be affected before anybody is.

    \b
    Examples:
      ratekit report
      ratekit report /search --top 50 --share 1%
      ratekit report /search --if 60
      ratekit report --csv > refused.csv
    """
    if is_csv and session.as_json:
        raise click.UsageError("--csv and --json are two formats: give one of them")
    size = ReportSize(days=days)
    if clears:
        count = clear_report(session.limiter, endpoint, size=size)
        session.answer({"deleted": count}, [f"deleted: {count} limit(s)"])
        return
    found = read_report(session.limiter, endpoint, size=size)
    question = Question(**options)
    if is_csv:
        click.echo(as_csv(found, question.top), nl=False)
    else:
        session.answer({"limits": [_values(one, question) for one in found]}, _lines(found, question))


def _values(found: LimitReport, question: Question) -> dict[str, Any]:
    values = as_document(found, question.top)
    if question.share is not None:
        values["limit_for_share"] = {"share": question.share, "max_requests": found.limit_for(question.share)}
    if question.candidate is not None:
        values["affected_if"] = {"max_requests": question.candidate, **as_share(found.affected_by(question.candidate))}
    return values


def _lines(found: Sequence[LimitReport], question: Question) -> Iterator[str]:
    if not found:
        yield "the report is empty: the application records it after ratekit.report.install()"
        return
    names = ["endpoint", "limit", "mode", "maximum", "requests", "refused", "subjects", "affected"]
    names += [f"for {question.share:.4g}"] if question.share is not None else []
    names += [f"if {question.candidate}"] if question.candidate is not None else []
    yield from table(names, [_row(one, question) for one in found])
    if reserved := dict.fromkeys(f"{printable(one.endpoint)} {printable(one.limit)}" for one in found if one.is_reserved):
        yield f"peaks of {', '.join(reserved)} have what requests reserve, also what they return when they end"
    for one in found:
        yield from _subjects(one, question.top)


def _row(found: LimitReport, question: Question) -> list[str]:
    row = [found.endpoint, found.limit, found.mode, _maximum(found)]
    row += [str(found.requests), _part(found.denied + found.would_deny, found.requests), str(found.subjects)]
    row.append(_affected(found.affected_by()))
    row += [str(found.limit_for(question.share))] if question.share is not None else []
    row += [_affected(found.affected_by(question.candidate))] if question.candidate is not None else []
    return row


def _maximum(found: LimitReport) -> str:
    unit = "" if found.unit == REQUESTS else f" {found.unit}"
    return f"{found.max_requests}{unit} per {found.calendar or f'{format_seconds(found.window)} s'}"


def _subjects(found: LimitReport, top: int) -> Iterator[str]:
    kinds = (("refused" if found.mode == "on" else "would be refused", found.refused), ("near", found.near))
    for kind, uses in kinds:
        if uses[:top]:
            yield ""
            yield f"{printable(found.endpoint)} {printable(found.limit)}: {coloured(kind)}"
            names = ("subject", "refused", "peak", "of maximum", "first seen", "last seen")
            yield from table(names, [_subject(found, use) for use in uses[:top]])


def _subject(found: LimitReport, use: SubjectUse) -> list[str | None]:
    refused = str(use.refused) if use.refused == use.refused_at_most else f"{use.refused} to {use.refused_at_most}"
    over = times_over(found, use)
    peak = None if use.peak is None else str(use.peak)
    return [use.subject, refused, peak, None if over is None else f"{over:g}x", as_time(use.first), as_time(use.last)]


def _affected(affected: Affected) -> str:
    return f"{'' if affected.is_exact else 'about '}{affected.subjects} ({affected.share:.2%})"


def _part(count: int, of: int) -> str:
    return f"{count} ({count / of:.2%})" if of else str(count)
