"""The parts of a run, each of which can be run alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from benchmarks.contest.contestants import CONTESTANTS, Colour
from benchmarks.contest.plan import Plan
from benchmarks.rounds import Gap
from benchmarks.settings import Settings

_START_SECONDS = 1.5  # of one contestant or server
_OVERHEAD = 1.5  # of a block: what was begun has to end, and the server is asked what it took
_FILL_SECONDS = 4e-6  # of one subject of a crowd


@dataclass(frozen=True, slots=True)
class Section:
    """A function that compares, imported when it is run; about how long it takes, and what it may find missing."""

    function: str
    seconds: Callable[[Settings], float]
    needs: str = "something"
    short_rounds: int = 4

    def run(self, name: str, settings: Settings) -> Any:
        """Return what was found: rows, or one that says why there are none."""
        module, _, function = self.function.partition(":")
        try:
            compare = getattr(import_module(f"benchmarks.{module}"), function)
        except ImportError as error:
            return [Gap(name, "all of it", str(error))]
        return compare(settings) or [Gap(name, "all of it", f"it needs {self.needs}, which is not here")]

    def fit(self, settings: Settings) -> Settings:
        """Take fewer rounds in a short run."""
        return replace(settings, rounds=min(settings.rounds, self.short_rounds)) if settings.is_short else settings


def _contest_seconds(settings: Settings) -> float:
    return sum(_colour_seconds(settings.plan, colour) for colour in Colour)


def _colour_seconds(plan: Plan, colour: Colour) -> float:
    contestants = sum(contestant.colour is colour for contestant in CONTESTANTS)
    groups = plan.groups(colour)
    blocks = sum(map(len, groups)) * (plan.rounds + 1) * plan.seconds * _OVERHEAD
    return contestants * (_START_SECONDS + blocks + plan.remembered / 5000 + _FILL_SECONDS * max(plan.subjects))


SECTIONS = {
    "memory": Section("memory:compare_in_memory", lambda settings: 0.5 * settings.rounds),
    "redis": Section("redis_waits:compare_waits", lambda settings: 0.2 * settings.rounds),
    "cpu": Section("redis_cpu:compare_cpu", lambda settings: 0.6 * settings.rounds),
    "http": Section("http:compare_http", lambda settings: 10 + 11 * min(settings.rounds, 12), "the program wrk", 2),
    "rules": Section("document_rules:compare_rules", lambda settings: 5 + 3 * min(settings.rounds, 12)),
    "service": Section("service:compare_service", lambda settings: 20 + 11 * min(settings.rounds, 9), "the program wrk", 2),
    "envoy": Section("envoy:compare_envoy", lambda settings: 20 + 6 * min(settings.rounds, 12), "the extra grpc", 3),
    "import": Section("import_time:compare_import", lambda settings: 0.4 * settings.rounds),
    "plans": Section("limits_by_request:compare_limits_by_request", lambda settings: 0.3 * settings.rounds),
    "report": Section("reporting:compare_report", lambda settings: 0.6 * settings.rounds),
    "peers": Section("peers:compare_peers", _contest_seconds),
}
