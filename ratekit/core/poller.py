"""A thread that calls a function again and again: for copies of what is kept elsewhere, which no request waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Poller:
    """Calls a function at once and then at an interval, in a thread of its own, until it is closed.

    The function must not raise. The thread ends with the process. A fork has no threads, so `revive` starts it again there:
    call it where the copy is used.
    """

    def __init__(self, function: Callable[[], object], interval: float | Callable[[], float], name: str) -> None:
        self._function = function
        self._interval = interval
        self._name = name
        self._one_at_a_time = threading.Lock()
        self._start()

    def run_now(self) -> None:
        """Call the function in this thread, and not while another thread does."""
        with self._one_at_a_time:
            self._function()

    def wake(self) -> None:
        """Let the thread call the function now, without waiting for it."""
        self._wakes.set()

    def revive(self) -> None:
        """Start the thread again if this process was forked from the one that had it."""
        if not self._thread.is_alive() and not self._stops.is_set():
            self._one_at_a_time = threading.Lock()  # the thread that may have held the old one is not here
            self._start()

    def close(self, seconds: float = 0.0) -> None:
        """End the thread, once the call that may be under way has ended; wait for that, so many seconds at most."""
        self._stops.set()
        self._wakes.set()
        if seconds and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _start(self) -> None:
        self._stops, self._wakes = threading.Event(), threading.Event()
        arguments = (self._stops, self._wakes)
        self._thread = threading.Thread(target=self._poll, args=arguments, name=self._name, daemon=True)
        self._thread.start()

    def _poll(self, stops: threading.Event, wakes: threading.Event) -> None:
        while not stops.is_set():
            self.run_now()
            wakes.wait(self._interval() if callable(self._interval) else self._interval)
            wakes.clear()
