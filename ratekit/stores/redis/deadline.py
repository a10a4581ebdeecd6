"""Deadlines that do not blame the store when this process itself was late.

A reply may have arrived long ago while something blocked the event loop, or while the process got no processor. So a wait
that ends late counts for a fifth of its length only, and the reply is looked for once more: where processors are short, the
server may be as late as this process. One rule, for event loops (`LoopDeadline`, `Deadline`) and for threads (`read_reply`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

_STEPS = 10  # an event loop looks at the clock so many times within a deadline
_LATE_SHARE = 5  # a late wait counts for one part in so many


class LoopDeadline:
    """Calls a function after so many seconds in which the event loop was running, unless it is stopped before.

    Made for many short waits: starting and stopping cost next to nothing, as one timer serves them all.
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
        """Begin to wait."""
        self._is_on, self._left, self._since = True, self._seconds, self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._step, self._tick)

    def stop(self) -> None:
        """End the wait. The timer runs out by itself."""
        self._is_on = False

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = None
        if not self._is_on:
            return
        now = self._loop.time()
        passed = now - self._since
        self._left -= passed if passed < 2 * self._step else self._step / _LATE_SHARE
        self._since = now
        if self._left <= 0:
            self._is_on = False
            self._expired()
        else:
            self._timer = self._loop.call_later(min(self._step, self._left), self._tick)


class Deadline:
    """An asynchronous context manager that raises TimeoutError after so many seconds in which the event loop was running."""

    __slots__ = ("_deadline", "_timeout")

    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(None)
        self._deadline = LoopDeadline(seconds, self._expired)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._deadline.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadline.stop()
        self._deadline.close()
        await self._timeout.__aexit__(kind, error, trace)

    def _expired(self) -> None:
        self._timeout.reschedule(asyncio.get_running_loop().time())


def read_reply(connection: Any, timeout: type[Exception]) -> Any:
    """Read a reply from a connection of redis-py that has a timeout; again if the timeout came late, five times at most."""
    for _ in range(_LATE_SHARE - 1):
        began = time.monotonic()
        try:
            return connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except timeout:
            if time.monotonic() - began < connection.socket_timeout * (1 + 1 / _STEPS):
                raise
    return connection.read_response(disable_decoding=True, disconnect_on_error=False)
