"""Renewal of slots: what takes longer than the window of its concurrency limit keeps its slot until it ends.

The window of a concurrency limit is the time after which the slot of a process that has died is free again. A slot that is
still in use is renewed three times in each window, so that two renewals may be lost to an outage. A renewal never takes a
slot that was freed meanwhile, so one that is under way when its slot is released does no harm.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ratekit.core.figures import ADMITS, FIGURES, OVERRIDDEN
from ratekit.core.lazy_log import Logger
from ratekit.core.limits import Algorithm
from ratekit.core.protocol import Call, Operation, only
from ratekit.core.results import RateLimitResult
from ratekit.stores.contract import Answer

_log = Logger("ratekit.limiter")
_RENEWALS = 3  # in each window
_SHORTEST = 0.005  # seconds between two renewals


class Renewal(Protocol):
    """Slots that are renewed."""

    def stop(self) -> None:
        """Renew them no more. Call this before they are released."""


class HeldSlots(NamedTuple):
    """Slots that one call has taken: a call that renews each of them, and how many seconds may pass between renewals."""

    calls: tuple[Call, ...]
    interval: float


def slots_held(call: Call, result: RateLimitResult) -> HeldSlots | None:
    """Return the slots that a call has taken in the store, None if there are none.

    An override may have shortened a window. Then the window is at least as long as the oldest slot has left.
    """
    windows: dict[int, float] = {}
    for index, limit in enumerate(call.compiled.limits):
        if limit.algorithm is not Algorithm.CONCURRENCY or result.degraded is not None:
            continue
        flags, reset_us = result.figures[index * FIGURES], result.figures[index * FIGURES + 5]
        if flags & ADMITS:
            windows[index] = min(limit.window, reset_us / 1_000_000) if flags & OVERRIDDEN else limit.window
    if not windows:
        return None
    calls = tuple(only(call, [index], Operation.RENEW) for index in windows)
    return HeldSlots(calls, max(min(windows.values()) / _RENEWALS, _SHORTEST))


def still_held(calls: Sequence[Call], answers: Sequence[Answer]) -> list[Call]:
    """Return the renewals whose slots were still held, by the store's answers; one that the store could not run counts."""
    return [call for call, answer in zip(calls, answers, strict=True) if isinstance(answer, str) or answer[0] & ADMITS]


def _warn_of_lost(calls: Sequence[Call], held: Sequence[Call]) -> None:
    """Say that a slot is not held any more although its work goes on: the store was away for a window, or was emptied."""
    lost = [limit.name for call in calls if call not in held for limit in call.compiled.limits if not limit.shadow]
    if lost:
        _log.warning(
            "the slot of %s is lost while its work goes on: more may run at once than the limit allows", ", ".join(lost)
        )


class LoopRenewal:
    """Renews slots on an event loop, by a timer that costs next to nothing as long as it does not fire."""

    def __init__(self, slots: HeldSlots, renew: Callable[[Sequence[Call]], Awaitable[Sequence[Call]]]) -> None:
        import asyncio  # loaded by the application; without it, the import of ratekit is a third faster

        self._loop = asyncio.get_running_loop()
        self._calls: Sequence[Call] = slots.calls
        self._interval = slots.interval
        self._renew = renew
        self._is_stopped = False
        self._task: Any = None  # an event loop itself does not keep it alive
        self._timer = self._loop.call_later(slots.interval, self._fire)

    def _fire(self) -> None:
        self._task = self._loop.create_task(self._renewed())

    async def _renewed(self) -> None:
        held = await self._renew(self._calls)
        if self._is_stopped:
            return
        _warn_of_lost(self._calls, held)
        self._calls = held
        if held:
            self._timer = self._loop.call_later(self._interval, self._fire)

    def stop(self) -> None:
        """Renew no more."""
        self._is_stopped = True
        self._timer.cancel()


class _Held:
    """Slots that the thread renews."""

    __slots__ = ("_thread", "calls", "due", "interval", "renew")

    def __init__(self, thread: RenewalThread, slots: HeldSlots, renew: Callable[[Sequence[Call]], Sequence[Call]]) -> None:
        self.calls: Sequence[Call] = slots.calls
        self.interval = slots.interval
        self.due = time.monotonic() + slots.interval
        self.renew = renew
        self._thread = thread

    def stop(self) -> None:
        self._thread.forget(self)


class RenewalThread:
    """Renews the slots of limiters that wait, in one thread of the process, which starts with the first slot.

    Most slots are released before they are due: taking and releasing one does not wake the thread.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin with nothing, as a process that was forked has to."""
        self._changed = threading.Condition()
        self._held: set[_Held] = set()
        self._wakes_at = 0.0  # 0: no thread runs

    def hold(self, slots: HeldSlots, renew: Callable[[Sequence[Call]], Sequence[Call]]) -> Renewal:
        """Renew slots from now on, until they are stopped."""
        held = _Held(self, slots, renew)
        with self._changed:
            self._held.add(held)
            if not self._wakes_at:
                self._wakes_at = held.due
                threading.Thread(target=self._run, name="ratekit-renewals", daemon=True).start()
            elif held.due < self._wakes_at:
                self._changed.notify()
        return held

    def forget(self, held: _Held) -> None:
        """Renew slots no more."""
        with self._changed:
            self._held.discard(held)

    def _run(self) -> None:
        while due := self._due():
            for held in due:
                self._note(held, held.renew(held.calls))

    def _due(self) -> list[_Held]:
        """Wait until slots are due, and return them; none if there are no slots left."""
        with self._changed:
            while self._held:
                self._wakes_at = min(held.due for held in self._held)
                now = time.monotonic()
                if self._wakes_at <= now:
                    return [held for held in self._held if held.due <= now]
                self._changed.wait(self._wakes_at - now)
            self._wakes_at = 0.0  # in the lock: a slot that is taken from now on starts another thread
            return []

    def _note(self, held: _Held, calls: Sequence[Call]) -> None:
        with self._changed:
            if held not in self._held:
                return
            _warn_of_lost(held.calls, calls)
            held.calls, held.due = calls, time.monotonic() + held.interval
            if not calls:
                self._held.discard(held)


thread = RenewalThread()
os.register_at_fork(after_in_child=thread.begin)
