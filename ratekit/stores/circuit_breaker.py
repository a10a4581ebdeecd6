"""The circuit breaker of one server: it decides when to stop sending requests to a server that does not answer. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from ratekit.core import clock
from ratekit.core.events import StoreState, notify_store_change
from ratekit.core.lazy_log import Logger
from ratekit.core.outages import Outage, StoreOutage

MOST_FAILURES = 3  # in a row, before the breaker opens
FIRST_PROBE, LONGEST_PROBE = 0.1, 0.4  # seconds between two probes while it is open
_log = Logger("ratekit.store")


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a store, the reason if it is not up, and since when (seconds since the epoch)."""

    state: StoreState
    reason: str | None
    since: float


class Breaker:
    """Opens after some failures in a row, and closes when a probe, or a request that was in flight, is answered.

    Only silence is a failure: a server that replies with an error is there. The methods are safe to call from several
    threads: a lost count delays the opening by one failure at most.
    """

    __slots__ = ("_failed_at", "_label", "_probing", "_since", "failures", "outage")

    def __init__(self, label: str) -> None:
        self._label = label
        self._since = clock.now()
        self._probing = False
        self._failed_at = float("-inf")
        self.failures = 0
        self.outage: Outage | None = None  # the reason, while the breaker is open

    @property
    def health(self) -> Health:
        """The state of the server."""
        if self.outage is None:
            return Health(StoreState.UP, None, self._since)
        return Health(StoreState.PROBING if self._probing else StoreState.DOWN, self.outage.reason, self._since)

    def check(self) -> None:
        """Raise StoreOutage if the breaker is open."""
        if self.outage is not None:
            raise StoreOutage(self.outage)

    def failed(self, outage: Outage, began: float) -> bool:
        """Count the failure of a request that began then. Returns whether that opened the breaker: then start to probe.

        Requests that were in flight together fail together: that is one failure.
        """
        if began < self._failed_at:
            return False
        self._failed_at = monotonic()
        self.failures += 1
        if self.outage is not None or self.failures < MOST_FAILURES:
            return False
        self.outage, self._since = outage._replace(is_in_doubt=False), clock.now()  # of calls that are not sent from now on
        log = _log.error if outage.is_fault else _log.warning
        log("store %s is down (%s): it is left alone, and looked at in the background", self._label, outage)
        notify_store_change(self._label, StoreState.DOWN, outage.reason)
        return True

    def probing(self) -> None:
        """Note that a probe has begun."""
        self._probing = True
        if self.outage is not None:
            notify_store_change(self._label, StoreState.PROBING, self.outage.reason)

    def probed(self, outage: Outage) -> None:
        """Note that a probe has failed."""
        self._probing = False
        if self.outage is not None:
            self.outage = outage._replace(is_in_doubt=False)
            notify_store_change(self._label, StoreState.DOWN, outage.reason)

    def succeeded(self) -> None:
        """Note that the server has answered, and close the breaker."""
        self.failures, self._probing = 0, False
        if self.outage is not None:
            seconds = clock.now() - self._since
            self.outage, self._since = None, clock.now()
            _log.warning("store %s is up again, after %.1f s", self._label, seconds)
            notify_store_change(self._label, StoreState.UP)


def worst_health(healths: Sequence[Health]) -> Health:
    """Return the health of a store of several servers: that of the server that has been down for longest."""
    down = [health for health in healths if health.state is not StoreState.UP]
    return min(down or healths or [Breaker("").health], key=lambda health: health.since)


def probe_pauses() -> list[float]:
    """Return the pauses between probes, in seconds; the last one repeats."""
    pauses = [FIRST_PROBE]
    while pauses[-1] < LONGEST_PROBE:
        pauses.append(min(pauses[-1] * 2, LONGEST_PROBE))
    return pauses
