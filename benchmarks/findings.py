"""A saved document, read for tables and plots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from benchmarks.contest.contestants import Colour
from benchmarks.contest.loads import Load
from benchmarks.contest.plan import CONCURRENCY
from benchmarks.contest.standings import Standing, of, rate

AXES = {"concurrency": "checks at once", "tiers": "limits of the policy", "subjects": "subjects"}


@dataclass(frozen=True, slots=True)
class Findings:
    """The contest of a document."""

    standings: list[Standing]
    memory: dict[tuple[str, str], float | None]

    @classmethod
    def of(cls, document: dict[str, Any]) -> Findings:
        """Read a document."""
        memory = {(entry["name"], entry["colour"]): entry["bytes"] for entry in document["memory"]}
        return cls([Standing.from_document(kept) for kept in document["standings"]], memory)

    def ranking(self, colour: Colour, *, refused: bool = False) -> list[Standing]:
        """Return the standings at the concurrency that all are compared at, the fastest first and the lost last."""
        standings = of(self.standings, colour, Load(CONCURRENCY[colour], refused=refused))
        return sorted(standings, key=lambda one: -one.median(rate) if one.fault is None else 1)

    def growth(self, colour: Colour, axis: str) -> dict[str, dict[int, Standing]]:
        """Return for each contestant its standings along an axis, everything else as it is compared."""
        base = Load(CONCURRENCY[colour])
        found: dict[str, dict[int, Standing]] = {}
        for one in self.standings:
            at = getattr(one.load, axis)
            if one.contestant.colour is colour and one.load == replace(base, **{axis: at}):
                found.setdefault(one.contestant.name, {})[at] = one
        return {name: dict(sorted(points.items())) for name, points in found.items()}

    def bytes_of(self, standing: Standing) -> float | None:
        """Return the memory that a subject of a contestant takes in the server."""
        return self.memory.get((standing.contestant.name, standing.contestant.colour))
