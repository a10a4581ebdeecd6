"""Runs the contest: all contestants of a colour in turns, load by load and round by round, on one server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import redis

from benchmarks import progress
from benchmarks.contest.contestants import CONTESTANTS, Colour, Contestant
from benchmarks.contest.crowd import fill
from benchmarks.contest.loads import Block, Load
from benchmarks.contest.plan import Plan
from benchmarks.contest.process import Lost, Worker
from benchmarks.contest.standings import Standing

_CROWD = 10_000  # more subjects than these are put into the server at once, not by checks


@dataclass(frozen=True, slots=True)
class Seat:
    """A contestant, its process, and a client to its database."""

    contestant: Contestant
    worker: Worker
    client: Any

    def take(self, load: Load, seconds: float) -> Block:
        """Measure a block, and what it took of the server. Raises Lost."""
        before = self._server_seconds()
        block = self.worker.run(load, seconds)
        return replace(block, server_seconds=self._server_seconds() - before)

    def warm(self, load: Load, seconds: float) -> None:
        """Open connections and make keys; where refusals are measured, spend what may be spent. Raises Lost."""
        self.worker.run(load, seconds)
        if load.refused:
            self.worker.run(load, float("inf"), most=2 * load.subjects)

    def bytes_of_a_subject(self, load: Load) -> float:
        """Return what the keys of one subject take, as the server says, after one check of each subject. Raises Lost."""
        self.client.flushdb()
        self.worker.run(load, float("inf"), most=load.subjects)
        with self.client.pipeline(transaction=False) as pipeline:
            for key in self.client.keys("*"):
                pipeline.memory_usage(key, samples=0)
            return float(sum(pipeline.execute()) / load.subjects)

    def _server_seconds(self) -> float:
        used = self.client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])


@contextmanager
def seated(url: str, colour: Colour, contestants: Sequence[Contestant] = CONTESTANTS) -> Iterator[list[Seat]]:
    """Start the processes of a colour, at the same time; stop them in the end."""
    seats = []
    for contestant in contestants:
        if contestant.colour is colour:
            number = CONTESTANTS.index(contestant)
            client = redis.Redis.from_url(f"{url}/{number}", socket_timeout=60)
            seats.append(Seat(contestant, Worker(number, f"{url}/{number}"), client))
    try:
        for seat in seats:
            seat.worker.start()
        yield seats
    finally:
        for seat in seats:
            seat.worker.stop()
            seat.client.close()


def contend(seats: Sequence[Seat], groups: Sequence[Sequence[Load]], plan: Plan, section: str) -> list[Standing]:
    """Measure every contestant under every load."""
    found: list[Standing] = []
    for loads in groups:
        standings = [Standing(seat.contestant, load) for load in loads for seat in seats if _takes_part(seat, load)]
        _prepare(seats, loads, section)
        for number in range(plan.rounds + 1):
            progress.show(section, _title(loads), number, plan.rounds)
            _round(seats, standings, plan.seconds, number)
        found += standings
    return found


def _round(seats: Sequence[Seat], standings: Sequence[Standing], seconds: float, number: int) -> None:
    """Give everyone a turn; the order is turned around every round. The first round does not count."""
    seat_of = {seat.contestant: seat for seat in seats}
    for standing in standings if number % 2 else reversed(standings):
        if standing.lost is None:
            try:
                _turn(seat_of[standing.contestant], standing, seconds, number)
            except Lost as error:
                standing.lost = str(error)


def _turn(seat: Seat, standing: Standing, seconds: float, number: int) -> None:
    if number:
        standing.blocks.append(seat.take(standing.load, seconds))
    else:
        seat.warm(standing.load, seconds)


def _prepare(seats: Sequence[Seat], loads: Sequence[Load], section: str) -> None:
    """Empty the databases, and put in the subjects of a load that is about many."""
    for number, seat in enumerate(seats):
        seat.client.flushdb()
        progress.show(section, f"making room for {_title(loads)}", number, len(seats))
        if len(loads) == 1 and loads[0].subjects > _CROWD and not seat.contestant.only_refused:
            fill(seat.client, seat.worker, loads[0])


def _takes_part(seat: Seat, load: Load) -> bool:
    return load.refused or not seat.contestant.only_refused


def _title(loads: Sequence[Load]) -> str:
    return "concurrency, tiers, refusals" if len(loads) > 1 else f"{loads[0].subjects:,} subjects"
