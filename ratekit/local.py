"""Counting in this process while the store is away: a share of each limit, so that all processes together keep it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ratekit.limits import Limit
from ratekit.protocol import Call, with_limits


class LocalFallback:
    """Decides calls by an embedded store of its own, with the maximum divided by the number of instances."""

    def __init__(self, instances: int) -> None:
        self._instances = instances
        self._store: Any = None

    def run(self, call: Call) -> Sequence[int]:
        """Decide one call by this process's share; overrides live in the store that is away."""
        if self._store is None:
            from ratekit.stores.memory import MemoryStore

            self._store = MemoryStore()
        limits = [_part_of(limit, self._instances) for limit in call.compiled.limits]
        figures: Sequence[int] = self._store.run(with_limits(call, limits))
        return figures


@lru_cache(maxsize=1024)
def _part_of(limit: Limit, instances: int) -> Limit:
    burst = None if limit.burst is None else max(1, limit.burst // instances)
    return replace(limit, max_requests=max(1, limit.max_requests // instances), burst=burst)
