"""What was measured, as JSON to keep and as a table to read."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks import server
from benchmarks.contest.contestants import CONTESTANTS
from benchmarks.peers import Contest
from benchmarks.rounds import Gap, Row
from benchmarks.settings import Settings

Document = dict[str, Any]

_HEAD = ("", "ratio", "quartiles", "target", "")
_VERDICTS = {True: "reached", False: "missed", None: ""}
_PACKAGES = {contestant.package for contestant in CONTESTANTS} | {
    "hiredis",
    "lupa",
    "coredis",
    "django",
    "fastapi",
    "uvicorn",
}


def table(rows: Sequence[Document]) -> str:
    """Lay out the rows, the figures to the right."""
    lines = [_HEAD, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join(_line(line, widths) for line in lines)


def cells(row: Document) -> tuple[str, str, str, str, str]:
    """Return what a table says of a row: its name, the ratio, the quartiles, the target, and if it is reached."""
    name, goal = f"{row['section']}: {row['name']}", "" if row["target"] is None else f"{row['sense']} {row['target']:.3g}"
    if row["reason"] is not None:
        return name, "", "", goal, f"not measured: {row['reason']}"
    low, high = row["quartiles"]
    return name, f"{row['median']:.3f}", f"{low:.3f} - {high:.3f}", goal, _VERDICTS[row["reached"]]


def document(rows: Sequence[Row | Gap], contest: Contest, settings: Settings) -> Document:
    """Return everything that was measured, and on what; nothing that tells whose machine it is."""
    return {
        "python": platform.python_version(),
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "server": server.version(settings.server),
        "packages": {name: found for name in sorted(_PACKAGES) if (found := _version(name))},
        "rounds": settings.rounds,
        "contest": {"plan": settings.plan.name, "rounds": settings.plan.rounds, "seconds": settings.plan.seconds},
        "rows": _rounded([entry(row) for row in rows]),  # before anything is printed of it: saved and shown are the same
        "standings": _rounded([standing.document() for standing in contest.standings]),
        "memory": _rounded(contest.memory),
    }


def as_json(found: Document) -> str:
    """Write a document with a line for each thing that was measured."""
    parts = [f"{json.dumps(name)}: {_lines(value)}" for name, value in found.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"


def _rounded(value: Any) -> Any:
    """Keep six digits of each number: more are noise."""
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _line(line: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures, verdict = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
    return "  ".join((name.strip().ljust(widths[0]), *figures, verdict.strip())).rstrip()


def entry(row: Row | Gap) -> Document:
    """Return a row as it is kept."""
    about = {"section": row.section, "name": row.name, "target": row.target, "sense": str(row.sense)}
    if isinstance(row, Gap):
        return {**about, "reason": row.reason, "median": None, "quartiles": None, "reached": None}
    low, median, high = row.quartiles
    figures = {"median": median, "quartiles": [low, high], "reached": row.is_reached}
    return {**about, "reason": None, **figures, "case": row.case, "reference": row.reference}
