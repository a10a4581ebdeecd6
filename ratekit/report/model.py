"""The report of one limit: who was refused, who is near it, and which maximum would affect how many."""

from __future__ import annotations

from dataclasses import dataclass

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import REQUESTS

NEAR = 0.8  # of the maximum


@dataclass(frozen=True, slots=True)
class SubjectUse:
    """The use of a limit by one subject. Times are seconds since the epoch; None is unknown."""

    subject: str
    refused: int  # requests that were refused, or would have been: at least so many
    refused_at_most: int  # more than `refused` if the subject replaced another one in a full list
    peak: int | None  # the most that it requested in one window
    first: float | None
    last: float | None


@dataclass(frozen=True, slots=True)
class Affected:
    """The number of subjects that a limit affects."""

    subjects: int
    share: float  # of all subjects, whose number may be an estimate
    is_exact: bool  # False: estimated from a sample


@dataclass(frozen=True, slots=True)
class LimitReport:
    """The report of one limit on one endpoint."""

    endpoint: str
    limit: str
    policy: str
    mode: str  # the last one: on, monitor or shadow
    algorithm: str
    max_requests: int
    window: float
    allowed: int
    denied: int
    would_deny: int
    degraded: int
    first: float | None
    last: float | None
    subjects: int  # how many there were; an estimate if there were more than the lists hold
    refused: tuple[SubjectUse, ...]  # by the number of refusals, the most first
    highest: tuple[SubjectUse, ...]  # by peak, the highest first
    sample: tuple[int, ...]  # the peaks of a random sample of subjects, the highest first
    is_complete: bool  # every subject is in `highest`
    unit: str = REQUESTS  # what max_requests and peaks count; refusals are requests
    calendar: str = ""  # the periods that are its windows, such as "month Europe/Berlin"; window is then the longest of them
    is_reserved: bool = False  # peaks have what requests reserve (estimate=, count=), also what they return when they end

    @property
    def requests(self) -> int:
        """The number of requests that were decided."""
        return self.allowed + self.denied + self.would_deny + self.degraded

    @property
    def near(self) -> tuple[SubjectUse, ...]:
        """The subjects whose peak is between 80 % and 100 % of the maximum."""
        return tuple(use for use in self.highest if NEAR * self.max_requests <= (use.peak or 0) <= self.max_requests)

    def affected_by(self, max_requests: int | None = None) -> Affected:
        """Return how many subjects requested more than a maximum in some window. By default it is the limit's own."""
        most = self.max_requests if max_requests is None else max_requests
        above = sum((use.peak or 0) > most for use in self.highest)
        if self.is_complete or above < len(self.highest):
            return Affected(above, above / self.subjects if self.subjects else 0.0, is_exact=True)
        share = sum(peak > most for peak in self.sample) / len(self.sample)
        return Affected(max(above, round(share * self.subjects)), share, is_exact=False)

    def limit_for(self, share: float) -> int:
        """Return the smallest maximum that affects at most this share of the subjects; 0.01 is one in a hundred."""
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
            raise ConfigurationError(f"share {share!r} is not a number between 0 and 1")
        spared = int(share * self.subjects)
        if spared < len(self.highest):
            return max(1, self.highest[spared].peak or 0)
        if self.is_complete or not self.sample:
            return 1
        return max(1, self.sample[min(int(share * len(self.sample)), len(self.sample) - 1)])
