"""What a run is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """How many rounds are measured, and with which server."""

    rounds: int
    server: str
