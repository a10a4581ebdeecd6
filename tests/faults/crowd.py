"""Several processes that check at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from faults.drive import Driver, Maker, Request
from ratekit import Limit, Policy

PROCESSES = 8


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of many checks."""

    admitted: int = 0
    degraded: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What each process does: so many checks by so many tasks or threads at once."""

    maker: Maker
    url: str
    most: int
    subject: str
    checks: int
    width: int
    on_outage: str = "local"
    instances: int = 1


class Crowd:
    """Processes that stay, and keep their limiters from one work to the next."""

    def __init__(self, size: int = PROCESSES) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, work: Work) -> Tally:
        """Let every process do the work at the same time, and add up what came of it."""
        for pipe in self._pipes:
            pipe.send(work)
        return add_up([pipe.recv() for pipe in self._pipes])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(10)
            process.kill()


def add_up(tallies: Sequence[Tally]) -> Tally:
    """Return the sum."""
    admitted = sum(tally.admitted for tally in tallies)
    return Tally(admitted, sum(tally.degraded for tally in tallies), sum(tally.errors for tally in tallies))


def _serve(pipe: Any) -> None:
    drivers: dict[Any, Driver] = {}
    while True:
        try:
            work = pipe.recv()
        except EOFError:
            break
        pipe.send(_do(work, drivers))
    for driver in drivers.values():
        driver.close()


def _do(work: Work, drivers: dict[Any, Driver]) -> Tally:
    key = (work.maker, work.url, work.on_outage, work.instances)
    driver = drivers.get(key)
    if driver is None:
        driver = drivers[key] = work.maker.open(work.url, on_outage=work.on_outage, instances=work.instances)
    request = Request(Policy("crowd", Limit(work.most, 3600)), work.subject)
    samples = driver.checks([request] * work.checks, width=work.width, patience=60)
    return Tally(
        admitted=sum(sample.allowed for sample in samples),
        degraded=sum(sample.degraded is not None for sample in samples),
        errors=sum(sample.is_error for sample in samples),
    )
