"""Deadlines that do not hold a late event loop against the store.

Time is looked at in steps of a tenth of the deadline. A step that comes late, since something blocked the loop or the
process got no processor, counts for a fifth of one only: the answer may have been there all the while, and it is read before
the next step; and where processors are short, the store may be as late as we are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

_STEPS = 10
LATE = 0.2


class Watch:
    """Calls a function if it was started and not stopped for so many seconds in which the event loop was running.

    Made for many short stretches: starting and stopping cost next to nothing, as one timer serves them all.
    """

    __slots__ = ("_expired", "_is_on", "_left", "_loop", "_seconds", "_since", "_step", "_timer")

    def __init__(self, seconds: float, expired: Callable[[], None]) -> None:
        self._seconds = seconds
        self._step = seconds / _STEPS
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_on = False
        self._left = self._since = 0.0

    def start(self) -> None:
        """Begin a stretch."""
        self._is_on, self._left, self._since = True, self._seconds, self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._step, self._look)

    def stop(self) -> None:
        """End it; the timer finds out by itself."""
        self._is_on = False

    def end(self) -> None:
        """Take the timer away."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if not self._is_on:
            return
        now = self._loop.time()
        passed = now - self._since
        self._left -= passed if passed < 2 * self._step else self._step * LATE
        self._since = now
        if self._left <= 0:
            self._is_on = False
            self._expired()
        else:
            self._timer = self._loop.call_later(min(self._step, self._left), self._look)


class Patience:
    """Raises TimeoutError in its block after so many seconds in which the event loop was running."""

    __slots__ = ("_limit", "_watch")

    def __init__(self, seconds: float) -> None:
        self._limit = asyncio.timeout(None)
        self._watch = Watch(seconds, self._expired)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._watch.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()
        self._watch.end()
        await self._limit.__aexit__(kind, error, trace)

    def _expired(self) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time())
