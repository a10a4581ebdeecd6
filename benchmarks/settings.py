"""What a run is told."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contest.plan import FULL, SHORT, Plan


@dataclass(frozen=True, slots=True)
class Settings:
    """How many rounds are measured, with which server, and the size of the contest with the peers."""

    rounds: int
    server: str
    plan: Plan = FULL

    @property
    def is_short(self) -> bool:
        """Whether this is a run for development."""
        return self.plan.name == SHORT.name
