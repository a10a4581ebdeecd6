"""What a contest says about ratekit: its rate over that of another, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.contest.contestants import Colour
from benchmarks.contest.loads import Load
from benchmarks.contest.plan import CONCURRENCY
from benchmarks.contest.standings import Standing, best_peer, named, of, rate
from benchmarks.rounds import Gap, Row, Sense

SECTION_OF = {Colour.ASYNC: "peers, async", Colour.THREADS: "peers, threads"}
_OURS, _CACHED, _BARE = "ratekit", "ratekit, refusal cache", "bare INCR"


@dataclass(frozen=True, slots=True)
class Question:
    """How many times faster ratekit is under a load than another under the same, or a lighter one."""

    name: str
    load: Load
    target: float | None = None
    ours: str = _OURS
    other: str | None = None  # the best peer, unless named
    other_load: Load | None = None

    def answer(self, standings: Sequence[Standing], colour: Colour) -> Row | Gap:
        """Compare, or say why that cannot be."""
        ours = named(of(standings, colour, self.load), self.ours)
        others = of(standings, colour, self.other_load or self.load)
        other = best_peer(others) if self.other is None else named(others, self.other)
        section, name = (
            SECTION_OF[colour],
            self.name if other is None else f"{self.name}: {self.ours} / {other.contestant.name}",
        )
        fault = f"nothing was measured of {self.other or 'any peer'}" if other is None else other.fault
        fault = f"{self.ours} was not asked" if ours is None else ours.fault or fault
        if ours is None or other is None or fault:
            return Gap(section, name, fault or "", self.target, Sense.AT_LEAST)
        case, reference = [rate(block) for block in ours.blocks], [rate(block) for block in other.blocks]
        ratios = [one / two for one, two in zip(case, reference, strict=True)]
        return Row(section, name, self.target, case, reference, ratios, Sense.AT_LEAST)


def verdicts(standings: Sequence[Standing], colour: Colour) -> list[Row | Gap]:
    """Answer the questions of a colour."""
    return [question.answer(standings, colour) for question in _QUESTIONS[colour]]


def _questions(colour: Colour, target: float, tiers_target: float | None, refused_target: float | None) -> list[Question]:
    most = CONCURRENCY[colour]
    one, four, refused = Load(most), Load(most, tiers=4), Load(most, refused=True)
    return [
        Question(f"{most} at once", one, target),
        Question(f"{most} at once, beside no limiter", one, other=_BARE),
        Question("four tiers, beside one", four, tiers_target, other_load=one),
        Question("four tiers, beside four", four),
        Question("refused", refused),
        Question("refused, by the refusal cache", refused, refused_target, ours=_CACHED),
    ]


_QUESTIONS = {
    Colour.ASYNC: _questions(Colour.ASYNC, 5, 3, 20),
    Colour.THREADS: [*_questions(Colour.THREADS, 2, None, None), Question("64 at once", Load(64), 1)],
}
