"""Flows of commands that read the report from the store, and delete it. The records of several days are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any

from ratekit.admin.commands import Flow, as_text, as_texts
from ratekit.core import clock, keys
from ratekit.core.limits import REQUESTS
from ratekit.report.model import LimitReport, SubjectUse
from ratekit.report.tally import Series
from ratekit.report.write import DAY, MOST_HASH, OUTCOMES, ReportSize, SeriesKeys, pairs, run_all
from ratekit.stores.contract import Command

Ranking = dict[str, float]


def read_reports(prefix: str, endpoint: str | None, size: ReportSize) -> Flow[list[LimitReport]]:
    """Read the report of every limit, or of those on one endpoint, the most refused first."""
    (members,) = yield from run_all([("ZRANGE", keys.report_index_key(prefix), 0, -1)])
    reports = []
    for series in sorted(_series_in(members)):
        if endpoint in (None, series.endpoint):
            report = yield from _read_series(prefix, series, size)
            reports += [report] if report is not None else []
    return sorted(reports, key=lambda report: -(report.denied + report.would_deny))


def delete_reports(prefix: str, endpoint: str | None, size: ReportSize) -> Flow[int]:
    """Delete the report of every limit, or of those on one endpoint. Returns of how many limits."""
    index = keys.report_index_key(prefix)
    (members,) = yield from run_all([("ZRANGE", index, 0, -1)])
    chosen = [series for series in _series_in(members) if endpoint in (None, series.endpoint)]
    for series in chosen:
        days = _days(prefix, series, size)
        yield from run_all([*[("DEL", key) for names in days for key in names.lasting], ("ZREM", index, _member(series))])
    return len(chosen)


def _series_in(members: Iterable[Any]) -> Iterator[Series]:
    for member in members:
        limit, _, endpoint = as_text(member).partition(" ")
        yield Series(endpoint, limit)


def _member(series: Series) -> str:
    return f"{series.limit} {series.endpoint}"


def _days(prefix: str, series: Series, size: ReportSize) -> list[SeriesKeys]:
    today = int(clock.now() // DAY)
    return [SeriesKeys(prefix, series, day) for day in range(today - size.days, today + 1)]


def _read_series(prefix: str, series: Series, size: ReportSize) -> Flow[LimitReport | None]:
    merged = Merged(size)
    for names in _days(prefix, series, size):
        commands: list[Command] = [
            ("HGETALL", names.totals),
            *[
                ("ZRANGE", key, 0, -1, "WITHSCORES")
                for key in (names.refused, names.peaks, names.sample, names.sample_peaks)
            ],
            *[("HGETALL", key) for key in (names.refused_seen, names.peaks_seen)],
        ]
        replies = yield from run_all(commands)
        merged.add(as_texts(replies[0]), [dict(pairs(reply)) for reply in replies[1:5]], list(map(as_texts, replies[5:])))
    return merged.report(series) if merged.about else None


class Merged:
    """The merged days of a series: the sum of counts, the highest of peaks, the smallest hashes of samples."""

    def __init__(self, size: ReportSize) -> None:
        self._size = size
        self.about: dict[str, str] = {}
        self._totals: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._excess: Counter[str] = Counter()
        self._peaks: Ranking = {}
        self._sample: Ranking = {}
        self._sample_peaks: Ranking = {}
        self._first: Ranking = {}
        self._last: Ranking = {}
        self._is_full = False

    def add(self, about: dict[str, str], rankings: Sequence[Ranking], seen: Sequence[Mapping[str, str]]) -> None:
        """Add a day. The limit's own fields are those of the last day that is added."""
        refused, peaks, sample, sample_peaks = rankings
        first = self.about.get("first")
        self.about |= about
        if first is not None:
            self.about["first"] = first
        self._totals.update({name: int(about.get(name, 0)) for name in OUTCOMES})
        self._refused.update({name: int(count) for name, count in refused.items()})
        self._is_full |= len(peaks) >= self._size.capacity
        for known, more in ((self._peaks, peaks), (self._sample, sample), (self._sample_peaks, sample_peaks)):
            known.update({name: max(score, known.get(name, 0)) for name, score in more.items()})
        for field, value in (item for fields in seen for item in fields.items()):
            self._add_time(field[0], field[2:], float(value))

    def _add_time(self, kind: str, name: str, value: float) -> None:
        if kind == "f":
            self._first[name] = min(self._first.get(name, value), value)
        elif kind == "l":
            self._last[name] = max(self._last.get(name, value), value)
        else:
            self._excess[name] += int(value)

    def report(self, series: Series) -> LimitReport:
        """Return the report of all days."""
        about, capacity = self.about, self._size.capacity
        smallest = nsmallest(capacity, self._sample.items(), key=lambda item: item[1])
        highest = sorted(self._peaks, key=lambda name: -self._peaks[name])[:capacity]
        is_complete = not self._is_full and len(self._peaks) <= capacity
        return LimitReport(
            endpoint=series.endpoint,
            limit=series.limit,
            policy=about["policy"],
            mode=about["mode"],
            algorithm=about["algorithm"],
            max_requests=int(about["max_requests"]),
            window=float(about["window"]),
            first=_seconds(about.get("first")),
            last=_seconds(about.get("last")),
            subjects=len(self._peaks) if is_complete else _distinct([number for _, number in smallest], capacity),
            refused=tuple(self._use(name) for name, _ in self._refused.most_common(capacity)),
            highest=tuple(self._use(name) for name in highest),
            sample=tuple(sorted((int(self._sample_peaks.get(name, 0)) for name, _ in smallest), reverse=True)),
            is_complete=is_complete,
            unit=about.get("unit", REQUESTS),
            calendar=about.get("calendar", ""),
            is_reserved="is_reserved" in about,
            **self._totals,
        )

    def _use(self, name: str) -> SubjectUse:
        count, peak = self._refused.get(name, 0), self._peaks.get(name)
        return SubjectUse(
            subject=name,
            refused=count - self._excess.get(name, 0),
            refused_at_most=count,
            peak=None if peak is None else int(peak),
            first=_seconds(self._first.get(name)),
            last=_seconds(self._last.get(name)),
        )


def _distinct(hashes: Sequence[float], capacity: int) -> int:
    """Estimate the number of subjects from the density of the smallest hashes."""
    if len(hashes) < capacity:
        return len(hashes)
    return round((len(hashes) - 1) * MOST_HASH / max(hashes))


def _seconds(ms: str | float | None) -> float | None:
    return None if ms is None else float(ms) / 1000
