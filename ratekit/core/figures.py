"""The figures that the script answers for each limit: what each of them is, and what the flags mean."""

from __future__ import annotations

from collections.abc import Mapping

FIGURES = 6  # flags, max_requests, used, remaining, retry_us, reset_us
ADMITS, OVERRIDDEN, SOFTLY, UNLIMITED, UNREADABLE, STALE, REPEATED, BANNED = 1, 2, 4, 8, 16, 32, 64, 128


class AnnotatedFigures(tuple[int, ...]):
    """Figures that say more: what was taken, or whose each limit is."""

    taken: int | Mapping[str, int] | None = None  # by unit where there are several
    names: tuple[tuple[str, str], ...] = ()  # the policy and the subject of each limit
