"""What a contest found, and what can be read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from statistics import median, quantiles
from typing import Any

from benchmarks.contest.contestants import Colour, Contestant, Role
from benchmarks.contest.loads import Block, Load

_MOST_WRONG = 0.01  # a share of answers: a window may end while it is measured

PERCENTILES = ("p50", "p95", "p99")

Measure = Callable[[Block], float]


@dataclass(slots=True)
class Standing:
    """One contestant under one load: a block for each round, or why there is none."""

    contestant: Contestant
    load: Load
    blocks: list[Block] = field(default_factory=list)
    lost: str | None = None

    def median(self, measure: Measure) -> float:
        """Return the median over the rounds."""
        return median(map(measure, self.blocks))

    def quartiles(self, measure: Measure) -> tuple[float, float]:
        """Return the lower and the upper quartile over the rounds."""
        low, _, high = quantiles(map(measure, self.blocks), n=4, method="inclusive")
        return low, high

    @property
    def fault(self) -> str | None:
        """Why its figures do not count: it was lost, or it did not answer as the limits say."""
        if self.lost is not None or not self.blocks:
            return self.lost or "it was not asked"
        admitted, checks = sum(block.admitted for block in self.blocks), sum(block.checks for block in self.blocks)
        wrong = admitted if self.load.refused else checks - admitted
        if self.contestant.role is Role.BARE or wrong <= checks * _MOST_WRONG:
            return None
        return f"{wrong / checks:.0%} {'admitted over' if self.load.refused else 'refused below'} the limit"

    def document(self) -> dict[str, Any]:
        """Return it as it is kept."""
        who = self.contestant
        rounds = [asdict(block) for block in self.blocks]
        about = {"name": who.name, "colour": who.colour, "role": who.role, "package": who.package, "version": who.version}
        return {**about, "load": asdict(self.load), "fault": self.fault, "lost": self.lost, "rounds": rounds}

    @classmethod
    def from_document(cls, kept: dict[str, Any]) -> Standing:
        """Read it again."""
        contestant = Contestant.named(kept["name"], Colour(kept["colour"]))
        return cls(contestant, Load(**kept["load"]), [Block(**block) for block in kept["rounds"]], kept["lost"])


def rate(block: Block) -> float:
    """Return the checks a second."""
    return block.checks / block.seconds


def client_us(block: Block) -> float:
    """Return the processor time of the client for a check, in microseconds."""
    return block.client_seconds / block.checks * 1e6


def server_us(block: Block) -> float:
    """Return the processor time of the server for a check, in microseconds."""
    return block.server_seconds / block.checks * 1e6


def percentile(name: str) -> Measure:
    """Return the latency of a check, in seconds, at one of the percentiles."""
    return attrgetter(name)


def of(standings: Iterable[Standing], colour: Colour, load: Load) -> list[Standing]:
    """Return the standings of one load."""
    return [one for one in standings if one.contestant.colour is colour and one.load == load]


def named(standings: Iterable[Standing], name: str) -> Standing | None:
    """Return the standing of a contestant."""
    return next((one for one in standings if one.contestant.name == name), None)


def best_peer(standings: Iterable[Standing]) -> Standing | None:
    """Return the fastest of the peers that answered as they should."""
    peers = [one for one in standings if one.contestant.role is Role.PEER and one.fault is None]
    return max(peers, key=lambda one: one.median(rate), default=None)
