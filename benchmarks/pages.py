"""Tables in Markdown, for the terminal and for the pages that show them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contest.contestants import Colour
from benchmarks.contest.plan import CONCURRENCY
from benchmarks.contest.standings import PERCENTILES, Standing, client_us, percentile, rate, server_us
from benchmarks.findings import AXES, Findings

_RANKING = ("checks/s", "of ratekit's", "client us", "server us", "p50 ms", "p95 ms", "p99 ms", "bytes/subject")
_TITLES = {Colour.ASYNC: "async, {} tasks", Colour.THREADS: "{} threads"}


def targets(document: dict[str, Any]) -> str:
    """Return the rows that have a target."""
    return _markdown([("", "ratio", "quartiles", "target", ""), *map(report.cells, _with_target(document))])


def facts(document: dict[str, Any]) -> str:
    """Return what was measured on what, in a sentence."""
    machine, packages = document["machine"], document["packages"]
    redis = re.search(r"v=(\S+)", document["server"])
    names = ", ".join(f"{name} {version}" for name, version in packages.items())
    return (
        f"{machine['cores']} cores ({machine['system']}, {machine['processor']}), CPython {document['python']}, "
        f"Redis {redis[1] if redis else document['server']}, {names}; "
        f"{document['contest']['rounds']} rounds beside the peers."
    )


def ranking(document: dict[str, Any], colour: Colour, *, refused: bool = False) -> str:
    """Return who checks how fast and at what cost, the fastest first."""
    findings = Findings.of(document)
    standings = findings.ranking(colour, refused=refused)
    ours = next((one for one in standings if one.contestant.name == "ratekit" and one.fault is None), None)
    head = (_TITLES[colour].format(CONCURRENCY[colour]), *_RANKING)
    return _markdown([head, *(_ranked(one, ours, findings.bytes_of(one)) for one in standings)])


def growth(document: dict[str, Any], colour: Colour, axis: str) -> str:
    """Return the checks a second of each contestant along an axis."""
    found = Findings.of(document).growth(colour, axis)
    numbers = sorted({number for points in found.values() for number in points})
    head = (f"{_TITLES[colour].split(',')[0].format('')}: {AXES[axis]}".strip(), *(f"{number:,}" for number in numbers))
    lines = [(name, *(_rate(points.get(number)) for number in numbers)) for name, points in found.items()]
    return _markdown([head, *lines])


def faults(document: dict[str, Any]) -> str:
    """Return who could not be measured under which load, and why."""
    lost = [one for one in Findings.of(document).standings if one.fault is not None]
    lines = [(f"{one.contestant.name}, {one.contestant.colour}", one.load.text, _clean(one.fault)) for one in lost]
    return _markdown([("not measured", "load", "why"), *lines])


def all_tables(document: dict[str, Any]) -> dict[str, str]:
    """Return every table of a document by its name in a page."""
    tables = {"facts": facts(document), "targets": targets(document), "rows": f"```\n{report.table(document['rows'])}\n```"}
    for colour in Colour:
        tables[f"ranking-{colour}"] = ranking(document, colour)
        tables[f"refused-{colour}"] = ranking(document, colour, refused=True)
        tables |= {f"growth-{colour}-{axis}": growth(document, colour, axis) for axis in AXES}
    return {**tables, "not-measured": faults(document)}


def publish(document: dict[str, Any], pages: Sequence[Path]) -> None:
    """Put the tables into the pages that have a place for them."""
    tables = all_tables(document)
    for page in pages:
        text = page.read_text()
        for name, table in tables.items():
            text = _put(table, text, f"<!-- benchmarks: {name} -->\n", f"<!-- end: {name} -->")
        page.write_text(text)


def _put(table: str, text: str, begin: str, end: str) -> str:
    before, place, rest = text.partition(begin)
    return f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}" if place else text


def _with_target(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in document["rows"] if row["target"] is not None or row["reason"] is not None]


def _ranked(standing: Standing, ours: Standing | None, size: float | None) -> tuple[str, ...]:
    name = standing.contestant.name
    if standing.fault is not None:
        return (name, "-", *[""] * (len(_RANKING) - 1))
    share = f"{standing.median(rate) / ours.median(rate):.2f}" if ours is not None else ""
    times = [_digits(standing.median(measure)) for measure in (client_us, server_us)]
    waits = [_digits(standing.median(percentile(at)) * 1000) for at in PERCENTILES]
    return (name, _rate(standing), share, *times, *waits, "" if size is None else f"{size:.0f}")


def _clean(fault: str | None) -> str:
    return str(fault).replace("|", "/")


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _rate(standing: Standing | None) -> str:
    if standing is None:
        return ""
    return f"{standing.median(rate):,.0f}" if standing.fault is None else "-"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    """Lay out lines as a table: the first column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * max(width, 3) if not at else "-" * max(width - 1, 2) + ":" for at, width in enumerate(widths)]
    padded = [
        [cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))
