"""Decisions of a few seconds, added up in this process: what the report is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratekit.events import Decision
from ratekit.figures import ADMITS, FIGURES, OVERRIDDEN, UNLIMITED
from ratekit.limits import Algorithm, Limit
from ratekit.modes import RateLimitMode
from ratekit.plans import Compiled
from ratekit.protocol import Call

WINDOW_PARTS = 16  # how finely the ends of windows are told apart
_MOST_KNOWN = 20_000
_FIGURES_AT = 7
Heard = tuple[Any, ...]  # compiled, keys, cost, mode, prefix, decided_at, degraded, and the figures of each limit


def flat(decision: Decision) -> Heard:
    """Return what is needed of a decision in one piece.

    Each object that waits is one more for the garbage collector to look at, on the path of requests: a queue of whole
    decisions made a check a tenth slower.
    """
    call, result, mode, _, prefix, failure = decision
    if result is None:
        return (call[0], call[1], call[3], mode, prefix, 0.0, failure)
    return (call[0], call[1], call[3], mode, prefix, result.decided_at, result.degraded, *result.figures)


class Series(NamedTuple):
    """One limit on one endpoint."""

    endpoint: str
    limit: str


@dataclass(slots=True)
class Use:
    """What one subject has done."""

    first: float
    last: float
    peak: int = 0  # the most that was used of a window
    refused: int = 0  # requests
    over: dict[int, list[int]] = field(default_factory=dict)  # by window: what was used of it, and the cost that was refused


@dataclass(slots=True)
class SeriesTally:
    """What has happened to one limit on one endpoint."""

    policy: str
    limit: Limit
    mode: RateLimitMode = RateLimitMode.ON
    allowed: int = 0
    denied: int = 0
    would_deny: int = 0
    degraded: int = 0
    uses: dict[str, Use] = field(default_factory=dict)

    def add(self, name: str, cost: int, at: float, figures: Sequence[int]) -> None:
        """Add what a limit has answered to a subject's request of some cost."""
        flags, _, used, _, _, reset_us = figures
        use = self.uses.get(name)
        if use is None:
            use = self.uses[name] = Use(at, at)
        use.last = at
        if used > use.peak and not flags & (OVERRIDDEN | UNLIMITED):
            use.peak = used
        if flags & ADMITS:
            self.allowed += 1
            return
        use.refused += 1
        if self.mode is RateLimitMode.ON and not self.limit.shadow:
            self.denied += 1
        else:
            self.would_deny += 1
        if not flags & OVERRIDDEN:
            _add_refused(use, self.limit, used, cost, at, reset_us)


class Tally:
    """Adds decisions up. name says what stands for a subject."""

    def __init__(self, name: Callable[[str], str]) -> None:
        self._name = name
        self._known: dict[tuple[Compiled, tuple[bytes, ...]], list[tuple[Series, str]]] = {}
        self._series: dict[Series, SeriesTally] = {}
        self.count = 0

    def take(self) -> tuple[int, dict[Series, SeriesTally]]:
        """Return how many decisions were added up, and what they came to; and begin anew."""
        taken = (self.count, self._series)
        self.count, self._series = 0, {}
        return taken

    def add(self, heard: Heard) -> None:
        """Add a decision to every limit that it is about."""
        self.count += 1
        compiled, keys, cost, mode, _, at, degraded = heard[:_FIGURES_AT]
        places = self._known.get((compiled, keys)) or self._learn(_about(heard))
        start = _FIGURES_AT
        for index, (series, name) in enumerate(places):
            tally = self._series.get(series)
            if tally is None:
                tally = self._series[series] = SeriesTally(_about(heard).policy, compiled.limits[index])
            tally.mode = mode
            if degraded is not None:
                tally.degraded += 1
            else:
                tally.add(name, cost, at, heard[start : start + FIGURES])
                start += FIGURES

    def _learn(self, decision: Decision) -> list[tuple[Series, str]]:
        """Find out what and who a call is about; most are about who came a moment ago."""
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        suffixes = decision.call.compiled.suffixes
        places = [
            (Series(counter.endpoint, suffix[1:]), self._name(counter.subject))
            for counter, suffix in zip(decision.counters, suffixes, strict=True)
        ]
        self._known[decision.call.compiled, decision.call.keys] = places
        return places


def _about(heard: Heard) -> Decision:
    """Return as much of a decision as tells what it is about."""
    compiled, keys, cost, mode, prefix, _, degraded = heard[:_FIGURES_AT]
    return Decision(Call(compiled, keys, cost=cost), None, mode, 0.0, prefix, degraded)


def _add_refused(use: Use, limit: Limit, used: int, cost: int, at: float, reset_us: int) -> None:
    """Note what was refused in a window: refusals spend nothing, so what was asked for is what was used and this."""
    if limit.algorithm is Algorithm.CONCURRENCY:
        use.peak = max(use.peak, used + cost)
        return
    over = use.over.setdefault(_window(limit, at, reset_us), [0, 0])
    over[0] = max(over[0], used)
    over[1] += cost


def _window(limit: Limit, at: float, reset_us: int) -> int:
    """Number the window of a refusal, the same in every process: by its end, or by the clock where it has none."""
    if limit.algorithm is Algorithm.FIXED_WINDOW:
        return round((at + reset_us / 1_000_000) / limit.window * WINDOW_PARTS)
    return int(at // limit.window) * WINDOW_PARTS
