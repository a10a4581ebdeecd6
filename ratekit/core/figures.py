"""The figures that the script answers for each limit: what each of them is, and what the flags mean."""

from __future__ import annotations

FIGURES = 6  # flags, max_requests, used, remaining, retry_us, reset_us
ADMITS, OVERRIDDEN, SOFTLY, UNLIMITED, UNREADABLE, STALE, REPEATED = 1, 2, 4, 8, 16, 32, 64
