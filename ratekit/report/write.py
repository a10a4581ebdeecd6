"""Flows of commands that merge the tallies of a process into the store. Any number of processes may run them.

For each limit, endpoint and day, the store has:

- totals by outcome
- the subjects with the most refusals; a new one starts with the count of the one it replaces, so that no frequent one is
  missed (Space-Saving)
- the subjects with the highest use of a window, which is exact
- a sample of all subjects: those with the smallest hashes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nlargest
from typing import Any

from ratekit.admin.commands import Batch, Flow, as_text
from ratekit.core import keys
from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.core.limit_text import format_seconds
from ratekit.core.outages import StoreOutage
from ratekit.report.tally import WINDOW_PARTS, Series, SeriesTally, Use
from ratekit.stores.contract import Command

DAY = 86_400
OUTCOMES = ("allowed", "denied", "would_deny", "degraded")
MOST_HASH = 2**53
_MOST_SERIES = 2000


@dataclass(frozen=True, slots=True)
class ReportSize:
    """How much the report keeps: subjects in each list, and days."""

    capacity: int = 1000
    days: int = 7

    def __post_init__(self) -> None:
        for name, value in (("capacity", self.capacity), ("days", self.days)):
            if type(value) is not int or value < 1:
                raise ConfigurationError(f"{name} {value!r} is not a whole number above 0")

    @property
    def ttl_ms(self) -> int:
        """The time to live of a day's keys."""
        return (self.days + 1) * DAY * 1000


class SeriesKeys:
    """The keys of one limit on one endpoint in one day."""

    def __init__(self, prefix: str, series: Series, day: int) -> None:
        def key(kind: str) -> str:
            return keys.report_key(prefix, series.endpoint, day, series.limit, kind)

        self.totals = key("totals")
        self.refused, self.refused_seen = key("refused"), key("refused_seen")
        self.peaks, self.peaks_seen = key("peaks"), key("peaks_seen")
        self.sample, self.sample_peaks = key("sample"), key("sample_peaks")
        self.over = key("over")

    @property
    def lasting(self) -> tuple[str, ...]:
        """The keys that live as long as the report."""
        ranked = (self.refused, self.refused_seen, self.peaks, self.peaks_seen)
        return (self.totals, *ranked, self.sample, self.sample_peaks)


def merge_all(prefix: str, tallies: Mapping[Series, SeriesTally], now: float, size: ReportSize) -> Flow[None]:
    """Merge the tallies into the store."""
    for series, tally in tallies.items():
        yield from _merge(SeriesKeys(prefix, series, int(now // DAY)), tally, size)
    yield from _index(prefix, tallies, now, size)


def _merge(names: SeriesKeys, tally: SeriesTally, size: ReportSize) -> Flow[None]:
    refused = [item for item in tally.uses.items() if item[1].refused]
    refused = nlargest(size.capacity, refused, key=lambda item: item[1].refused)
    yield from _add_demand(names, refused, tally.limit.window, size)
    reads: list[Command] = [("HGET", names.totals, "first")]
    for ranking in (names.refused, names.peaks):
        reads += [("ZCARD", ranking), ("ZRANGE", ranking, 0, 0, "WITHSCORES")]
    reads.append(("ZRANGE", names.sample, size.capacity - 1, size.capacity - 1, "WITHSCORES"))
    first, *rankings, threshold = yield from run_all(reads)
    least_refused, least_peak = (_least(card, lowest, size) for card, lowest in (rankings[:2], rankings[2:]))
    highest = [item for item in tally.uses.items() if item[1].peak > least_peak]
    highest = nlargest(size.capacity, highest, key=lambda item: item[1].peak)
    seen = yield from _known(names, refused, highest)
    commands = [
        *_totals(names, tally, is_new=not first),
        *_rank_refused(names, refused, least_refused, seen[0]),
        *_rank_peaks(names, highest, seen[1]),
        *_sample(names, tally, dict(pairs(threshold)), size),
        *[("PEXPIRE", key, size.ttl_ms) for key in names.lasting],
    ]
    yield from run_all(commands)
    yield from _evict(names, size)


def _add_demand(names: SeriesKeys, uses: Sequence[tuple[str, Use]], window: float, size: ReportSize) -> Flow[None]:
    """Add up the refused cost of each window over all processes, and raise the peaks to the whole demand."""
    demand = [(name, use, number, used, cost) for name, use in uses for number, (used, cost) in use.over.items()]
    sums: list[Command] = [
        ("ZINCRBY", f"{names.over}:{number // WINDOW_PARTS}", cost, f"{name}@{number % WINDOW_PARTS}")
        for name, _, number, _, cost in demand
    ]
    replies = yield from run_all(sums)
    for (_, use, _, used, _), refused in zip(demand, replies, strict=True):
        use.peak = max(use.peak, used + int(float(refused)))
    touched = dict.fromkeys(command[1] for command in sums)
    yield from run_all([("PEXPIRE", key, int(2 * window * 1000) + 60_000) for key in touched])
    surpluses = yield from run_all([("ZRANGE", key, 0, -4 * size.capacity - 1) for key in touched])
    yield from run_all([("ZREM", key, *surplus) for key, surplus in zip(touched, surpluses, strict=True) if surplus])


def _known(
    names: SeriesKeys, refused: Sequence[tuple[str, Use]], highest: Sequence[tuple[str, Use]]
) -> Flow[list[set[str]]]:
    """Return which subjects of two lists are in the rankings already."""
    lists = ((names.refused_seen, refused), (names.peaks_seen, highest))
    commands = [("HMGET", key, *[f"f:{name}" for name, _ in uses]) for key, uses in lists if uses]
    replies = iter((yield from run_all(commands)))
    return [
        {name for (name, _), first in zip(uses, next(replies), strict=True) if first} if uses else set() for _, uses in lists
    ]


def _totals(names: SeriesKeys, tally: SeriesTally, *, is_new: bool) -> Iterator[Command]:
    times = [moment for use in tally.uses.values() for moment in (use.first, use.last)]
    limit = tally.limit
    mode = "shadow" if limit.shadow else str(tally.mode)
    about: list[Any] = ["policy", tally.policy, "mode", mode, "algorithm", str(limit.algorithm)]
    about += ["max_requests", limit.capacity, "window", format_seconds(limit.window)]
    about += ["unit", limit.unit, "calendar", "" if limit.calendar is None else str(limit.calendar)]
    about += ["is_reserved", 1] if tally.is_reserved else []
    if times:
        about += ["last", _ms(max(times)), *(["first", _ms(min(times))] if is_new else [])]
    yield ("HSET", names.totals, *about)
    for outcome in OUTCOMES:
        yield ("HINCRBY", names.totals, outcome, getattr(tally, outcome))


def _rank_refused(names: SeriesKeys, uses: Sequence[tuple[str, Use]], least: int, known: set[str]) -> Iterator[Command]:
    if not uses:
        return
    yield ("ZADD", names.refused, "NX", *[item for name, _ in uses for item in (least, name)])
    for name, use in uses:
        yield ("ZINCRBY", names.refused, use.refused, name)
    yield from _record_times(names.refused_seen, uses, known, least)


def _rank_peaks(names: SeriesKeys, uses: Sequence[tuple[str, Use]], known: set[str]) -> Iterator[Command]:
    if uses:
        yield ("ZADD", names.peaks, "GT", *[item for name, use in uses for item in (use.peak, name)])
        yield from _record_times(names.peaks_seen, uses, known, 0)


def _record_times(key: str, uses: Sequence[tuple[str, Use]], known: set[str], excess: int) -> Iterator[Command]:
    """Record when subjects were seen and, for new ones, by how much their count may be too high."""
    fields: list[Any] = []
    for name, use in uses:
        fields += [f"l:{name}", _ms(use.last)]
        if name not in known:
            fields += [f"f:{name}", _ms(use.first), *([f"e:{name}", excess] if excess else [])]
    yield ("HSET", key, *fields)


def _sample(names: SeriesKeys, tally: SeriesTally, threshold: Mapping[str, float], size: ReportSize) -> Iterator[Command]:
    most = min(threshold.values(), default=MOST_HASH)
    chosen = [
        (number, name, use) for name, use in tally.uses.items() if use.peak and (number := sampling_hash(name)) <= most
    ]
    smallest = sorted(chosen, key=lambda item: item[0])[: size.capacity]
    if smallest:
        yield ("ZADD", names.sample, *[item for number, name, _ in smallest for item in (number, name)])
        yield ("ZADD", names.sample_peaks, "GT", *[item for _, name, use in smallest for item in (use.peak, name)])


def _evict(names: SeriesKeys, size: ReportSize) -> Flow[None]:
    """Remove the subjects above the capacity: the last of the rankings, and the largest hashes of the sample."""
    lowest = -size.capacity - 1
    refused, peaks, sample = yield from run_all(
        [
            ("ZRANGE", names.refused, 0, lowest),
            ("ZRANGE", names.peaks, 0, lowest),
            ("ZRANGE", names.sample, size.capacity, -1),
        ]
    )
    commands: list[Command] = []
    for ranking, seen, surplus in ((names.refused, names.refused_seen, refused), (names.peaks, names.peaks_seen, peaks)):
        if surplus:
            commands.append(("ZREM", ranking, *surplus))
            commands.append(("HDEL", seen, *[f"{kind}:{as_text(name)}" for name in surplus for kind in "fle"]))
    if sample:
        commands += [("ZREM", names.sample, *sample), ("ZREM", names.sample_peaks, *sample)]
    yield from run_all(commands)


def _index(prefix: str, tallies: Iterable[Series], now: float, size: ReportSize) -> Flow[None]:
    key = keys.report_index_key(prefix)
    entries = [item for series in tallies for item in (int(now), f"{series.limit} {series.endpoint}")]
    if entries:
        commands = [("ZADD", key, *entries), ("PEXPIRE", key, size.ttl_ms), ("ZRANGE", key, 0, -_MOST_SERIES - 1)]
        *_, surplus = yield from run_all(commands)
        yield from run_all([("ZREM", key, *surplus)] if surplus else [])


def run_all(commands: Sequence[Command]) -> Flow[list[Any]]:
    """Run commands, perhaps none. Raises RateLimitUnavailable if one of them fails."""
    if not commands:
        return []
    replies: list[Any] = yield Batch(tuple(commands))
    for reply in replies:
        if isinstance(reply, StoreOutage):
            raise RateLimitUnavailable(str(reply))
    return replies


def pairs(reply: Sequence[Any]) -> list[tuple[str, float]]:
    """Return the members and scores of a reply, which is a flat list or a list of pairs, depending on the client."""
    flat = [item for pair in reply for item in pair] if reply and isinstance(reply[0], list | tuple) else list(reply)
    return [(as_text(member), float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]


def sampling_hash(name: str) -> int:
    """Return the hash that decides whether a subject is in the sample, the same in every process."""
    return int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 11


def _least(card: int, lowest: Sequence[Any], size: ReportSize) -> int:
    """Return the lowest score of a full ranking, or 0 while it has room."""
    return int(pairs(lowest)[0][1]) if card >= size.capacity and lowest else 0


def _ms(moment: float) -> int:
    return int(moment * 1000)
