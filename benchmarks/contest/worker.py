"""A contestant in a process of its own: reads loads, a line each, and answers with what it measured.

python -m benchmarks.contest.worker NUMBER URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from typing import Any

from benchmarks.contest.contestants import CONTESTANTS, Colour, Contestant
from benchmarks.contest.driver import drive_tasks, drive_threads
from benchmarks.contest.loads import Block, Limit, Load


def main(number: str, url: str) -> None:
    """Serve one contestant until the input ends. What goes wrong ends the process, and its last line says why."""
    with asyncio.Runner() as runner:
        bench = Bench(CONTESTANTS[int(number)], url, runner)
        for line in sys.stdin:
            order = json.loads(line)
            load = Load(**order["load"])
            names = load.names() if order["most"] is None else islice(load.names(), order["most"])
            print(json.dumps(asdict(bench.run(load, names, order["seconds"]))), flush=True)


class Bench:
    """One contestant, opened once for each set of limits, and once more for a crowd of callers."""

    def __init__(self, contestant: Contestant, url: str, runner: asyncio.Runner) -> None:
        self._contestant = contestant
        self._url = url
        self._runner = runner
        self._checks: dict[tuple[tuple[Limit, ...], bool], Any] = {}
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def run(self, load: Load, names: Iterator[str], seconds: float) -> Block:
        """Put a load on it."""
        check = self._check(load)
        if self._contestant.colour is Colour.ASYNC:
            return self._runner.run(drive_tasks(check, load.concurrency, names, seconds))
        pool = self._pools.setdefault(load.concurrency, ThreadPoolExecutor(load.concurrency))
        return drive_threads(check, pool, load.concurrency, names, seconds)

    def _check(self, load: Load) -> Any:
        kind = (load.limits, load.is_crowd)
        if kind not in self._checks:
            opened = self._contestant.load()(self._url, load)
            self._checks[kind] = self._runner.run(opened) if self._contestant.colour is Colour.ASYNC else opened
        return self._checks[kind]


if __name__ == "__main__":
    main(*sys.argv[1:])
