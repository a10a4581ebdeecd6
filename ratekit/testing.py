"""Helps to test what uses ratekit: a clock that tests move, and an assertion about how many requests pass."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ratekit import clock
from ratekit.errors import ConfigurationError


class VirtualClock:
    """A clock that stands still until it is moved; while it is in use, every limiter of the process decides by it."""

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
        """Let time pass; a negative number sets the clock back."""
        self.set((self._now_us + round(seconds * 1_000_000)) / 1_000_000)

    def set(self, now: float) -> None:
        """Set the time, in seconds since the epoch."""
        if now <= 0:
            raise ConfigurationError(f"now {now!r} is not a time after the epoch")
        self._now_us = round(now * 1_000_000)

    def install(self) -> None:
        """Make every limiter of the process decide by this clock."""
        clock.source = lambda: self._now_us

    def uninstall(self) -> None:
        """Go back to real clocks."""
        clock.source = None


def is_admitted(answer: Any) -> bool:
    """Whether an answer let a request pass: a result of ratekit, a bool, or a response whose status is not 429."""
    if isinstance(answer, bool):
        return answer
    if hasattr(answer, "is_over_limit"):
        return not answer.is_over_limit
    status = getattr(answer, "status_code", None)
    if status is None:
        raise ConfigurationError(f"answer {answer!r} is neither a result, nor a bool, nor a response with a status_code")
    return bool(status != 429)


def assert_admits(send: Callable[[], Any], exactly: int, of: int | None = None) -> None:
    """Send `of` requests, one more than `exactly` by default, and assert that the first `exactly` pass and no other."""
    _assert_first([is_admitted(send()) for _ in range(of or exactly + 1)], exactly)


async def assert_admits_async(send: Callable[[], Awaitable[Any]], exactly: int, of: int | None = None) -> None:
    """Do the same with requests that are awaited, one after the other."""
    answers = []
    for _ in range(of or exactly + 1):
        answer = send()
        answers.append(is_admitted(await answer if inspect.isawaitable(answer) else answer))
    _assert_first(answers, exactly)


def _assert_first(admitted: Iterable[bool], exactly: int) -> None:
    answers = list(admitted)
    expected = [index < exactly for index in range(len(answers))]
    shown = "".join("." if passed else "x" for passed in answers)
    assert answers == expected, f"{sum(answers)} of {len(answers)} requests passed, not the first {exactly}: {shown}"  # noqa: S101
