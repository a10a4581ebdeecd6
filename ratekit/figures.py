"""The figures that the script answers for each limit, and what they say by themselves."""

from __future__ import annotations

from collections.abc import Sequence

FIGURES = 6  # flags, max_requests, used, remaining, retry_us, reset_us
ADMITS, OVERRIDDEN, SOFTLY, UNLIMITED, UNREADABLE = 1, 2, 4, 8, 16
_COUNTED = ADMITS | UNLIMITED


def plain_window(figures: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the maximum, what remains, and in how many seconds, rounded up, it is there again, of one limit that admits.

    None if it does not, if it is lifted, or if there is not just one of them: then there is more to look at.
    """
    if len(figures) != FIGURES:
        return None
    flags, most, _, remaining, _, reset_us = figures
    return (most, remaining, (reset_us + 999_999) // 1_000_000) if flags & _COUNTED == ADMITS else None
