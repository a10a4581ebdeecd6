"""When to stop asking a store that does not answer: a circuit breaker, with no clock and no I/O of its own."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from ratekit import clock
from ratekit.events import StoreState, tell_store_change
from ratekit.loggers import Logger
from ratekit.outage import Outage, StoreOutage

MOST_FAILURES = 3  # in a row, before the store is left alone
FIRST_PROBE, LONGEST_PROBE = 0.1, 0.4  # seconds between two looks at a store that is down
_log = Logger("ratekit.store")


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of a store: its state, why if it is not up, and since when (seconds since the epoch)."""

    state: StoreState
    reason: str | None
    since: float


class Breaker:
    """Opens after some failures in a row, and closes when a probe, or a call that was under way, is answered.

    Only silence counts: a server that answers with an error answers. The methods are safe to call from several threads:
    a lost count delays the opening by one failure at most.
    """

    __slots__ = ("_failed_at", "_label", "_probing", "_since", "failures", "outage")

    def __init__(self, label: str) -> None:
        self._label = label
        self._since = clock.now()
        self._probing = False
        self._failed_at = float("-inf")
        self.failures = 0
        self.outage: Outage | None = None  # while it is open

    @property
    def health(self) -> Health:
        """What is known of the store."""
        if self.outage is None:
            return Health(StoreState.UP, None, self._since)
        return Health(StoreState.PROBING if self._probing else StoreState.DOWN, self.outage.reason, self._since)

    def check(self) -> None:
        """Raise StoreOutage if the store is left alone."""
        if self.outage is not None:
            raise StoreOutage(self.outage)

    def failed(self, outage: Outage, began: float) -> bool:
        """Count a failure of a call that began then; whether that opened the breaker, so that someone has to probe.

        Calls that were under way together fail together: that is one failure.
        """
        if began < self._failed_at:
            return False
        self._failed_at = monotonic()
        self.failures += 1
        if self.outage is not None or self.failures < MOST_FAILURES:
            return False
        self.outage, self._since = outage, clock.now()
        log = _log.error if outage.is_fault else _log.warning
        log("store %s is down (%s): it is left alone, and looked at in the background", self._label, outage)
        tell_store_change(self._label, StoreState.DOWN, outage.reason)
        return True

    def probing(self) -> None:
        """Note that a probe is under way."""
        self._probing = True
        if self.outage is not None:
            tell_store_change(self._label, StoreState.PROBING, self.outage.reason)

    def probed(self, outage: Outage) -> None:
        """Note that a probe has failed."""
        self._probing = False
        if self.outage is not None:
            self.outage = outage
            tell_store_change(self._label, StoreState.DOWN, outage.reason)

    def succeeded(self) -> None:
        """Count an answer."""
        self.failures, self._probing = 0, False
        if self.outage is not None:
            seconds = clock.now() - self._since
            self.outage, self._since = None, clock.now()
            _log.warning("store %s is up again, after %.1f s", self._label, seconds)
            tell_store_change(self._label, StoreState.UP)


def probe_pauses() -> list[float]:
    """Return the first pauses between probes; the last one repeats."""
    pauses = [FIRST_PROBE]
    while pauses[-1] < LONGEST_PROBE:
        pauses.append(min(pauses[-1] * 2, LONGEST_PROBE))
    return pauses
