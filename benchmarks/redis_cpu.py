"""What a decision costs the server, which counts the time of each command itself, against the smallest useful script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import redis

from benchmarks.policies import FOUR_TIERS, MOST, ONE_TIER
from benchmarks.rounds import Case, Pair, Row, measure
from benchmarks.server import running
from benchmarks.settings import Settings
from ratekit import Calendar, Limit, Policy
from ratekit.core.figures import ADMITS, FIGURES
from ratekit.core.keys import DEFAULT_PREFIX, override_key
from ratekit.core.protocol import Call, Extra, Operation, encode, merge, pack
from ratekit.stores import script

_DECISION_TARGET = 2.0
_BATCHED_TARGET = 0.8
_WIDE_TARGET = 1.08
_WIDE_LOOKUP = b'redis.pcall("EXISTS", KEYS[key], KEYS[key + 1])'
_TIERS_TARGET = 2.5
_RESERVATION_TARGET = 3.0
_IDENTITIES_TARGET = 0.6
_CALENDAR_TARGET = 1.2
_WINDOWS: dict[str, Any] = {"aligned": 3600, "monthly": Calendar("month", tz="Europe/Berlin")}
_BATCH = 50
_CALLS = 100  # a multiple of 50: every fiftieth script collects the garbage of all, in its own time
_REFERENCE = b"""
local used = tonumber(redis.call("GET", KEYS[1])) or 0
local total = redis.call("INCRBY", KEYS[1], ARGV[1])
return { 1, used, total, redis.call("TTL", KEYS[1]) }
"""

Command = tuple[Any, ...]


def compare_cpu(settings: Settings) -> list[Row]:
    """Compare decisions with the reference, with one call per round trip and with many."""
    with running(settings.server) as url, redis.Redis.from_url(url, protocol=2, socket_timeout=5) as client:
        alone, piped = Meter(client, _one_by_one), Meter(client, _in_a_pipeline)
        pairs = [*_pairs(alone), *_quota_pairs(alone), *map(_without_target, _pairs(piped))]
        return measure("redis CPU", pairs, settings.rounds)


@dataclass(frozen=True, slots=True)
class Meter:
    """Makes cases of commands; the time is that which the server counted, in microseconds."""

    client: Any  # of redis-py, whose execute_command has no types
    send: Callable[[Any, Command], object]

    def reference(self) -> Case:
        """Measure the reference, on a key that expires as those of the limiter do."""
        digest = self.client.script_load(_REFERENCE)
        self.client.set("reference", 0, ex=3600)
        return self._cost(("EVALSHA", digest, 1, "reference", 1), 1)

    def decision(self, policy: Policy, subjects: Sequence[str], *, overrides: bool, text: bytes | None = None) -> Case:
        """Measure one decision of a batch: one for each subject. text is another script than ratekit's."""
        keys, items = pack([encode(policy, subject, overrides=overrides) for subject in subjects])
        digest = self.client.script_load(text or script.read("ratekit"))
        command = ("EVALSHA", digest, len(keys), *keys, *items)
        self._expect_admitted(command, len(subjects) * len(policy.limits))
        return self._cost(command, len(subjects))

    def cost_of(self, calls: Sequence[Call]) -> Case:
        """Measure calls of the script, sent together."""
        keys, items = pack(calls)
        digest = self.client.script_load(script.read("ratekit"))
        return self._cost(("EVALSHA", digest, len(keys), *keys, *items), 1)

    def reservation(self, policy: Policy) -> Case:
        """Measure one reservation and its settlement, of an id that nobody has used before each time."""
        digest = self.client.script_load(script.read("ratekit"))
        ids = count()

        def commands(operation: Operation, cost: int, numbers: range) -> list[Command]:
            extra = Extra(hold_ms=1_200_000, known=8 if operation is Operation.SETTLE else 0)
            calls = [
                encode(policy, "keyed", operation=operation, cost=cost, slot=f"{number:032x}", extra=extra)
                for number in numbers
            ]
            return [("EVALSHA", digest, len(call.all_keys), *call.all_keys, *pack([call])[1]) for call in calls]

        def block() -> float:
            first = next(ids) * _CALLS
            numbers = range(first, first + _CALLS)
            sides = commands(Operation.RESERVE, 8, numbers), commands(Operation.SETTLE, 5, numbers)
            return sum(self._cost_of_all(side) for side in sides)

        return block

    def _cost_of_all(self, commands: Sequence[Command]) -> float:
        self.client.config_resetstat()
        for command in commands:
            self.client.execute_command(*command)
        stats: Any = self.client.info("commandstats")
        return float(stats["cmdstat_evalsha"]["usec"] / stats["cmdstat_evalsha"]["calls"])

    def _cost(self, command: Command, decisions: int) -> Case:
        def block() -> float:
            self.client.config_resetstat()
            self.send(self.client, command)
            stats: Any = self.client.info("commandstats")
            evalsha = stats["cmdstat_evalsha"]
            return float(evalsha["usec"] / evalsha["calls"] / decisions)

        return block

    def _expect_admitted(self, command: Command, limits: int) -> None:
        reply: Any = self.client.execute_command(*command)
        if len(reply) != limits * FIGURES or not all(flags & ADMITS for flags in reply[::FIGURES]):
            raise RuntimeError(f"{reply!r} is not {limits} admissions")


def _pairs(meter: Meter) -> list[Pair]:
    """Make the pairs of one way to send commands."""
    reference, decide, batch = meter.reference(), meter.decision, [f"subject-{number}" for number in range(_BATCH)]
    meter.client.hset(override_key(DEFAULT_PREFIX, ONE_TIER.name, "special"), mapping={"max_requests": 2 * MOST})
    plain, keyed = decide(ONE_TIER, ["plain"], overrides=False), decide(ONE_TIER, ["keyed"], overrides=True)
    special = decide(ONE_TIER, ["special"], overrides=True)
    narrow = decide(ONE_TIER, ["keyed"], overrides=True, text=_without_wide_overrides())
    many, many_keyed = decide(ONE_TIER, batch, overrides=False), decide(ONE_TIER, batch, overrides=True)
    four, four_keyed = decide(FOUR_TIERS, ["plain"], overrides=False), decide(FOUR_TIERS, ["keyed"], overrides=True)
    return [
        Pair("decision / reference", plain, reference, _DECISION_TARGET),
        Pair("decision with override key / reference", keyed, reference, _DECISION_TARGET),
        Pair("decision by an override / reference", special, reference),
        Pair("overrides for all endpoints, looked for / not looked for", keyed, narrow, _WIDE_TARGET),
        Pair(f"one of {_BATCH} / reference", many, reference, _BATCHED_TARGET),
        Pair(f"one of {_BATCH} with override key / reference", many_keyed, reference, _BATCHED_TARGET),
        Pair("four tiers / one tier", four, plain, _TIERS_TARGET),
        Pair("four tiers / one tier, with override key", four_keyed, keyed, _TIERS_TARGET),
    ]


def _without_wide_overrides() -> bytes:
    """Return the script as it was before overrides for all endpoints: it looks for that of the endpoint alone."""
    text = script.read("ratekit")
    if _WIDE_LOOKUP not in text:
        raise RuntimeError("the script looks for overrides in other words: this row has to be written anew")
    return text.replace(_WIDE_LOOKUP, _WIDE_LOOKUP.replace(b", KEYS[key + 1]", b""))


def _quota_pairs(meter: Meter) -> list[Pair]:
    """Make the pairs of what quotas need: reservations, several identities, calendars."""
    decide = meter.decision
    aligned, monthly = (Policy(name, Limit(MOST, window, aligned=name == "aligned")) for name, window in _WINDOWS.items())
    check = decide(ONE_TIER, ["keyed"], overrides=True)
    names = [("everyone", "*"), ("by_address", "ip:192.0.2.1"), ("by_user", "user:42")]
    calls = [encode(Policy(name, Limit(MOST, 60)), subject) for name, subject in names]
    singly, together = [meter.cost_of([call]) for call in calls], meter.cost_of([merge(calls)])
    month, hour = (decide(policy, ["keyed"], overrides=True) for policy in (monthly, aligned))
    return [
        Pair("reserve and settle / check", meter.reservation(ONE_TIER), check, _RESERVATION_TARGET),
        Pair("three identities together / singly", together, lambda: sum(cost() for cost in singly), _IDENTITIES_TARGET),
        Pair("calendar / aligned window", month, hour, _CALENDAR_TARGET),
    ]


def _without_target(pair: Pair) -> Pair:
    return replace(pair, name=f"{pair.name} (pipelines of {_CALLS})", target=None)


def _one_by_one(client: Any, command: Command) -> None:
    for _ in range(_CALLS):
        client.execute_command(*command)


def _in_a_pipeline(client: Any, command: Command) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(_CALLS):
            pipeline.execute_command(*command)
        pipeline.execute()
