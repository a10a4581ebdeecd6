"""Puts a load on a check, by tasks or by threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from time import perf_counter, process_time

from benchmarks.contest.loads import AsyncCheck, Block, Check


@dataclass(slots=True)
class Shift:
    """Who works until when on what, and what each check took."""

    names: Iterator[str]
    until: float
    taken: list[float] = field(default_factory=list)
    start: float = field(default_factory=perf_counter)
    client_start: float = field(default_factory=process_time)

    def turns(self) -> Iterator[str]:
        """Hand out names to one task or thread, and take the time from each to the next."""
        now, take = perf_counter(), self.taken.append
        for name in self.names:
            yield name
            later = perf_counter()
            take(later - now)
            now = later
            if now >= self.until:
                return

    def block(self, admitted: int) -> Block:
        """Sum up, now that all have ended."""
        seconds, client = perf_counter() - self.start, process_time() - self.client_start
        self.taken.sort()
        p50, p95, p99 = (self.taken[int(len(self.taken) * share)] for share in (0.50, 0.95, 0.99))
        return Block(len(self.taken), admitted, seconds, client, p50, p95, p99)


async def drive_tasks(check: AsyncCheck, tasks: int, names: Iterator[str], seconds: float) -> Block:
    """Check as many names as so many tasks can in that time, or all that there are."""
    shift = Shift(names, perf_counter() + seconds)
    admitted = await asyncio.gather(*(_task(check, shift) for _ in range(tasks)))
    return shift.block(sum(admitted))


def drive_threads(check: Check, pool: ThreadPoolExecutor, threads: int, names: Iterator[str], seconds: float) -> Block:
    """Do the same by threads of a pool that has as many. Threads live on: some clients keep a connection for each."""
    shift = Shift(names, float("inf"))

    def start() -> None:
        shift.start, shift.client_start = perf_counter(), process_time()
        shift.until = shift.start + seconds

    barrier = Barrier(threads, action=start)
    work = [pool.submit(_thread, check, shift, barrier) for _ in range(threads)]
    return shift.block(sum(thread.result() for thread in work))


async def _task(check: AsyncCheck, shift: Shift) -> int:
    return sum([(await check(name))[0] for name in shift.turns()])


def _thread(check: Check, shift: Shift, barrier: Barrier) -> int:
    barrier.wait()
    return sum([check(name)[0] for name in shift.turns()])
