"""Refusals in the log, with structured fields: sampled, since a limiter under attack must not become a flood of lines.

from ratekit import logs
logs.install()
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Any

from ratekit import events
from ratekit.errors import ConfigurationError
from ratekit.events import Decision, Outcome, Remove, StoreChange, StoreState
from ratekit.subjects import pseudonyms

LOGGER = "ratekit.decisions"
_LEVELS = {
    Outcome.DENIED: logging.INFO,
    Outcome.WOULD_DENY: logging.INFO,
    Outcome.DEGRADED: logging.WARNING,
    Outcome.ERROR: logging.WARNING,
}


def install(
    logger: logging.Logger | None = None,
    *,
    per_second: float = 10,
    name: Callable[[str], str] | None = None,
) -> Remove:
    """Log what is refused, would be, or passes without the store, at most so many lines a second; return what ends it.

    name says what stands for a subject; its pseudonym by default.
    """
    lines = RefusalLog(logger or logging.getLogger(LOGGER), per_second, name or pseudonyms())
    return events.all_of(events.on_decision(lines.log_decision), events.on_store_change(lines.log_change))


class RefusalLog:
    """Writes lines, and says in the next one how many it has left out."""

    def __init__(self, logger: logging.Logger, per_second: float, name: Callable[[str], str]) -> None:
        if not isinstance(per_second, int | float) or not 0 < per_second < math.inf:
            raise ConfigurationError(f"per_second {per_second!r} is not a number above 0")
        self._logger = logger
        self._per_second = per_second
        self._name = name
        self._lock = Lock()
        self._tokens, self._filled_at = max(1.0, per_second), monotonic()
        self._left_out = 0

    def log_decision(self, decision: Decision) -> None:
        """Log a decision that is no plain admission, if there is room for a line."""
        outcome = decision.outcome
        if outcome is Outcome.ALLOWED or not self._logger.isEnabledFor(_LEVELS[outcome]):
            return
        left_out = self._take()
        if left_out is None:
            return
        fields = _fields(decision) | {"ratekit_subject": self._name(decision.subject), "ratekit_left_out": left_out}
        self._logger.log(
            _LEVELS[outcome], "%s: %s on %s", outcome, fields["ratekit_subject"], decision.endpoint, extra=fields
        )

    def log_change(self, change: StoreChange) -> None:
        """Log that a store is asked no more, or again: always, as it is rare."""
        level = logging.INFO if change.state is StoreState.UP else logging.WARNING
        fields = {"ratekit_store": change.store, "ratekit_state": str(change.state), "ratekit_reason": change.reason}
        self._logger.log(level, "store %s is %s", change.store, change.state, extra=fields)

    def _take(self) -> int | None:
        """Take room for a line: how many were left out since the last one, None if there is no room."""
        with self._lock:
            now = monotonic()
            room = self._tokens + (now - self._filled_at) * self._per_second
            self._tokens, self._filled_at = min(room, max(1.0, self._per_second)), now
            if self._tokens < 1:
                self._left_out += 1
                return None
            self._tokens -= 1
            left_out, self._left_out = self._left_out, 0
            return left_out


def _fields(decision: Decision) -> dict[str, Any]:
    result = decision.result
    return {
        "ratekit_endpoint": decision.endpoint,
        "ratekit_policy": decision.policy,
        "ratekit_outcome": str(decision.outcome),
        "ratekit_mode": str(decision.mode),
        "ratekit_cost": decision.cost,
        "ratekit_violated": list(decision.refused_by),
        "ratekit_limit": None if result is None else result.max_requests,
        "ratekit_used": None if result is None else result.request_count,
        "ratekit_retry_after": None if result is None else result.retry_after,
        "ratekit_degraded": decision.degraded,
        "ratekit_seconds": decision.seconds,
    }
