"""Refusals that are answered without the store, for a second at most: a flood of them costs the store nothing."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Iterable, Sequence
from time import monotonic_ns

from ratekit.core import clock
from ratekit.core.compiled import CompiledPolicy
from ratekit.core.figures import ADMITS, FIGURES, SOFTLY
from ratekit.core.protocol import CHECK, Call, Operation

MOST_REFUSALS = 10_000
LONGEST_US = 1_000_000  # for which a refusal is believed
_LOOSENING = {Operation.REFUND, Operation.RETURN, Operation.RESET, Operation.SETTLE}
# What was asked, and what the store has answered: the policy, the cost, the figures, when, and until when it is believed.
_Kept = tuple[CompiledPolicy, int | tuple[int, ...], Sequence[int], int, int]


class RefusalCache:
    """Remembers the last refusal of each subject on an endpoint, for the same limits and the same cost.

    A counter may be part of several calls: of different policies, merged with others, or without its override. So refusals
    are also found by the keys of their counters, to be forgotten when something is given back.

    What may change before the wait is over makes a refusal unfit: a soft one is drawn anew each time, and a slot may be
    freed at any time.
    """

    def __init__(self, most: int = MOST_REFUSALS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: dict[tuple[bytes, ...], _Kept] = {}
        self._by_counter: dict[bytes, set[tuple[bytes, ...]]] = {}
        _caches.add(self)

    def find(self, call: Call) -> Sequence[int] | None:
        """Return the figures of a call that is known to be refused still, as they are by now."""
        compiled, names, operation, cost, _, _, extra = call
        kept = self._kept.get(names)
        if kept is None:
            return None
        of, of_cost, figures, at_us, until_us = kept
        now_us = monotonic_ns() // 1000 if clock.source is None else clock.source()
        if of is not compiled or of_cost != cost or operation is not CHECK or extra is not None or now_us >= until_us:
            return None
        return aged(figures, now_us - at_us)

    def learn(self, call: Call, figures: Sequence[int]) -> None:
        """Take note of an answer of the store, and keep it if it is a refusal."""
        wait_us = _wait_us(call, figures) if call.operation is CHECK and call.extra is None else None
        if wait_us is None:
            return
        now_us = monotonic_ns() // 1000 if clock.source is None else clock.source()
        until_us = now_us + int(min(LONGEST_US, wait_us))
        with self._lock:
            if len(self._kept) >= self._most and call.keys not in self._kept:
                self._kept, self._by_counter = {}, {}
            self._kept[call.keys] = (call.compiled, call.cost, figures, now_us, until_us)
            for key in call.state_keys:
                self._by_counter.setdefault(key, set()).add(call.keys)

    def forget(self, counters: Iterable[bytes]) -> None:
        """Forget the refusals in which one of these counters has a part."""
        if not self._kept:
            return
        with self._lock:
            for names in {names for key in counters for names in self._by_counter.get(key, ())}:
                compiled = self._kept.pop(names)[0]
                for at in compiled.state_at:
                    self._drop(names[at], names)

    def _drop(self, counter: bytes, names: tuple[bytes, ...]) -> None:
        found = self._by_counter[counter]
        found.discard(names)
        if not found:
            del self._by_counter[counter]

    def clear(self) -> None:
        """Forget all refusals."""
        with self._lock:
            self._kept, self._by_counter = {}, {}

    def __len__(self) -> int:
        """How many refusals are kept."""
        return len(self._kept)


def forget(counters: Collection[bytes]) -> None:
    """Forget the refusals of this process in which one of these counters has a part: something was given back to it."""
    for cache in list(_caches):
        cache.forget(counters)


def forget_given_back(call: Call) -> None:
    """Forget what a call that the store has run may have made wrong, in every cache of this process."""
    if _caches and call.operation in _LOOSENING:
        forget(call.state_keys)


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


def aged(figures: Sequence[int], age_us: int) -> Sequence[int]:
    """Return figures with shorter waits; the waits are the last two of each limit's six."""
    if len(figures) == FIGURES:
        flags, most, used, remaining, retry_us, reset_us = figures
        if retry_us > 0:
            retry_us -= age_us  # a refusal is not believed for so long that nothing is left
        return flags, most, used, remaining, retry_us, reset_us - age_us if reset_us > age_us else 0
    older = list(figures)
    for at in range(4, len(older), FIGURES):
        older[at] = max(older[at] - age_us, 1) if older[at] > 0 else older[at]
        older[at + 1] = max(older[at + 1] - age_us, 0)
    return older


_caches: weakref.WeakSet[RefusalCache] = weakref.WeakSet()
