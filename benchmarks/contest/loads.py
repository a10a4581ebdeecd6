"""What contestants are asked to do, and what is measured of it. Both travel between processes as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle

Limit = tuple[int, int]  # so many requests in so many seconds
Answer = tuple[bool, float | None, float | None]  # allowed, remaining, reset
Check = Callable[[str], Answer]
AsyncCheck = Callable[[str], Awaitable[Answer]]

# No load reaches these. More in longer windows, at a lower rate: one contestant takes nothing else.
_TIERS: tuple[Limit, ...] = ((10**8, 3600), (10**7, 60), (10**6, 1), (10**9, 86400))
MOST_CONNECTIONS = 64
_REFUSING: Limit = (1, 3600)
_LISTED = 10_000  # up to so many names are kept in a list
_STRIDE = 7919  # a prime: many subjects are visited in an order that no cache likes


@dataclass(frozen=True, slots=True)
class Load:
    """So many checks at the same time, of policies of so many limits, by so many subjects."""

    concurrency: int = 64
    tiers: int = 1
    subjects: int = 100
    refused: bool = False

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of the policy, the longest window last."""
        return (_REFUSING,) if self.refused else tuple(sorted(_TIERS[: self.tiers], key=lambda limit: limit[1]))

    @property
    def is_crowd(self) -> bool:
        """Whether more check at once than a contestant has connections."""
        return self.concurrency > MOST_CONNECTIONS

    @property
    def text(self) -> str:
        """Say what it is."""
        words = f"concurrency {self.concurrency}, tiers {self.tiers}, subjects {self.subjects}"
        return f"{words}, refused" if self.refused else words

    def names(self) -> Iterator[str]:
        """Name the subjects in turn, for ever. Threads may share the iterator."""
        if self.subjects <= _LISTED:
            return cycle([name_of(number) for number in range(self.subjects)])
        return map(self._name, count(0, _STRIDE))  # not a generator: threads cannot share one

    def _name(self, number: int) -> str:
        return name_of(number % self.subjects)


def name_of(number: int) -> str:
    """Name a subject."""
    return f"subject-{number:07d}"


@dataclass(frozen=True, slots=True)
class Block:
    """What was measured in a short time of one load."""

    checks: int
    admitted: int
    seconds: float
    client_seconds: float  # of the processor, by the process of the contestant
    p50: float
    p95: float
    p99: float
    server_seconds: float = 0.0  # of the processor, by the server
