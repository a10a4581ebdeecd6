"""The time to decide by. Tests move it; otherwise the store's own clock decides."""

from __future__ import annotations

import time
from collections.abc import Callable

# Gives the time in microseconds since the epoch; None, but in tests, lets real clocks decide.
source: Callable[[], int] | None = None


def override_us() -> int:
    """Return the time that a test has set, in microseconds; 0 when the store's own clock decides."""
    return source() if source is not None else 0


def now_us() -> int:
    """Return the time in microseconds since the epoch, by this process or as a test has set it."""
    return source() if source is not None else time.time_ns() // 1000


def now() -> float:
    """Return the time in seconds since the epoch, by this process or as a test has set it."""
    return source() / 1_000_000 if source is not None else time.time()


def steady() -> float:
    """Return seconds that only go forward, to measure durations by; or the time that a test has set."""
    return source() / 1_000_000 if source is not None else time.monotonic()
