"""Tallies: the decisions of this process of the last seconds, added up by limit and subject for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratekit.core.compiled import CompiledPolicy
from ratekit.core.events import Decision
from ratekit.core.figures import ADMITS, FIGURES, OVERRIDDEN, UNLIMITED
from ratekit.core.limits import Algorithm, Limit
from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import Call, Operation

WINDOW_PARTS = 16  # ends of windows that are closer than a 16th of a window are the end of the same window
_MOST_CACHED = 20_000
_FIGURES_AT = 8
Record = tuple[
    Any, ...
]  # compiled, keys, cost, mode, prefix, decided_at, degraded, operation, and the figures of each limit


def record_of(decision: Decision) -> Record:
    """Return the parts of a decision that the report needs, in one flat tuple.

    The garbage collector visits every queued object, on the path of requests: a queue of whole decisions made a check a
    tenth slower.
    """
    call, result, mode, _, prefix, failure = decision
    if result is None:
        return (call[0], call[1], call[3], mode, prefix, 0.0, failure, call[2])
    return (call[0], call[1], call[3], mode, prefix, result.decided_at, result.degraded, call[2], *result.figures)


class Series(NamedTuple):
    """One limit on one endpoint."""

    endpoint: str
    limit: str


@dataclass(slots=True)
class Use:
    """The use of a limit by one subject."""

    first: float
    last: float
    peak: int = 0  # the most that was used of a window
    refused: int = 0  # requests
    over: dict[int, list[int]] = field(default_factory=dict)  # by window: what was used, and the cost that was refused


@dataclass(slots=True)
class SeriesTally:
    """The tally of one limit on one endpoint."""

    policy: str
    limit: Limit
    mode: RateLimitMode = RateLimitMode.ON
    allowed: int = 0
    denied: int = 0
    would_deny: int = 0
    degraded: int = 0
    is_reserved: bool = False  # requests reserve what they cost, and may return some of it
    uses: dict[str, Use] = field(default_factory=dict)

    def add(self, name: str, cost: int, at: float, figures: Sequence[int]) -> None:
        """Add the script's figures for a subject's request of some cost."""
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
    """Adds up records by limit. name turns a subject into what the report stores."""

    def __init__(self, name: Callable[[str], str]) -> None:
        self._name = name
        self._cached: dict[tuple[CompiledPolicy, tuple[bytes, ...]], list[tuple[Series, str]]] = {}
        self._series: dict[Series, SeriesTally] = {}
        self.count = 0

    def take(self) -> tuple[int, dict[Series, SeriesTally]]:
        """Return the number of decisions that were added up and the tally of each limit, and start again from nothing."""
        taken = (self.count, self._series)
        self.count, self._series = 0, {}
        return taken

    def add(self, record: Record) -> None:
        """Add a decision to the tally of each of its limits."""
        self.count += 1
        compiled, keys, cost, mode, _, at, degraded, operation = record[:_FIGURES_AT]
        costs = Call(compiled, keys, cost=cost).costs
        places = self._cached.get((compiled, keys)) or self._places(_decision(record))
        start = _FIGURES_AT
        for index, (series, name) in enumerate(places):
            tally = self._series.get(series)
            if tally is None:
                tally = self._series[series] = SeriesTally(_decision(record).policy_of(index), compiled.limits[index])
            tally.mode = mode
            tally.is_reserved |= operation == Operation.RESERVE
            if degraded is not None:
                tally.degraded += 1
            else:
                tally.add(name, costs[index], at, record[start : start + FIGURES])
                start += FIGURES

    def _places(self, decision: Decision) -> list[tuple[Series, str]]:
        """Return the series and the name of the subject for each limit of a call. Most calls repeat, so they are cached."""
        if len(self._cached) >= _MOST_CACHED:
            self._cached.clear()
        suffixes = decision.call.compiled.suffixes
        places = [
            (Series(counter.endpoint, suffix[1:]), self._name(counter.subject))
            for counter, suffix in zip(decision.counters, suffixes, strict=True)
        ]
        self._cached[decision.call.compiled, decision.call.keys] = places
        return places


def _decision(record: Record) -> Decision:
    """Return the decision of a record, without its result."""
    compiled, keys, cost, mode, prefix, _, degraded, _ = record[:_FIGURES_AT]
    return Decision(Call(compiled, keys, cost=cost), None, mode, 0.0, prefix, degraded)


def _add_refused(use: Use, limit: Limit, used: int, cost: int, at: float, reset_us: int) -> None:
    """Add the cost of a refused request to its window. A refusal spends nothing, so demand is what was used plus this."""
    if limit.algorithm is Algorithm.CONCURRENCY:
        use.peak = max(use.peak, used + cost)
        return
    over = use.over.setdefault(_window(limit, at, reset_us), [0, 0])
    over[0] = max(over[0], used)
    over[1] += cost


def _window(limit: Limit, at: float, reset_us: int) -> int:
    """Return the number of a refusal's window, the same in every process: by its end, or by the clock if it has none."""
    if limit.algorithm is Algorithm.FIXED_WINDOW:
        return round((at + reset_us / 1_000_000) / limit.window * WINDOW_PARTS)
    return int(at // limit.window) * WINDOW_PARTS
