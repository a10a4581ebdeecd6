"""Log lines with structured fields for refusals and outages.

    from ratekit.telemetry import logs
    logs.install()

Refusals are sampled, so that an attack does not flood the log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import Any

from ratekit.core import events
from ratekit.core.errors import ConfigurationError
from ratekit.core.events import Decision, Outcome, Remove, StoreChange, StoreState
from ratekit.core.pseudonyms import pseudonyms
from ratekit.telemetry.availability import Availability

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
    """Log every outcome but `allowed`, and every outage of a store. Returns a function that ends it.

    per_second is the most lines a second for outcomes. name turns a subject into what is logged; by default its pseudonym.
    """
    log = RefusalLog(logger or logging.getLogger(LOGGER), per_second, name or pseudonyms())
    return events.all_of(events.on_decision(log.log_decision), events.on_store_change(log.log_change))


class RefusalLog:
    """Writer of the lines. Each line counts the lines that were left out before it."""

    def __init__(self, logger: logging.Logger, per_second: float, name: Callable[[str], str]) -> None:
        if not isinstance(per_second, int | float) or not 0 < per_second < math.inf:
            raise ConfigurationError(f"per_second {per_second!r} is not a number above 0")
        self._logger = logger
        self._per_second = per_second
        self._name = name
        self._availability = Availability()
        self._lock = Lock()
        self._tokens, self._filled_at = max(1.0, per_second), monotonic()
        self._left_out = 0

    def log_decision(self, decision: Decision) -> None:
        """Log a decision, unless its outcome is `allowed` or the lines of this second are used up."""
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
        """Log the begin and the end of an outage. Probes in between are not logged."""
        if not self._availability.begins_or_ends(change):
            return
        is_up = change.state is StoreState.UP
        state = StoreState.UP if is_up else StoreState.DOWN
        fields = {"ratekit_store": change.store, "ratekit_state": str(state), "ratekit_reason": change.reason}
        self._logger.log(logging.INFO if is_up else logging.WARNING, "store %s is %s", change.store, state, extra=fields)

    def _take(self) -> int | None:
        """Take a token for a line. Returns how many lines were left out since the last one, or None without a token."""
        with self._lock:
            now = monotonic()
            tokens = self._tokens + (now - self._filled_at) * self._per_second
            self._tokens, self._filled_at = min(tokens, max(1.0, self._per_second)), now
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
