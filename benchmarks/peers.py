"""ratekit beside its peers, all on one server: how fast, at what cost, and how each grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks import progress
from benchmarks.contest.contestants import Colour
from benchmarks.contest.loads import Load
from benchmarks.contest.plan import CONCURRENCY
from benchmarks.contest.process import Lost
from benchmarks.contest.referee import Seat, contend, seated
from benchmarks.contest.standings import Standing
from benchmarks.contest.verdicts import SECTION_OF, verdicts
from benchmarks.rounds import Gap, Row
from benchmarks.server import running
from benchmarks.settings import Settings


@dataclass(frozen=True, slots=True)
class Contest:
    """All that was found: the rows that have a target, every standing, and the memory that a subject takes."""

    rows: list[Row | Gap] = field(default_factory=list)
    standings: list[Standing] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)


def compare_peers(settings: Settings) -> Contest:
    """Let the contestants of both colours contend."""
    contest, plan = Contest(), settings.plan
    with running(settings.server) as url:
        for colour in Colour:
            with seated(url, colour) as seats:
                standings = contend(seats, plan.groups(colour), plan, SECTION_OF[colour])
                contest.standings.extend(standings)
                contest.rows.extend(verdicts(standings, colour))
                contest.memory.extend(_memory(seats, colour, plan.remembered))
    return contest


def _memory(seats: list[Seat], colour: Colour, subjects: int) -> list[dict[str, Any]]:
    """Measure everyone who counts in ordinary loads."""
    found = []
    load = Load(CONCURRENCY[colour], subjects=subjects)
    for number, seat in enumerate(seats):
        progress.show(SECTION_OF[colour], "memory of a subject", number, len(seats))
        if not seat.contestant.only_refused:
            found.append({"name": seat.contestant.name, "colour": str(colour), **_bytes(seat, load)})
    return found


def _bytes(seat: Seat, load: Load) -> dict[str, Any]:
    try:
        return {"bytes": seat.bytes_of_a_subject(load), "fault": None}
    except Lost as error:
        return {"bytes": None, "fault": str(error)}
