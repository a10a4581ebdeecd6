"""What a check answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ratekit.core import headers
from ratekit.core.figures import (
    ADMITS,
    BANNED,
    FIGURES,
    OVERRIDDEN,
    REPEATED,
    SOFTLY,
    UNLIMITED,
    UNREADABLE,
    AnnotatedFigures,
)
from ratekit.core.limits import Limit


class Tier(NamedTuple):
    """What one limit of a policy says. Durations are seconds."""

    limit: Limit
    allowed: bool
    max_requests: int
    used: int
    remaining: int
    retry_after: float | None  # None: the cost can never fit
    reset_after: float
    overridden: bool  # an override's numbers apply
    softly: bool  # refused at random, between the soft threshold and the maximum
    unlimited: bool  # an override lifts this limit for the subject
    unreadable: bool  # an override has a field that makes no sense; the limit's own number applies
    policy: str | None = None  # the name of its policy, and its subject, where several were decided together
    subject: str | None = None
    banned: bool = False  # an override refuses everything until some time; retry_after is the time until then

    @property
    def name(self) -> str:
        """The name of its limit."""
        return self.limit.name


class RateLimitResult(NamedTuple):
    """The answer to a check. The figures are those of the binding limit: the one that refuses, else the one closest to
    exhaustion; `tiers` has those of every limit.

    Built from what the script answered, six figures a limit, and read lazily: most callers look at one or two.
    """

    limits: tuple[Limit, ...]
    figures: Sequence[int]
    decided_at: float  # seconds since the epoch
    degraded: str | None = None  # why the store could not decide, if it could not

    @property
    def allowed(self) -> bool:
        """Whether the request may pass: every limit that is no shadow admits it."""
        figures = self.figures
        if len(figures) == FIGURES:
            return figures[0] & ADMITS != 0 or self.limits[0].shadow
        for flags, limit in zip(figures[::FIGURES], self.limits, strict=False):
            if not flags & ADMITS and not limit.shadow:
                return False
        return True

    @property
    def is_over_limit(self) -> bool:
        """Whether the request is over the limit."""
        return not self.allowed

    @property
    def request_count(self) -> int:
        """What is used of the binding limit, this request included if it was admitted."""
        return self._binding_figure(2)

    @property
    def max_requests(self) -> int:
        """The binding limit's maximum, an override's if there is one."""
        return self._binding_figure(1) if self.figures else self.limits[0].capacity

    @property
    def remaining(self) -> int:
        """What is left of the binding limit; 0 when the request was refused."""
        if not self.figures:
            return self.limits[0].capacity
        return 0 if self.is_over_limit else self._binding_figure(3)

    @property
    def window(self) -> tuple[int, int, int]:
        """max_requests, remaining and ttl at once."""
        most, remaining, reset_us = self.window_us
        return most, remaining, -(-reset_us // 1_000_000)

    @property
    def window_us(self) -> tuple[int, int, int]:
        """max_requests and remaining at once, with reset_after in microseconds."""
        figures = self.figures
        if len(figures) != FIGURES:
            figures = figures[(at := self._binding() * FIGURES) : at + FIGURES]
        if not figures:
            return self.max_requests, self.remaining, 0
        return figures[1], figures[3] if self.allowed else 0, figures[5]

    @property
    def reset_after(self) -> float:
        """Seconds until the window ends, the bucket is full, or the oldest entry leaves."""
        return self._binding_figure(5) / 1_000_000

    @property
    def ttl(self) -> int:
        """`reset_after` in whole seconds, rounded up."""
        return -(-self._binding_figure(5) // 1_000_000)

    @property
    def reset_at(self) -> float:
        """`reset_after` as a time, in seconds since the epoch."""
        return self.decided_at + self.reset_after

    @property
    def retry_after(self) -> float | None:
        """Seconds until the request would pass; 0 if it did; None if its cost can never fit."""
        wait_us = 0 if self.allowed else self._binding_figure(4)
        return None if wait_us < 0 else wait_us / 1_000_000

    @property
    def binding(self) -> int:
        """The position of the binding limit in `limits`."""
        return self._binding()

    @property
    def limit(self) -> str:
        """The name of the binding limit."""
        return self.limits[self._binding()].name

    @property
    def overridden(self) -> bool:
        """Whether an override's numbers apply to the binding limit."""
        return self._binding_figure(0) & OVERRIDDEN != 0

    @property
    def unlimited(self) -> bool:
        """Whether overrides lift every limit that is no shadow."""
        return self._binding_figure(0) & UNLIMITED != 0

    @property
    def is_enforced(self) -> bool:
        """Whether any limit can refuse: a policy of shadows alone cannot."""
        return not self.limits[0].shadow or not all(limit.shadow for limit in self.limits)

    @property
    def is_shown(self) -> bool:
        """Whether headers show it: the store has decided, and there is a limit that can refuse and is not lifted."""
        return self.degraded is None and not self.unlimited and self.is_enforced

    @property
    def taken(self) -> int | Mapping[str, int] | None:
        """What `take` has spent, by unit where there are several, or what passes without the store; None for others."""
        return self.figures.taken if isinstance(self.figures, AnnotatedFigures) else None

    @property
    def repeated(self) -> bool:
        """Whether the same reservation was made, or settled, before: then nothing was spent now."""
        return bool(self.figures) and self.figures[0] & REPEATED != 0

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """What each limit says, in the policy's order; empty if the store could not decide."""
        return tuple(self._tier(index) for index in range(len(self.figures) // FIGURES))

    @property
    def remaining_by(self) -> dict[str, int]:
        """What is left of each limit that can refuse, by its name; empty if the store could not decide."""
        return {tier.name: tier.remaining for tier in self.tiers if not tier.limit.shadow and not tier.unlimited}

    @property
    def violated(self) -> tuple[str, ...]:
        """The names of the limits that refuse."""
        return tuple(tier.name for tier in self.tiers if not tier.allowed and not tier.limit.shadow)

    @property
    def would_violate(self) -> tuple[str, ...]:
        """The names of the shadow limits that would refuse, if they were enforced."""
        return tuple(tier.name for tier in self.tiers if not tier.allowed and tier.limit.shadow)

    def to_headers(self, style: str = headers.DEFAULT_STYLE) -> dict[str, str]:
        """Return the headers for an answer, by the name of a style; none if the store could not decide."""
        return headers.render(self, style)

    def describe(self) -> str:
        """Say in one sentence who may do what."""
        title = self.limits[self._binding()].title
        if self.allowed:
            return f"within limit {title!r}: {self.request_count} of {self.max_requests} used"
        wait = "it can never fit" if self.retry_after is None else f"retry after {self.retry_after:.3f} s"
        if self._binding_figure(0) & BANNED:
            until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(round(self.decided_at + (self.retry_after or 0))))
            return f"an override refuses everything until {until}, limit {title!r}: {wait}"
        return f"over limit {title!r}: {self.request_count} of {self.max_requests} used, {wait}"

    def _tier(self, index: int) -> Tier:
        names = self.figures.names if isinstance(self.figures, AnnotatedFigures) else ()
        policy, subject = names[index] if names else (None, None)
        flags, most, used, remaining, retry_us, reset_us = self.figures[index * FIGURES : (index + 1) * FIGURES]
        return Tier(
            limit=self.limits[index],
            allowed=flags & ADMITS != 0,
            max_requests=most,
            used=used,
            remaining=remaining,
            retry_after=None if retry_us < 0 else retry_us / 1_000_000,
            reset_after=reset_us / 1_000_000,
            overridden=flags & OVERRIDDEN != 0,
            softly=flags & SOFTLY != 0,
            unlimited=flags & UNLIMITED != 0,
            unreadable=flags & UNREADABLE != 0,
            policy=policy,
            subject=subject,
            banned=flags & BANNED != 0,
        )

    def _binding_figure(self, offset: int) -> int:
        figures = self.figures
        if len(figures) == FIGURES:
            return figures[offset]
        return figures[self._binding() * FIGURES + offset] if figures else 0

    def _binding(self) -> int:
        """Return the position of the binding limit: refusals first, shadows last, else by what is left of the maximum."""
        if len(self.figures) <= FIGURES:
            return 0
        return min(range(len(self.limits)), key=self._distance)

    def _distance(self, index: int) -> tuple[float, ...]:
        flags, most, _, remaining, retry_us, reset_us = self.figures[index * FIGURES : (index + 1) * FIGURES]
        counts = not self.limits[index].shadow
        if counts and not flags & ADMITS:
            return (0, -retry_us if retry_us >= 0 else float("-inf"))
        kind = 3 if not counts else 2 if flags & UNLIMITED else 1
        return (kind, remaining / most if most else 0, -reset_us)
