"""Takes decisions off the path of requests, and merges them into the store now and then."""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ratekit import clock, events
from ratekit.errors import ConfigurationError, RateLimitUnavailable
from ratekit.events import Decision
from ratekit.keys import DEFAULT_PREFIX, check_prefix
from ratekit.limiter import AsyncRateLimiter, RateLimiter
from ratekit.report.merging import Size, merge_all
from ratekit.report.tallies import Tally
from ratekit.stores.commands import drive, is_async_store
from ratekit.subjects import pseudonym

_CHUNK = 100  # decisions that are added up before other threads have their turn
_DEADLINE = 2.0  # seconds: nobody waits for it
_log = logging.getLogger("ratekit.report")


class Reporter:
    """Keeps the report of what the limiters of this process decide.

    store is a URL, a client or a limiter; every `interval` seconds a thread writes to it. With an asynchronous client there
    is no thread: run `run()` as a task. At most `most` decisions wait; further ones are dropped and counted, as is what
    cannot be written. subjects is "hashed" or "plain".
    """

    def __init__(
        self,
        store: Any = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        subjects: str = "hashed",
        interval: float = 2.0,
        most: int = 20_000,
        size: Size | None = None,
    ) -> None:
        if subjects not in ("hashed", "plain"):
            raise ConfigurationError(f"subjects {subjects!r} is unknown: it is one of hashed, plain")
        if not isinstance(interval, int | float) or not 0 < interval < math.inf:
            raise ConfigurationError(f"interval {interval!r} is not a number of seconds above 0")
        if type(most) is not int or most < 1:
            raise ConfigurationError(f"most {most!r} is not a whole number above 0")
        self.dropped = 0  # decisions that are not in the report
        self._target = _opened(store)
        self._is_awaited = is_async_store(self._target)
        self._prefix = check_prefix(prefix)
        self._name: Callable[[str], str] = str if subjects == "plain" else pseudonym
        self._interval = interval
        self._most = most
        self._size = size or Size()
        self._is_written = True
        self._remove: events.Remove = lambda: None
        self._begin()
        _reporters.add(self)

    def _begin(self) -> None:
        """Begin with nothing: when it is made, and in a forked process, where no thread has come along."""
        self._queue: deque[Decision] = deque()
        self._tally = Tally(self._name)
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def store(self) -> Any:
        """The limiter in whose store the report is, to read it from."""
        return self._target

    def start(self) -> Reporter:
        """Listen to decisions from now on."""
        self._remove()
        self._remove = events.on_decision(self.hear)
        return self

    def hear(self, decision: Decision) -> None:
        """Take a decision. All that happens on the path of a request."""
        if len(self._queue) >= self._most:
            self.dropped += 1
        else:
            self._queue.append(decision)
        if self._thread is None and not self._is_awaited:
            self._start_thread()

    def flush(self) -> None:
        """Write what was heard so far."""
        with self._writing:
            count = self._add_up()
            if not count:
                return
            try:
                drive(self._target, self._flow())
                self._is_written = True
            except RateLimitUnavailable as error:
                self._drop(count, error)

    async def aflush(self) -> None:
        """Write what was heard so far, by an asynchronous client."""
        count = self._add_up()
        if not count:
            return
        try:
            await drive(self._target, self._flow())
            self._is_written = True
        except RateLimitUnavailable as error:
            self._drop(count, error)

    async def run(self) -> None:
        """Write every so many seconds, until it is cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(self._interval)
                await self.aflush()
        finally:
            await self.aflush()

    def stop(self) -> None:
        """Listen no more."""
        self._remove()

    def close(self) -> None:
        """Listen no more, and write the rest."""
        self.stop()
        self._ends.set()
        if self._thread is not None:
            self._thread.join(_DEADLINE)
        if not self._is_awaited:
            self.flush()

    def _add_up(self) -> int:
        count = 0
        while self._queue:
            self._tally.add(self._queue.popleft())
            count += 1
            if count % _CHUNK == 0:
                time.sleep(0)  # a request that waits for the interpreter's lock goes first
        return count

    def _drop(self, count: int, error: RateLimitUnavailable) -> None:
        """Count what could not be written, and say so when that begins."""
        self.dropped += count
        if self._is_written:
            _log.warning("decisions are missing from the report until its store is back: %s", error)
        self._is_written = False

    def _flow(self) -> Any:
        return merge_all(self._prefix, self._tally.take(), clock.now(), self._size)

    def _start_thread(self) -> None:
        with self._starting:
            if self._thread is None and not self._ends.is_set():
                self._thread = threading.Thread(
                    target=_write, args=(weakref.ref(self), self._ends, self._interval), daemon=True
                )
                self._thread.name = "ratekit-report"
                self._thread.start()


def _write(reference: weakref.ref[Reporter], ends: threading.Event, interval: float) -> None:
    """Write now and then, as long as somebody holds the reporter."""
    while not ends.wait(interval):
        reporter = reference()
        if reporter is None:
            return
        reporter.flush()
        del reporter


def _opened(store: Any) -> Any:
    if isinstance(store, RateLimiter | AsyncRateLimiter):
        return store
    if store is None or isinstance(store, str):
        return RateLimiter(store, deadline=_DEADLINE)
    return AsyncRateLimiter(store) if is_async_store(store) else RateLimiter(store, deadline=_DEADLINE)


_reporters: weakref.WeakSet[Reporter] = weakref.WeakSet()


def _begin_anew() -> None:
    for reporter in list(_reporters):
        reporter._begin()


def _flush_all() -> None:
    for reporter in list(_reporters):
        reporter.close()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(_flush_all)
