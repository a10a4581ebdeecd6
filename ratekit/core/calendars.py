"""Calendars: days, weeks, months and years of a time zone, whose beginnings are the boundaries of a quota's windows.

The script gets four boundaries, and the server's clock picks the first one that is still to come. So processes with wrong
clocks share one window: only their time zone database has to be the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, get_args

from ratekit.core.errors import ConfigurationError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

TIME_ZONE_VARIABLE = "RATEKIT_TZ"
DEFAULT_TIME_ZONE = "UTC"
BOUNDARIES = 4  # that the script gets: when this period began, and the next three
Period = Literal["day", "week", "month", "year"]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_WEEKDAYS: tuple[str, ...] = get_args(Weekday)
# No period is longer: a day more than usual, as some places have repeated a part of a day.
_LONGEST_DAYS = {"day": 2, "week": 8, "month": 32, "year": 367}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Periods of a calendar: "day", "week", "month" or "year".

    - tz: the name of a time zone; by default RATEKIT_TZ, else UTC
    - anchor: the day of a month (31 is the last day of a shorter one), or a date or datetime from which periods are counted:
      a month then begins on its day, a week on its weekday, a year on its day and month, each at its time of day
    - starts: the day on which a week begins
    """

    period: Period
    tz: str = ""
    anchor: int | date | None = None
    starts: Weekday | Literal[""] = ""
    _latest: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.period, str) or self.period not in _LONGEST_DAYS:
            raise ConfigurationError(f"period {self.period!r} is unknown: it is one of {', '.join(_LONGEST_DAYS)}")
        name = self.tz or os.environ.get(TIME_ZONE_VARIABLE) or DEFAULT_TIME_ZONE
        try:
            _zone(name)
        except ConfigurationError as error:
            where = "" if self.tz else f"{TIME_ZONE_VARIABLE}: "
            raise ConfigurationError(f"{where}{error}") from None
        object.__setattr__(self, "tz", name)
        self._check_anchor()
        self._check_starts()

    @property
    def longest(self) -> float:
        """The seconds that no period is longer than."""
        return _LONGEST_DAYS[self.period] * 86400.0

    def boundaries(self, at_us: int) -> tuple[int, ...]:
        """Return when the period of a time began, and when the next three do, in microseconds since the epoch."""
        at_us = max(at_us, self._latest[0])
        found = sorted(set(self._around(at_us)))
        first = max(index for index, boundary in enumerate(found) if boundary <= at_us)
        return tuple(found[first : first + BOUNDARIES])

    def seconds_at(self, at_us: int) -> float:
        """Return how long the period of a time is."""
        first, second, *_ = self.boundaries(at_us)
        return (second - first) / 1_000_000

    @property
    def latest_us(self) -> int:
        """The latest time that the server's clock is known to have passed."""
        return self._latest[0]

    def note_time(self, server_us: int) -> None:
        """Take note that the server's clock has passed a time: boundaries before it are of no use to the server."""
        self._latest[0] = max(self._latest[0], server_us)

    def anchored(self, anchor: int | date) -> Calendar:
        """Return the same calendar with another anchor."""
        return Calendar(self.period, self.tz, anchor, "" if self.period == "week" else self.starts)

    def __str__(self) -> str:
        words = [self.period, self.tz]
        if self.anchor is not None:
            words.append(f"anchor {self.anchor if isinstance(self.anchor, int) else self.anchor.isoformat()}")
        return " ".join([*words, f"starts {self.starts}"] if self.starts else words)

    def _around(self, at_us: int) -> Iterator[int]:
        """Return the boundaries around a time: enough before it and after it, some of them perhaps equal."""
        zone = _zone(self.tz)
        local = (_EPOCH + at_us * _MICROSECOND).astimezone(zone).replace(tzinfo=None)
        at_time = self.anchor.timetz().replace(tzinfo=None) if isinstance(self.anchor, datetime) else time()
        for step in range(-3, BOUNDARIES + 4):
            day = self._day(local.date(), step)
            yield _instant_us(datetime.combine(day, at_time), self.tz)

    def _day(self, today: date, step: int) -> date:
        """Return the day on which a period begins, so many periods after that of today or the one before it."""
        if self.period == "day":
            return today + timedelta(days=step)
        if self.period == "week":
            return today + timedelta(days=7 * step - (today.weekday() - self._weekday) % 7)
        months = today.year * 12 + today.month - 1 + step
        if self.period == "year":
            start = self.anchor.month if isinstance(self.anchor, date) else 1
            months = (today.year + step) * 12 + start - 1
        return _day_of_month(months // 12, months % 12 + 1, self._day_of_month)

    @property
    def _weekday(self) -> int:
        return self.anchor.weekday() if isinstance(self.anchor, date) else _WEEKDAYS.index(self.starts or "monday")

    @property
    def _day_of_month(self) -> int:
        return self.anchor.day if isinstance(self.anchor, date) else self.anchor or 1

    def _check_anchor(self) -> None:
        anchor = self.anchor
        if isinstance(anchor, datetime) and anchor.tzinfo is not None:
            object.__setattr__(self, "anchor", _local(anchor, self.tz))
        elif anchor is None or isinstance(anchor, date):
            return
        elif type(anchor) is not int or not 1 <= anchor <= 31:
            raise ConfigurationError(f"anchor {anchor!r} is not a day of a month between 1 and 31, a date or a datetime")
        elif self.period != "month":
            raise ConfigurationError(f"anchor {anchor!r} is a day of a month, and the period is a {self.period}")

    def _check_starts(self) -> None:
        if self.starts == "":
            return
        if self.starts not in _WEEKDAYS:
            raise ConfigurationError(f"starts {self.starts!r} is not a day of the week, such as 'monday'")
        if self.period != "week" or self.anchor is not None:
            raise ConfigurationError(f"starts {self.starts!r} makes sense for weeks without an anchor, not for {self}")


def _local(anchor: datetime, tz: str) -> datetime:
    """Return an anchor as the clocks of a time zone show it."""
    try:
        return anchor.astimezone(_zone(tz)).replace(tzinfo=None)
    except OverflowError:
        raise ConfigurationError(f"anchor {anchor.isoformat()} is in no year between 1 and 9999 of {tz}") from None


def _day_of_month(year: int, month: int, day: int) -> date:
    """Return a day of a month, or the last one where the month is shorter."""
    following = date(year + month // 12, month % 12 + 1, 1)
    return min(date(year, month, 1) + timedelta(days=day - 1), following - timedelta(days=1))


@lru_cache(maxsize=4096)
def _instant_us(local: datetime, tz: str) -> int:
    """Return the instant of a local time: the first of two, and the end of the gap if the clocks skip it."""
    zone = _zone(tz)
    instant = local.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) != local:
        instant = _end_of_gap(local.replace(tzinfo=zone), instant)
    return (instant - _EPOCH) // _MICROSECOND


def _end_of_gap(local: datetime, latest: datetime) -> datetime:
    """Return the instant of the change of clocks that skips a local time, by bisection over seconds."""
    earliest = local.replace(fold=1).astimezone(UTC)  # read with the offset after the change
    before = earliest.astimezone(local.tzinfo).utcoffset()
    low, high = 0, int((latest - earliest).total_seconds())
    while low < high:
        middle = (low + high) // 2
        if (earliest + timedelta(seconds=middle)).astimezone(local.tzinfo).utcoffset() != before:
            high = middle
        else:
            low = middle + 1
    return (earliest + timedelta(seconds=low)).replace(microsecond=0)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones  # few limits have a calendar

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        if not available_timezones():
            raise ConfigurationError(
                f"tz {name!r} cannot be looked up, as there is no time zone database: pip install 'ratekit[calendar]'"
            ) from None
        raise ConfigurationError(f"tz {name!r} is not a time zone: write it like 'Europe/Berlin' or 'UTC'") from None
