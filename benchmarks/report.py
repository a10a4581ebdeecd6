"""Rows as a table to read, and as JSON to keep."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from benchmarks import server
from benchmarks.rounds import Row
from benchmarks.settings import Settings

_HEAD = ("", "ratio", "quartiles", "target", "")
_VERDICTS = {True: "reached", False: "missed", None: ""}


def table(rows: Sequence[Row]) -> str:
    """Lay out the rows, the figures to the right."""
    lines = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join(_line(line, widths) for line in lines)


def document(rows: Sequence[Row], settings: Settings) -> dict[str, Any]:
    """Return everything that was measured, and where."""
    names = ("ratekit", "limits", "redis", "hiredis", "lupa")
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "server": server.version(settings.server),
        "packages": {name: version(name) for name in names},
        "rounds": settings.rounds,
        "rows": [_entry(row) for row in rows],
    }


def _cells(row: Row) -> tuple[str, ...]:
    low, median, high = row.quartiles
    target = "" if row.target is None else f"{row.target:g}"
    return (f"{row.section}: {row.name}", f"{median:.3f}", f"{low:.3f} - {high:.3f}", target, _VERDICTS[row.is_reached])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures, verdict = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join((name.strip().ljust(widths[0]), *figures, verdict.strip())).rstrip()


def _entry(row: Row) -> dict[str, Any]:
    low, median, high = row.quartiles
    return {
        "section": row.section,
        "name": row.name,
        "median": median,
        "quartiles": [low, high],
        "target": row.target,
        "reached": row.is_reached,
        "case": row.case,
        "reference": row.reference,
    }
