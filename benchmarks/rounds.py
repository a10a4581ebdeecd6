"""Many short rounds: what is compared is measured side by side in time, and the figure is the median over the rounds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import quantiles
from timeit import Timer
from typing import Any

from benchmarks import progress

Case = Callable[[], float]  # runs one short block, and returns what one call took


class Sense(StrEnum):
    """Which side of a target is the good one."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Pair:
    """A case, and what it is held against; the target is the most that their comparison may be."""

    name: str
    case: Case
    reference: Case
    target: float | None = None
    compare: Callable[[float, float], float] = operator.truediv


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured of a pair: one sample of each side for each round."""

    section: str
    name: str
    target: float | None
    case: list[float] = field(repr=False)
    reference: list[float] = field(repr=False)
    figures: list[float] = field(repr=False)
    sense: Sense = Sense.AT_MOST

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The lower quartile, the median and the upper quartile of the figures."""
        low, median, high = quantiles(self.figures, n=4, method="inclusive")
        return low, median, high

    @property
    def median(self) -> float:
        """The figure that counts."""
        return self.quartiles[1]

    @property
    def is_reached(self) -> bool | None:
        """Whether the median is on the good side of the target; None if there is no target."""
        if self.target is None:
            return None
        return self.median <= self.target if self.sense is Sense.AT_MOST else self.median >= self.target


@dataclass(frozen=True, slots=True)
class Gap:
    """What was not measured, and why."""

    section: str
    name: str
    reason: str
    target: float | None = None
    sense: Sense = Sense.AT_MOST


def statement(
    code: str, names: dict[str, Any], *, times: int, calls: int = 1, after: Callable[[], None] = lambda: None
) -> Case:
    """Make a case of a statement that makes so many calls, run so many times a block, with no wrapper around it.

    What runs after a block is not timed.
    """
    timer = Timer(code, globals=names)

    def block() -> float:
        seconds = timer.timeit(times)
        after()
        return seconds / (times * calls)

    return block


def measure(section: str, pairs: Sequence[Pair], rounds: int) -> list[Row]:
    """Measure every pair in every round, and first one round that does not count."""
    samples: list[list[tuple[float, float]]] = [[] for _ in pairs]
    for number in range(rounds + 1):
        progress.show(section, "", number, rounds)
        for pair, taken in zip(pairs, samples, strict=True):
            taken.append(_side_by_side(pair, swapped=number % 2 == 1))
    return [_row(section, pair, taken[1:]) for pair, taken in zip(pairs, samples, strict=True)]


def _side_by_side(pair: Pair, *, swapped: bool) -> tuple[float, float]:
    """Take a sample of each side. The order changes every round, so that a machine that slows down favours neither."""
    if swapped:
        reference = pair.reference()
        return pair.case(), reference
    return pair.case(), pair.reference()


def _row(section: str, pair: Pair, samples: list[tuple[float, float]]) -> Row:
    case = [sample[0] for sample in samples]
    reference = [sample[1] for sample in samples]
    return Row(section, pair.name, pair.target, case, reference, list(map(pair.compare, case, reference)))
