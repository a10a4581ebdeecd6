"""What the report says of a limit: who was refused, who is near it, and which limit would affect how many."""

from __future__ import annotations

from dataclasses import dataclass

from ratekit.errors import ConfigurationError

NEAR = 0.8  # of the maximum


@dataclass(frozen=True, slots=True)
class SubjectUse:
    """What one subject has done. Times are seconds since the epoch; None where nothing is known."""

    subject: str
    refused: int  # requests that were refused or would be, at least
    refused_at_most: int  # more than `refused` if the subject came into a list that was full
    peak: int | None  # the most that it asked of a window
    first: float | None
    last: float | None


@dataclass(frozen=True, slots=True)
class Affected:
    """How many subjects a limit affects."""

    subjects: int
    share: float  # of all subjects that were seen, whose number may be an estimate
    is_exact: bool  # they were counted; False: estimated from a sample


@dataclass(frozen=True, slots=True)
class LimitReport:
    """One limit on one endpoint."""

    endpoint: str
    limit: str
    policy: str
    mode: str  # on, monitor or shadow, as it was last
    algorithm: str
    max_requests: int
    window: float
    allowed: int
    denied: int
    would_deny: int
    degraded: int
    first: float | None
    last: float | None
    subjects: int  # how many were seen, estimated beyond the capacity of the lists
    refused: tuple[SubjectUse, ...]  # those with the most refusals first
    highest: tuple[SubjectUse, ...]  # those with the highest peaks first
    sample: tuple[int, ...]  # peaks of subjects that were chosen without regard to them, the highest first
    is_complete: bool  # every subject is in `highest`

    @property
    def requests(self) -> int:
        """How many requests were decided."""
        return self.allowed + self.denied + self.would_deny + self.degraded

    @property
    def near(self) -> tuple[SubjectUse, ...]:
        """Those who have used most of a window, and never more than all of it."""
        return tuple(use for use in self.highest if NEAR * self.max_requests <= (use.peak or 0) <= self.max_requests)

    def affected_by(self, max_requests: int | None = None) -> Affected:
        """Say how many subjects asked for more than a maximum in some window: this limit's, unless another is given."""
        most = self.max_requests if max_requests is None else max_requests
        above = sum((use.peak or 0) > most for use in self.highest)
        if self.is_complete or above < len(self.highest):
            return Affected(above, above / self.subjects if self.subjects else 0.0, is_exact=True)
        share = sum(peak > most for peak in self.sample) / len(self.sample)
        return Affected(max(above, round(share * self.subjects)), share, is_exact=False)

    def limit_for(self, share: float) -> int:
        """Return the smallest maximum that affects at most this share of the subjects, 0.01 being one in a hundred."""
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
            raise ConfigurationError(f"share {share!r} is not a number of 0 to 1")
        spared = int(share * self.subjects)
        if spared < len(self.highest):
            return max(1, self.highest[spared].peak or 0)
        if self.is_complete or not self.sample:
            return 1
        return max(1, self.sample[min(int(share * len(self.sample)), len(self.sample) - 1)])
