"""Says what is being measured, and how long it still takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import monotonic

_QUIET_SECONDS = 5.0  # between two lines in a log


class Progress:
    """Knows how many seconds each part was expected to take, and corrects that by what the parts so far took."""

    def __init__(self) -> None:
        self._expected: dict[str, float] = {}
        self._part = ""
        self._start = self._part_start = monotonic()
        self._said = 0.0

    def plan(self, expected: Mapping[str, float]) -> None:
        """Take the parts of a run and the seconds that each may take."""
        self._expected, self._start = dict(expected), monotonic()

    def begin(self, part: str) -> None:
        """Begin a part."""
        self._part, self._part_start = part, monotonic()

    def show(self, section: str, title: str, number: int, rounds: int) -> None:
        """Tell the round; on a terminal in place, in a log now and then."""
        about = f"{section}: {title}, {number} of {rounds}" if title else f"{section}: round {number} of {rounds}"
        self._say(f"{about}; about {_duration(self.left())} left" if self._expected else about)

    def left(self) -> float:
        """Return the seconds that the rest may take."""
        names = list(self._expected)
        at = names.index(self._part) if self._part in self._expected else 0
        done = sum(self._expected[name] for name in names[:at])
        took = self._part_start - self._start
        pace = max(took / done, 0.1) if done > 0 else 1.0
        part = self._expected.get(self._part, 0.0) * pace - (monotonic() - self._part_start)
        return max(part, 1.0) + pace * sum(self._expected[name] for name in names[at + 1 :])

    def clear(self) -> None:
        """Leave the line to others."""
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif monotonic() - self._said >= _QUIET_SECONDS:
            self._said = monotonic()
            print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


of_this_run = Progress()
show = of_this_run.show
