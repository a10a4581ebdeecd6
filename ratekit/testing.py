"""Tools for tests of applications: a clock that tests move, and an assertion about how many requests pass."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ratekit.core import clock
from ratekit.core.errors import ConfigurationError


class VirtualClock:
    """A clock that stands still until it is moved. While it is installed, every limiter of the process uses it."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.set(now)

    @property
    def now(self) -> float:
        """The time in seconds since the epoch."""
        return self._now_us / 1_000_000

    @property
    def now_us(self) -> int:
        """The time in microseconds since the epoch."""
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move the clock forward by some seconds; a negative number moves it back."""
        self.set((self._now_us + round(seconds * 1_000_000)) / 1_000_000)

    def set(self, now: float) -> None:
        """Set the time, in seconds since the epoch."""
        if now <= 0:
            raise ConfigurationError(f"now {now!r} is not a time after the epoch")
        self._now_us = round(now * 1_000_000)

    def install(self) -> None:
        """Make every limiter of the process use this clock."""
        clock.source = lambda: self._now_us

    def uninstall(self) -> None:
        """Make every limiter use real clocks again."""
        clock.source = None


def is_admitted(answer: Any) -> bool:
    """Whether a request passed. The answer is a result of ratekit, a bool, or a response, where 429 is a refusal."""
    if isinstance(answer, bool):
        return answer
    if hasattr(answer, "is_over_limit"):
        return not answer.is_over_limit
    status = getattr(answer, "status_code", None)
    if status is None:
        raise ConfigurationError(f"answer {answer!r} is neither a result, nor a bool, nor a response with a status_code")
    return bool(status != 429)


def assert_admits(send: Callable[[], Any], exactly: int, of: int | None = None) -> None:
    """Send `of` requests, by default one more than `exactly`, and assert that only the first `exactly` pass."""
    _assert_first([is_admitted(send()) for _ in range(of or exactly + 1)], exactly)


async def assert_admits_async(send: Callable[[], Awaitable[Any]], exactly: int, of: int | None = None) -> None:
    """Await `of` requests, one after the other, and assert that only the first `exactly` pass."""
    answers = []
    for _ in range(of or exactly + 1):
        answer = send()
        answers.append(is_admitted(await answer if inspect.isawaitable(answer) else answer))
    _assert_first(answers, exactly)


def _assert_first(admitted: Iterable[bool], exactly: int) -> None:
    answers = list(admitted)
    expected = [index < exactly for index in range(len(answers))]
    dots = "".join("." if passed else "x" for passed in answers)
    assert answers == expected, f"{sum(answers)} of {len(answers)} requests passed, not the first {exactly}: {dots}"  # noqa: S101
