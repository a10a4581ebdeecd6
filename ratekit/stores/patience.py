"""A deadline that does not hold a late event loop against the store."""

from __future__ import annotations

import asyncio
from types import TracebackType

_STEPS = 10


class Patience:
    """Raises TimeoutError in its block after so many seconds in which the event loop was running.

    The time is looked at in steps of a tenth. A step that comes late, since something blocked the loop or the process got no
    processor, counts as two at most: the answer may have been there all the while, and it is read before the next step.
    """

    __slots__ = ("_last", "_left", "_limit", "_loop", "_step", "_timer")

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._step = seconds / _STEPS
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(self._step, self._look)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _look(self) -> None:
        now = self._loop.time()
        self._left -= min(now - self._last, 2 * self._step)
        self._last = now
        if self._left <= 0:
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_later(min(self._step, self._left), self._look)
