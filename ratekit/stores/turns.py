"""Whose turn it is: so many threads at a time, in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter

_AT_ONCE = 0.0002  # a thread that comes back within so many seconds is in a hurry
_SLICE = 0.002  # and keeps its turn for so long, though others wait: to wake one of them costs more than a check
_PATIENCE = 0.005  # how long others wait before they look whether it has come back indeed


class Turns:
    """A semaphore that hands a turn that ends straight to the thread that has waited for longest.

    One that merely wakes somebody up lets the thread that has just had its turn take the next one too, again and again.
    Here that is so for a short while only, and only for threads that do nothing else.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._kept: dict[int, float] = {}  # by threads that may come back at once: since when
        self._own = threading.local()

    def take(self, seconds: float) -> bool:
        """Wait for a turn; whether there was one in time."""
        now, me = perf_counter(), threading.get_ident()
        own = self._own.__dict__
        own["hurries"] = now - own.get("ended", 0) < _AT_ONCE
        if self._kept and self._kept.pop(me, None) is not None:
            return True
        own["began"] = now
        if not self._take_free():
            if not self._wait(now + seconds):
                return False
            own["began"] = perf_counter()
        return True

    def give_back(self) -> None:
        """End a turn."""
        if self._waiting:
            own, now = self._own.__dict__, perf_counter()
            own["ended"] = now
            if own["hurries"] and now - own["began"] < _SLICE:
                self._kept[threading.get_ident()] = now
                return
        self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1

    def _take_free(self) -> bool:
        """Take a turn that is free, or one that was kept in vain."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
        return bool(self._kept) and self._take_kept()

    def _take_kept(self) -> bool:
        late = perf_counter() - _AT_ONCE
        return any(since < late and self._kept.pop(thread, None) is not None for thread, since in list(self._kept.items()))

    def _wait(self, until: float) -> bool:
        turn = threading.Lock()
        turn.acquire()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            self._waiting.append(turn)
        while not turn.acquire(timeout=_PATIENCE):
            if self._take_kept():
                if not self._leave(turn):
                    self._hand_over()  # it was given one as well
                return True
            if perf_counter() > until:
                return not self._leave(turn)  # at the last moment it may have been given one
        return True

    def _leave(self, turn: threading.Lock) -> bool:
        """Whether who waits was still in the line."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True
