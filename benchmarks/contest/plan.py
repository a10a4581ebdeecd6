"""Which loads are put on the contestants, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contest.contestants import Colour
from benchmarks.contest.loads import Load

CONCURRENCY = {Colour.ASYNC: 64, Colour.THREADS: 16}  # at which everything else is compared


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a contest."""

    name: str
    rounds: int
    seconds: float  # of a block: one contestant under one load
    tasks: tuple[int, ...]
    threads: tuple[int, ...]
    tiers: tuple[int, ...]
    subjects: tuple[int, ...]
    remembered: int  # subjects that are counted to see what one takes of the server's memory

    def groups(self, colour: Colour) -> list[list[Load]]:
        """Return loads in groups: what is in one is interleaved. More subjects come later, as they stay in the server."""
        most = CONCURRENCY[colour]
        concurrency = self.tasks if colour is Colour.ASYNC else self.threads
        loads = [*(Load(number) for number in concurrency), *(Load(most, tiers=number) for number in self.tiers)]
        loads += [Load(most), Load(most, refused=True)]
        return [list(dict.fromkeys(loads)), *([Load(most, subjects=number)] for number in sorted(self.subjects))]


FULL = Plan(
    name="full",
    rounds=15,
    seconds=0.15,
    tasks=(1, 4, 16, 64, 256, 1000),
    threads=(1, 4, 16, 64),
    tiers=(1, 2, 3, 4),
    subjects=(1, 10_000, 1_000_000),
    remembered=10_000,
)
SHORT = Plan(
    name="short",
    rounds=3,
    seconds=0.04,
    tasks=(1, 64, 1000),
    threads=(1, 16, 64),
    tiers=(1, 4),
    subjects=(1, 10_000),
    remembered=2_000,
)
