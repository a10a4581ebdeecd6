"""Many short rounds: what is compared is measured side by side in time, and the figure is the median over the rounds."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from timeit import Timer
from typing import Any

Case = Callable[[], float]  # runs one short block, and returns what one call took


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
        """Whether the median is within the target; None if there is no target."""
        return None if self.target is None else self.median <= self.target


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
        _show(f"{section}: round {number} of {rounds}")
        for pair, taken in zip(pairs, samples, strict=True):
            taken.append(_side_by_side(pair, swapped=number % 2 == 1))
    _show("")
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


def _show(progress: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)
