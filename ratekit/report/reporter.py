"""The reporter: queues decisions on the path of requests, and writes them to the store in the background."""

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
from collections.abc import Callable, Mapping
from typing import Any

from ratekit.admin.commands import Flow, drive, is_async_store, prefix_of
from ratekit.admin.targets import Target
from ratekit.core import clock, events
from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.core.events import Decision
from ratekit.core.pseudonyms import pseudonyms
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.report.tally import Record, Series, SeriesTally, Tally, record_of
from ratekit.report.write import ReportSize, merge_all

_CHUNK = 100  # decisions that are added up before the interpreter's lock is offered to other threads
ADDING_SECONDS = 0.1
_DEADLINE = 2.0  # seconds: no request waits for it
_log = logging.getLogger("ratekit.report")


class Reporter:
    """Records every decision of the limiters of this process.

    - store: a URL (by default RATE_LIMIT_STORE_URL), a client, a store or a limiter
    - prefix: what the keys of the report start with; by default as those of the limiter
    - subjects: "hashed" stores pseudonyms of subjects, "plain" stores the subjects
    - interval: seconds between two writes, by a thread; with an asynchronous client, run `run()` as a task instead
    - most: decisions that the queue holds; further ones are dropped and counted, as are those that cannot be written
    """

    def __init__(
        self,
        store: str | Target | None = None,
        *,
        prefix: str | None = None,
        subjects: str = "hashed",
        interval: float = 2.0,
        most: int = 20_000,
        size: ReportSize | None = None,
    ) -> None:
        if subjects not in ("hashed", "plain"):
            raise ConfigurationError(f"subjects {subjects!r} is unknown: it is one of hashed, plain")
        if not isinstance(interval, int | float) or not 0 < interval < math.inf:
            raise ConfigurationError(f"interval {interval!r} is not a number of seconds above 0")
        if type(most) is not int or most < 1:
            raise ConfigurationError(f"most {most!r} is not a whole number above 0")
        self.dropped = 0  # decisions that are missing in the report
        self._target = _opened(store)
        self._is_awaited = is_async_store(self._target)
        self._prefix = prefix_of(store, prefix)
        self._name: Callable[[str], str] = str if subjects == "plain" else pseudonyms()
        self._interval = interval
        self._most = most
        self._size = size or ReportSize()
        self._is_written = True
        self._remove: events.Remove = lambda: None
        self._start_empty()
        _reporters.add(self)

    def _start_empty(self) -> None:
        """Start with nothing: in a new reporter, and in a forked process, which has no thread."""
        self._queue: deque[Record] = deque()
        self._tally = Tally(self._name)
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_to_start = not self._is_awaited

    @property
    def store(self) -> Any:
        """The limiter whose store has the report."""
        return self._target

    def start(self) -> Reporter:
        """Listen to decisions from now on."""
        self._remove()
        self._remove = events.on_decision(self.enqueue)
        return self

    def enqueue(self, decision: Decision) -> None:
        """Queue a decision. This is all that the report does on the path of a request."""
        queue = self._queue
        if len(queue) < self._most:
            queue.append(record_of(decision))
        else:
            self.dropped += 1
        if self._has_to_start:
            self._start_thread()

    def add_up(self) -> bool:
        """Add up the queue. Returns whether there is so much that it has to be written now.

        This is done often, as the garbage collector visits what is in the queue, on the path of requests.
        """
        with self._adding:
            for number in range(1, len(self._queue) + 1):
                self._tally.add(self._queue.popleft())
                if number % _CHUNK == 0:
                    time.sleep(0)  # lets a request go first that waits for the interpreter's lock
            return self._tally.count >= self._most

    def flush(self) -> None:
        """Write everything that was queued so far."""
        self.add_up()
        with self._writing:
            count, tallies = self._taken()
            if not count:
                return
            try:
                drive(self._target, self._merging(tallies))
                self._is_written = True
            except RateLimitUnavailable as error:
                self._drop(count, error)

    async def aflush(self) -> None:
        """Write everything that was queued so far, with an asynchronous client."""
        self.add_up()
        count, tallies = self._taken()
        if not count:
            return
        try:
            await drive(self._target, self._merging(tallies))
            self._is_written = True
        except RateLimitUnavailable as error:
            self._drop(count, error)

    async def run(self) -> None:
        """Write every `interval` seconds until cancelled, then once more."""
        try:
            due = time.monotonic() + self._interval
            while True:
                await asyncio.sleep(min(ADDING_SECONDS, self._interval))
                if self.add_up() or time.monotonic() >= due:
                    await self.aflush()
                    due = time.monotonic() + self._interval
        finally:
            await self.aflush()

    def stop(self) -> None:
        """Stop listening to decisions."""
        self._remove()

    def close(self) -> None:
        """Stop listening to decisions, and write the rest."""
        self.stop()
        self._ends.set()
        if self._thread is not None:
            self._thread.join(_DEADLINE)
        if not self._is_awaited:
            self.flush()

    def _taken(self) -> tuple[int, Mapping[Series, SeriesTally]]:
        with self._adding:
            return self._tally.take()

    def _drop(self, count: int, error: RateLimitUnavailable) -> None:
        """Count decisions that could not be written, and log it when that begins."""
        self.dropped += count
        if self._is_written:
            _log.warning("the report cannot be written, and misses decisions until it can: %s", error)
        self._is_written = False

    def _merging(self, tallies: Mapping[Series, SeriesTally]) -> Flow[None]:
        return merge_all(self._prefix, tallies, clock.now(), self._size)

    def _start_thread(self) -> None:
        with self._starting:
            self._has_to_start = False
            if self._thread is None and not self._ends.is_set():
                self._thread = threading.Thread(
                    target=_write, args=(weakref.ref(self), self._ends, self._interval), daemon=True
                )
                self._thread.name = "ratekit-report"
                self._thread.start()


def _write(reference: weakref.ref[Reporter], ends: threading.Event, interval: float) -> None:
    """Write every `interval` seconds, as long as the reporter is referenced."""
    due = time.monotonic() + interval
    while not ends.wait(min(ADDING_SECONDS, interval)):
        reporter = reference()
        if reporter is None:
            return
        if reporter.add_up() or time.monotonic() >= due:
            reporter.flush()
            due = time.monotonic() + interval
        del reporter


def _opened(store: Any) -> RateLimiter | AsyncRateLimiter:
    if isinstance(store, RateLimiter | AsyncRateLimiter):
        return store
    if store is None or isinstance(store, str):
        return RateLimiter(store, deadline=_DEADLINE)
    return AsyncRateLimiter(store) if is_async_store(store) else RateLimiter(store, deadline=_DEADLINE)


_reporters: weakref.WeakSet[Reporter] = weakref.WeakSet()


def _restart_all() -> None:
    for reporter in list(_reporters):
        reporter._start_empty()


def _flush_all() -> None:
    for reporter in list(_reporters):
        reporter.close()


os.register_at_fork(after_in_child=_restart_all)
atexit.register(_flush_all)
