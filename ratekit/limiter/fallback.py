"""What a limiter does while its store cannot tell: let pass, refuse, or count a share by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.core.lazy_log import Logger
from ratekit.core.outages import OnOutage, Outage, as_on_outage
from ratekit.core.protocol import Call

if TYPE_CHECKING:
    from ratekit.limiter.local_share import LocalFallback

INSTANCES_VARIABLE = "RATE_LIMIT_INSTANCES"
_MOST_DEBTS = 50  # in one call of the store
_LOG_SECONDS = 60.0  # between two lines about the same reason
_log = Logger("ratekit.limiter")


class Fallback:
    """Answers in place of a store that is away, as on_outage says; afterwards settles what was admitted without it."""

    def __init__(self, on_outage: str, instances: int | None) -> None:
        self.on_outage = as_on_outage(on_outage)
        self.local: LocalFallback | None = None
        if self.on_outage is OnOutage.LOCAL:
            from ratekit.limiter.local_share import LocalFallback  # few want it, and it takes its time to load

            self.local = LocalFallback(checked_instances(instances))
        self._logged: dict[str, float] = {}

    def answer(self, call: Call, outage: Outage) -> Sequence[int]:
        """Return the figures for a call that the store could not decide, none if it passes; raise if it is refused."""
        self._log_once(outage)
        if self.on_outage is OnOutage.CLOSED:
            raise RateLimitUnavailable(str(outage)) from None  # the sentence says what the client raised
        return self.local.run(call, is_in_doubt=outage.is_in_doubt) if self.local is not None else ()

    def debts(self) -> Iterator[Sequence[Call]]:
        """Return what is to be charged to the store for what was admitted without it, a batch at a time, once."""
        debts = self.local.debts() if self.local is not None else []
        for start in range(0, len(debts), _MOST_DEBTS):
            yield debts[start : start + _MOST_DEBTS]

    def lose(self, outage: Outage) -> None:
        """Take note that a debt could not be charged. It is not tried again: it may have been charged."""
        _log.warning("what was admitted while the store was away cannot be charged to it (%s)", outage)

    def _log_once(self, outage: Outage) -> None:
        """Say why, once in a while: under attack the log must not become a flood of its own."""
        now = monotonic()
        if now - self._logged.get(outage.reason, float("-inf")) < _LOG_SECONDS:
            return
        self._logged[outage.reason] = now
        log = _log.error if outage.is_fault else _log.warning
        log("the store cannot decide (%s); on_outage is %s", outage, self.on_outage)


def checked_instances(instances: int | None) -> int:
    """Return by how many processes a limit is shared: RATE_LIMIT_INSTANCES by default."""
    value = os.environ.get(INSTANCES_VARIABLE, "1") if instances is None else str(instances)
    if not value.isdecimal() or int(value) < 1:
        raise ConfigurationError(f"instances {value!r} is not a whole number above 0")
    return int(value)
