"""Whose turn it is: so many threads at a time, in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A semaphore that hands a turn that ends straight to the thread that has waited for longest.

    One that merely wakes somebody up lets the thread that has just had its turn take the next one too, again and again.
    """

    __slots__ = ("_free", "_lock", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = most
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def take(self, seconds: float) -> bool:
        """Wait for a turn; whether there was one in time."""
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=seconds):
            return True
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return False
        return True  # it was given at the last moment

    def give_back(self) -> None:
        """End a turn."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
