"""Refusals that are answered without the store, for a second at most: a flood of them costs the store nothing."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from ratekit import clock
from ratekit.protocol import Call, Compiled, Operation
from ratekit.results import ADMITS, FIGURES, SOFTLY

MOST_REFUSALS = 10_000
LONGEST = 1.0  # seconds for which a refusal is believed
_LOOSENING = {Operation.REFUND, Operation.RESET}


class Refusal(NamedTuple):
    """What the store has answered to what, when, and until when it is believed."""

    compiled: Compiled
    cost: int
    figures: Sequence[int]
    at: float
    until: float


class RefusalCache:
    """Remembers the last refusal of each subject on an endpoint, for the same limits and the same cost.

    What may change before the wait is over makes a refusal unfit: a soft one is drawn anew each time, and a slot may be
    freed at any time.
    """

    def __init__(self, most: int = MOST_REFUSALS) -> None:
        self._most = most
        self._kept: dict[tuple[bytes, ...], Refusal] = {}
        _caches.add(self)

    def find(self, call: Call) -> Sequence[int] | None:
        """Return the figures of a call that is known to be refused still, as they are by now."""
        refusal = self._kept.get(call.keys)
        if refusal is None or refusal.compiled is not call.compiled or refusal.cost != call.cost:
            return None
        now = _now()
        if call.operation is not Operation.CHECK or now >= refusal.until:
            return None
        return _aged(refusal.figures, int((now - refusal.at) * 1_000_000))

    def learn(self, call: Call, figures: Sequence[int]) -> None:
        """Take note of an answer of the store: keep a refusal, forget what another operation may have changed."""
        wait_us = _wait_us(call, figures) if call.operation is Operation.CHECK else None
        if wait_us is not None:
            if len(self._kept) >= self._most:
                self._kept = {}
            now = _now()
            until = now + min(LONGEST, wait_us / 1_000_000)
            self._kept[call.keys] = Refusal(call.compiled, call.cost, figures, now, until)
        elif call.operation in _LOOSENING:
            self._kept.pop(call.keys, None)

    def clear(self) -> None:
        """Forget all refusals."""
        self._kept = {}

    def __len__(self) -> int:
        """How many refusals are kept."""
        return len(self._kept)


def forget_all() -> None:
    """Forget all refusals of this process: an override has changed."""
    for cache in list(_caches):
        cache.clear()


def _wait_us(call: Call, figures: Sequence[int]) -> float | None:
    """Return how long a request stays refused, whatever others do; None if it was not, or if nobody can tell."""
    if call.compiled.has_slots:
        return None
    longest: float | None = None
    for index, limit in enumerate(call.compiled.limits):
        flags, retry_us = figures[index * FIGURES], figures[index * FIGURES + 4]
        if flags & ADMITS or flags & SOFTLY or limit.shadow:
            continue
        longest = max(longest or 0, float("inf") if retry_us < 0 else retry_us)
    return longest


def _aged(figures: Sequence[int], age_us: int) -> Sequence[int]:
    """Return figures with shorter waits; the waits are the last two of each limit's six."""
    if len(figures) == FIGURES:
        flags, most, used, remaining, retry_us, reset_us = figures
        retry_us = max(retry_us - age_us, 1) if retry_us > 0 else retry_us
        return flags, most, used, remaining, retry_us, max(reset_us - age_us, 0)
    aged = list(figures)
    for at in range(4, len(aged), FIGURES):
        aged[at] = max(aged[at] - age_us, 1) if aged[at] > 0 else aged[at]
        aged[at + 1] = max(aged[at + 1] - age_us, 0)
    return aged


def _now() -> float:
    return monotonic() if clock.source is None else clock.now()


_caches: weakref.WeakSet[RefusalCache] = weakref.WeakSet()
