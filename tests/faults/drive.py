"""Limiters of either colour under load, driven from outside: a test breaks something while checks go on.

A synchronous limiter is used from threads, an asynchronous one from an event loop in a thread of its own. What a check
took is measured where it runs, without the time in which that thread waited for a processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from dataclasses import dataclass
from typing import Any, Self

from faults.machine import Watch
from faults.naive import AsyncNaiveLimiter, NaiveLimiter
from ratekit import AsyncRateLimiter, Policy, RateLimiter, RateLimitUnavailable

PATIENCE = 20.0  # seconds that a test waits for any answer
_LANES = 64
_TICK = 0.002


@dataclass(frozen=True, slots=True)
class Sample:
    """One check: when it began, what it took, and what came of it."""

    at: float
    took: float
    allowed: bool = False
    degraded: str | None = None
    count: int = 0
    error: BaseException | None = None

    @property
    def is_unavailable(self) -> bool:
        """Whether it was refused because nobody can tell."""
        return isinstance(self.error, RateLimitUnavailable)

    @property
    def is_error(self) -> bool:
        """Whether it raised what an application does not expect."""
        return self.error is not None and not self.is_unavailable

    @property
    def is_decided(self) -> bool:
        """Whether the store has decided it."""
        return self.error is None and self.degraded is None


@dataclass(frozen=True, slots=True)
class Request:
    """What a check asks."""

    policy: Policy
    subject: str = "u"
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes limiters of one kind and colour, in this process or in others."""

    colour: str
    naive: bool = False

    def open(self, url: str, **options: Any) -> Driver:
        """Return a limiter of a store, ready to be driven."""
        return Waiting(self, url, options) if self.colour == "sync" else Awaiting(self, url, options)

    def limiter(self, url: str, options: dict[str, Any]) -> Any:
        """Return the limiter alone."""
        if self.colour == "sync":
            return NaiveLimiter(url, **options) if self.naive else RateLimiter(url, **options)
        return AsyncNaiveLimiter(url, **options) if self.naive else AsyncRateLimiter(url, **options)


class Driver(ABC):
    """A limiter and the threads that use it."""

    limiter: Any

    def check(self, policy: Policy, subject: str = "u", *, cost: int = 1, patience: float = PATIENCE) -> Sample:
        """Check once. A check that does not come back in time is a sample of that time, with an error."""
        return self.checks([Request(policy, subject, cost)], width=1, patience=patience)[0]

    def checks(self, requests: Sequence[Request], *, width: int, patience: float = PATIENCE) -> list[Sample]:
        """Check many times, so many at once."""
        lanes = [requests[lane::width] for lane in range(min(width, len(requests)))]
        started = time.monotonic()
        futures = [self._start(lane) for lane in lanes]
        samples: list[Sample] = []
        for future in futures:
            try:
                samples += future.result(max(0.0, started + patience - time.monotonic()))
            except StillWaiting as error:
                future.cancel()
                samples.append(Sample(started, patience, error=error))
        return samples

    @contextlib.contextmanager
    def paced(self, policy: Policy, *, per_second: float, subject: str = "u") -> Iterator[list[Sample]]:
        """Check so many times a second for a block; what it yields grows meanwhile."""
        samples: list[Sample] = []
        stop = threading.Event()
        future = self._start_paced(Request(policy, subject), 1 / per_second, samples, stop)
        try:
            yield samples
        finally:
            stop.set()
            future.result(PATIENCE)

    @contextlib.contextmanager
    def stalls(self) -> Iterator[list[float]]:
        """Tell how late another task of the loop, or another thread, was each time it should have run."""
        late: list[float] = []
        stop = threading.Event()
        future = self._start_ticking(late, stop)
        try:
            yield late
        finally:
            stop.set()
            future.result(PATIENCE)

    @abstractmethod
    def _start(self, requests: Sequence[Request]) -> Future[list[Sample]]:
        """Check one after the other."""

    @abstractmethod
    def _start_paced(self, request: Request, period: float, samples: list[Sample], stop: threading.Event) -> Future[None]:
        """Check once a period until told to stop."""

    @abstractmethod
    def _start_ticking(self, late: list[float], stop: threading.Event) -> Future[None]:
        """Sleep and be late until told to stop."""

    @abstractmethod
    def close(self) -> None:
        """Close the limiter, and end the threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class Waiting(Driver):
    """A synchronous limiter in threads."""

    def __init__(self, maker: Maker, url: str, options: dict[str, Any]) -> None:
        self.limiter = maker.limiter(url, options)
        self._threads = ThreadPoolExecutor(_LANES)
        self._closed = threading.Event()

    def _one(self, request: Request) -> Sample:
        started, watch = time.monotonic(), Watch()
        try:
            result = self.limiter.check(request.policy, request.subject, cost=request.cost)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
            return Sample(started, watch.seconds(), error=error)
        return _sample(started, watch, result)

    def _start(self, requests: Sequence[Request]) -> Future[list[Sample]]:
        return self._threads.submit(lambda: [self._one(request) for request in requests if not self._closed.is_set()])

    def _start_paced(self, request: Request, period: float, samples: list[Sample], stop: threading.Event) -> Future[None]:
        def run() -> None:
            due = time.monotonic()
            while not stop.is_set():
                samples.append(self._one(request))
                due = max(due + period, time.monotonic())
                time.sleep(due - time.monotonic() if due > time.monotonic() else 0)

        return self._threads.submit(run)

    def _start_ticking(self, late: list[float], stop: threading.Event) -> Future[None]:
        def run() -> None:
            while not stop.is_set():
                watch = Watch()
                time.sleep(_TICK)
                late.append(watch.seconds() - _TICK)

        return self._threads.submit(run)

    def close(self) -> None:
        self._closed.set()  # the interpreter waits for every thread: none may go on asking a server that is gone
        self.limiter.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


class Awaiting(Driver):
    """An asynchronous limiter on an event loop."""

    def __init__(self, maker: Maker, url: str, options: dict[str, Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, daemon=True)
        self._thread.start()
        self.limiter = maker.limiter(url, options)

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            self._closed = asyncio.Event()
            runner.run(self._closed.wait())

    def run(self, work: Any, patience: float = PATIENCE) -> Any:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(patience)

    async def one(self, request: Request) -> Sample:
        """Check once."""
        started, watch = time.monotonic(), Watch()
        try:
            result = await self.limiter.check(request.policy, request.subject, cost=request.cost)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
            return Sample(started, watch.seconds(), error=error)
        return _sample(started, watch, result)

    def _start(self, requests: Sequence[Request]) -> Future[list[Sample]]:
        async def run() -> list[Sample]:
            return [await self.one(request) for request in requests]

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def _start_paced(self, request: Request, period: float, samples: list[Sample], stop: threading.Event) -> Future[None]:
        async def run() -> None:
            due = time.monotonic()
            while not stop.is_set():
                samples.append(await self.one(request))
                due = max(due + period, time.monotonic())
                await asyncio.sleep(due - time.monotonic())

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def _start_ticking(self, late: list[float], stop: threading.Event) -> Future[None]:
        async def run() -> None:
            while not stop.is_set():
                watch = Watch()
                await asyncio.sleep(_TICK)
                late.append(watch.seconds() - _TICK)

        return asyncio.run_coroutine_threadsafe(run(), self.loop)

    def close(self) -> None:
        self.run(self.limiter.aclose())
        self.loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(PATIENCE)


def _sample(started: float, watch: Watch, result: Any) -> Sample:
    return Sample(started, watch.seconds(), result.allowed, result.degraded, result.request_count)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent of all do not pass."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def until(samples: list[Sample], is_so: Callable[[Sample], bool], since: float, seconds: float) -> float:
    """Return how long after a moment a sample was first so; the whole time if none was."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for sample in list(samples):
            if sample.at >= since and is_so(sample):
                return sample.at + sample.took - since
        time.sleep(0.01)
    return seconds
