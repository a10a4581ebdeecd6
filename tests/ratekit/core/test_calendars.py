"""Calendars: their boundaries agree with a walk over every hour, whatever a time zone has done to its clocks."""

from __future__ import annotations

import os
import re
import zoneinfo
from datetime import UTC, date, datetime, timedelta

import pytest

from ratekit import Calendar, ConfigurationError, Limit, Policy

SECOND_US = 1_000_000
ZONES = [
    "UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/Santiago", "America/Havana", "America/Sao_Paulo",
    "America/St_Johns", "Africa/Cairo", "Africa/Casablanca", "Asia/Beirut", "Asia/Gaza", "Asia/Tehran", "Asia/Kathmandu",
    "Asia/Pyongyang", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia", "Pacific/Kiritimati", "Pacific/Kwajalein",
]  # fmt: skip
if os.environ.get("RATEKIT_FUZZ"):
    ZONES = sorted(zoneinfo.available_timezones())
FIRST, LAST = datetime(1990, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)


def us(instant: datetime) -> int:
    return int(instant.timestamp()) * SECOND_US


def days_by_walking(tz: str) -> list[int]:
    """The first instant of each local date, found by a walk over every hour.

    An hour in which the date or the offset changes is walked by the minute. A date that comes again is not a new one.
    """
    zone = zoneinfo.ZoneInfo(tz)
    found: list[int] = []
    at, local = FIRST, FIRST.astimezone(zone)
    last, offset = local.date(), local.utcoffset()
    while at < LAST:
        after = at + timedelta(hours=1)
        local = after.astimezone(zone)
        if local.date() > last or local.utcoffset() != offset:
            for minute in range(1, 61):
                day = (at + timedelta(minutes=minute)).astimezone(zone).date()
                if day > last:
                    found.append(us(at + timedelta(minutes=minute)))
                    last = day
        at, offset = after, local.utcoffset()
    return found


@pytest.mark.parametrize("tz", ZONES)
def test_days_agree_with_a_walk_over_every_hour_of_forty_years(tz):
    calendar, walked = Calendar("day", tz=tz), days_by_walking(tz)
    assert len(walked) > 14_600
    at, index = walked[0], 0
    while index + 4 <= len(walked):
        boundaries = calendar.boundaries(walked[index])
        assert list(boundaries) == walked[index : index + 4], (tz, datetime.fromtimestamp(at / SECOND_US, UTC))
        assert calendar.boundaries(walked[index + 1] - 1) == boundaries
        index += 3
        at = walked[index] if index < len(walked) else at


@pytest.mark.parametrize("tz", ZONES[:40])
@pytest.mark.parametrize(
    "calendar",
    [
        ("week", None, "sunday"),
        ("month", 31, ""),
        ("month", datetime(2024, 1, 30, 17, 45), ""),
        ("year", date(2024, 2, 29), ""),
    ],
)
def test_boundaries_increase_strictly_and_contain_the_time(tz, calendar):
    period, anchor, starts = calendar
    one = Calendar(period, tz, anchor, starts)
    at, last = us(FIRST), 0
    while at < us(LAST):
        boundaries = one.boundaries(at)
        assert boundaries[0] <= at < boundaries[1] < boundaries[2] < boundaries[3]
        assert boundaries[0] > last or last == 0
        assert (boundaries[1] - boundaries[0]) / SECOND_US <= one.longest
        last, at = boundaries[0], boundaries[1]


def test_month_anchored_at_its_end_does_not_drift():
    begins = Calendar("month", tz="UTC", anchor=31).boundaries(us(datetime(2027, 2, 1, tzinfo=UTC)))
    days = [datetime.fromtimestamp(begin / SECOND_US, UTC).date() for begin in begins]
    assert days == [date(2027, 1, 31), date(2027, 2, 28), date(2027, 3, 31), date(2027, 4, 30)]


def test_midnight_that_does_not_exist_is_the_end_of_the_gap():
    """In Cairo the clocks went from 00:00 to 01:00 on 26 April 2024, and a quota that begins at 00:30 began at 01:00."""
    after = us(datetime(2024, 4, 25, 22, 10, tzinfo=UTC))
    midnight = us(datetime(2024, 4, 25, 22, tzinfo=UTC))
    assert Calendar("day", tz="Africa/Cairo").boundaries(after)[0] == midnight
    assert Calendar("day", tz="Africa/Cairo", anchor=datetime(2024, 1, 1, 0, 30)).boundaries(after)[0] == midnight


def test_midnight_that_comes_twice_is_the_first():
    """In Havana the clocks go from 01:00 back to 00:00 on 3 November 2024."""
    first = us(datetime(2024, 11, 3, 4, tzinfo=UTC))
    assert first in Calendar("day", tz="America/Havana").boundaries(first + 5 * 3600 * SECOND_US)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"period": "fortnight"}, ["period 'fortnight'", "day, week, month, year"]),
        ({"period": "month", "tz": "Europe/Nowhere"}, ["tz 'Europe/Nowhere'"]),
        ({"period": "month", "tz": "../etc/passwd"}, ["tz '../etc/passwd'"]),
        ({"period": "month", "anchor": 32}, ["anchor 32"]),
        ({"period": "month", "anchor": True}, ["anchor True"]),
        ({"period": "month", "anchor": datetime.max.replace(tzinfo=UTC), "tz": "Asia/Tokyo"}, ["anchor 9999", "Asia/Tokyo"]),
        ({"period": "month", "anchor": datetime.min.replace(tzinfo=UTC), "tz": "America/Lima"}, ["anchor 0001", "America"]),
        ({"period": ["month"]}, ["period ['month']"]),
        ({"period": "month", "tz": 5}, ["tz 5"]),
        ({"period": "week", "anchor": 5}, ["anchor 5", "week"]),
        ({"period": "month", "tz": "Asia/Tokyo", "anchor": datetime.max.replace(tzinfo=UTC)}, ["anchor 9999", "Asia/Tokyo"]),
        ({"period": "month", "tz": "America/Lima", "anchor": datetime.min.replace(tzinfo=UTC)}, ["anchor 0001"]),
        ({"period": "week", "starts": "noday"}, ["starts 'noday'"]),
        ({"period": "month", "starts": "monday"}, ["starts 'monday'"]),
    ],
)
def test_calendar_that_makes_no_sense_is_refused(fields, words):
    with pytest.raises(ConfigurationError) as caught:
        Calendar(**fields)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("10000/month", Limit(10_000, Calendar("month"))),
        ("1000/day Europe/Berlin", Limit(1000, Calendar("day", tz="Europe/Berlin"))),
        ("1000 per day utc", Limit(1000, Calendar("day", tz="UTC"))),
        ("quota=5/week Asia/Tokyo starts sunday", Limit(5, Calendar("week", "Asia/Tokyo", None, "sunday"), name="quota")),
        ("5 tokens/month anchor 31 shadow", Limit(5, Calendar("month", anchor=31), unit="tokens", shadow=True)),
        ("5/year anchor 2024-02-29", Limit(5, Calendar("year", anchor=date(2024, 2, 29)))),
        ("5/month anchor 2024-02-29T12:30:00", Limit(5, Calendar("month", anchor=datetime(2024, 2, 29, 12, 30)))),
        ("90000 tokens/min", Limit(90_000, 60, unit="tokens")),
        ("90000 tokens per min burst 5", Limit(90_000, 60, unit="tokens", burst=5)),
    ],
)
def test_text_is_a_limit_with_a_calendar_or_a_unit(text, limit):
    assert Limit.parse(text) == limit
    assert Limit.parse(str(limit)) == limit


@pytest.mark.parametrize(
    "text", ["5/2month", "5/month@token_bucket", "5/month aligned", "5/min Europe/Berlin", "5/month anchor 0",
             "5/day anchor 3", "5/month burst 9", "5/month anchor 2024-13-01", "5/day starts monday", "5 Tokens!/min"],
)  # fmt: skip
def test_text_of_a_calendar_that_makes_no_sense_is_refused_by_name(text):
    with pytest.raises(ConfigurationError, match="is not a limit: "):
        Limit.parse(text)


def test_time_zone_is_that_of_the_environment_unless_it_is_said(monkeypatch):
    monkeypatch.setenv("RATEKIT_TZ", "Asia/Tokyo")
    assert (Calendar("day").tz, Calendar("day", tz="UTC").tz) == ("Asia/Tokyo", "UTC")


def test_time_zone_of_the_environment_that_is_none_is_told_by_the_name_of_the_variable(monkeypatch):
    monkeypatch.setenv("RATEKIT_TZ", "Mars/Olympus")
    with pytest.raises(ConfigurationError, match="RATEKIT_TZ: tz 'Mars/Olympus' is not a time zone"):
        Limit.parse("5/month")


@pytest.mark.parametrize("anchor", [0, 32, -1, 10**30, True])
@pytest.mark.parametrize("rate", ["5/day UTC", "5/week UTC", "5/month", "5/year"])
def test_anchor_that_is_no_day_is_refused_whatever_the_period(rate, anchor):
    with pytest.raises(ConfigurationError, match="is not a day of a month between 1 and 31"):
        Policy("quota", rate).anchored(anchor)


def test_policy_is_anchored_for_a_subject_under_the_same_keys():
    policy = Policy("quota", ["60/min", "10000/month"])
    anchored = policy.anchored(datetime(2024, 1, 31, 9, tzinfo=UTC))
    assert [limit.name for limit in anchored.limits] == ["60s", "month"]
    assert anchored.limits[1].calendar == Calendar("month", anchor=datetime(2024, 1, 31, 9))
    assert policy.anchored(None) is policy
    assert policy.anchored(31) is policy.anchored(31)
    for nonsense in (31.0, True, [31], "31"):
        with pytest.raises(ConfigurationError, match=f"anchor {re.escape(repr(nonsense))} is not a day of a month"):
            policy.anchored(nonsense)
    with pytest.raises(ConfigurationError, match="no limit has a calendar"):
        Policy("p", "60/min").anchored(3)


def test_policy_with_a_calendar_is_compiled_anew_in_each_period(ratekit_clock):
    from ratekit.core.protocol import encode

    policy = Policy("quota", "10000/month UTC")
    ratekit_clock.set(datetime(2027, 2, 3, tzinfo=UTC).timestamp())
    first = encode(policy, "u").compiled
    assert encode(policy, "u").compiled is first
    ratekit_clock.set(datetime(2027, 3, 1, tzinfo=UTC).timestamp())
    assert encode(policy, "u").compiled.rows[0].boundaries[0] == us(datetime(2027, 3, 1, tzinfo=UTC))
