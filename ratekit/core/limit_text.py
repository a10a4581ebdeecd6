"""The grammar of limits and durations as text: one for Python, the command line, rules and settings.

    [NAME=]COUNT[ COUNTED]/[NUMBER]UNIT[@ALGORITHM] [burst COUNT] [soft FRACTION] [aligned] [shadow]
    [NAME=]COUNT[ COUNTED]/PERIOD [ZONE] [anchor DAY] [starts WEEKDAY] [soft FRACTION] [shadow]

"COUNT per UNIT" says the same as "COUNT/UNIT". COUNTED is what the limit counts, such as "tokens". PERIOD is a month or a
year, or with a ZONE a day or a week: then its windows are those of a calendar. Upper case and outer spaces do not matter.
Several limits are separated by ";" or ",". docs/algorithms.md and docs/quotas.md explain it to users.
"""

from __future__ import annotations

import re
from typing import Any

from ratekit.core.errors import ConfigurationError

_SECOND_US = 1_000_000
_UNITS = {
    "ms": 1000, "millisecond": 1000, "milliseconds": 1000,
    "s": _SECOND_US, "sec": _SECOND_US, "secs": _SECOND_US, "second": _SECOND_US, "seconds": _SECOND_US,
    "m": 60 * _SECOND_US, "min": 60 * _SECOND_US, "mins": 60 * _SECOND_US,
    "minute": 60 * _SECOND_US, "minutes": 60 * _SECOND_US,
    "h": 3600 * _SECOND_US, "hr": 3600 * _SECOND_US, "hrs": 3600 * _SECOND_US,
    "hour": 3600 * _SECOND_US, "hours": 3600 * _SECOND_US,
    "d": 86400 * _SECOND_US, "day": 86400 * _SECOND_US, "days": 86400 * _SECOND_US,
    "w": 604800 * _SECOND_US, "week": 604800 * _SECOND_US, "weeks": 604800 * _SECOND_US,
}  # fmt: skip
# The units in which windows are written, the longest first: as text, and in the words of people.
_WRITTEN = (("w", "week"), ("d", "day"), ("h", "hour"), ("min", "minute"), ("s", "second"), ("ms", "millisecond"))

# The patterns are compiled on first use: the import of ratekit is faster without.
_NUMBER = r"\d{1,12}(?:\.\d{1,6})?"
_LIMIT = (
    r"(?:(?P<name>[\w.-]+)\s*=\s*)?(?P<count>\d{1,15})(?:\s+(?!per\s)(?P<counted>[a-z][\w-]*))?(?:\s*/\s*|\s+per\s+)"
    rf"(?:(?P<number>{_NUMBER})\s*)?(?P<unit>[a-z]+)(?P<options>[\s@].*)?"
)
_OPTION = (
    r"(?:\s*@\s*(?P<algorithm>[a-z_]+)|\s+burst\s+(?P<burst>\d{1,15})|\s+soft\s+(?P<soft>\d?\.\d+)"
    r"|\s+(?P<aligned>aligned)|\s+(?P<shadow>shadow)"
    r"|\s+anchor\s+(?P<anchor>\d{1,2}|\d{4}-\d\d-\d\d\S*)|\s+starts\s+(?P<starts>[a-z]+day)"
    r"|\s+(?P<tz>utc|[a-z_]+(?:/[a-z0-9_+-]+)+))(?=[\s@]|$)"
)
_CALENDAR = ("tz", "anchor", "starts")  # the words that make a calendar of a period
_PERIODS = {"d": "day", "day": "day", "w": "week", "week": "week", "month": "month", "year": "year"}
_ALWAYS_CALENDAR = ("month", "year")
_BY_UNIT = r"[a-z][\w-]*\s*=\s*\d{1,15}"
_COST = rf"(?P<number>\d{{1,15}})|{_BY_UNIT}(?:\s*,\s*{_BY_UNIT})*"
_DURATION = rf"(?P<sign>-?)(?P<number>{_NUMBER})\s*(?P<unit>[a-z]*)"
_FLAGS = re.ASCII | re.IGNORECASE | re.DOTALL


def limit_fields(text: str) -> dict[str, Any]:
    """Return the arguments of Limit that a text stands for. Raises ConfigurationError if it is not a limit."""
    match = re.fullmatch(_LIMIT, text.strip(), _FLAGS) if isinstance(text, str) else None
    try:
        options = _options(match["options"] or "") if match else None
        window = None if not match or options is None else _window(match["number"], match["unit"].lower(), options)
    except ConfigurationError as error:
        raise ConfigurationError(f"rate {text!r:.200} is not a limit: {error}") from None
    if not match or options is None or window is None:
        raise ConfigurationError(
            f"rate {text!r:.200} is not a limit: write it like '20/s', '100 per hour', '5000/15min', '100/s burst 200', "
            "'60/min shadow', '90000 tokens/min', '10000/month' or '1000/day Europe/Berlin', with the units ms, s, min, h, "
            "day, week, month and year"
        )
    named = {"name": match["name"]} if match["name"] else {}
    named |= {"unit": match["counted"].lower()} if match["counted"] else {}
    return {"max_requests": int(match["count"]), "window": window} | named | options


def _window(number: str | None, unit: str, options: dict[str, Any]) -> Any:
    """Return the seconds of a window, or the calendar that it stands for; None if it is neither.

    Takes the words of a calendar out of the options.
    """
    words = {name: options.pop(name) for name in _CALENDAR if name in options}
    if not words and unit not in _ALWAYS_CALENDAR:
        unit_us = _UNITS.get(unit)
        return None if unit_us is None else _seconds(number or "1", unit_us)
    if number is not None or unit not in _PERIODS:
        return None
    from ratekit.core.calendars import Calendar  # few limits have one, and it is slow to load

    period: Any = _PERIODS[unit]
    return Calendar(period, **words)


def parse_window(text: str) -> Any:
    """Return the seconds of a window such as "15min", or the calendar of one such as "month Europe/Berlin"."""
    try:
        fields = limit_fields(f"1/{text}")
    except ConfigurationError as error:
        reason = str(error).partition(" is not a limit: ")[2]
        raise ConfigurationError(f"window {text!r} is neither a length of time nor a period: {reason}") from None
    if more := fields.keys() - {"max_requests", "window"}:
        raise ConfigurationError(f"window {text!r} says {min(more)}, too: that is a field of its own")
    return fields["window"]


def parse_cost(text: str) -> int | dict[str, int]:
    """Return a cost: a whole number such as "5", or numbers by unit such as "tokens=800,pages=2"."""
    parts = re.fullmatch(_COST, text.strip(), _FLAGS) if isinstance(text, str) else None
    if not parts:
        raise ConfigurationError(f"cost {text!r} is neither a whole number nor numbers by unit like 'tokens=800,pages=2'")
    if parts["number"]:
        return int(parts["number"])
    pairs = [pair.partition("=") for pair in text.lower().split(",")]
    costs = {unit.strip(): int(number) for unit, _, number in pairs}
    if len(costs) < len(pairs):
        raise ConfigurationError(f"cost {text!r} names a unit twice")
    return costs


def split_limits(text: str) -> list[str]:
    """Return the texts of several limits, which ";" or "," separates."""
    return re.split("[;,]", text)


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration such as "90", "90s", "100ms", "15min" or "24h"."""
    match = re.fullmatch(_DURATION, text.strip(), _FLAGS) if isinstance(text, str) else None
    unit_us = _UNITS.get(match["unit"].lower() or "s") if match else None
    if not match or not unit_us:
        raise ConfigurationError(
            f"duration {text!r} is not a length of time: write it like '90', '90s', '100ms', '15min' or '24h'"
        )
    seconds = _seconds(match["number"], unit_us)
    return -seconds if match["sign"] else seconds


def format_window(seconds: float) -> str:
    """Return a window as the grammar writes it: "min", "15min", "100ms", "0.000001s"."""
    number, (unit, _) = _in_longest_unit(seconds)
    return unit if number == "1" else f"{number}{unit}"


def window_title(seconds: float) -> str:
    """Return a window in the words of people: "minute", "15 minutes", "100 milliseconds"."""
    number, (_, word) = _in_longest_unit(seconds)
    return word if number == "1" else f"{number} {word}s"


def format_seconds(seconds: float) -> str:
    """Return a number of seconds in digits, to the microsecond, without an exponent and without trailing zeros."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def format_fraction(value: float) -> str:
    """Return a fraction in digits without an exponent, so that float() reads the same number back."""
    from decimal import Decimal  # for soft limits only, and slow to load

    return f"{Decimal(repr(value)):f}"


def _options(text: str) -> dict[str, Any] | None:
    """Return the arguments that the words after the unit stand for; None if one is unknown or comes twice."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(text):
        match = re.compile(_OPTION, _FLAGS).match(text, at)
        if not match or not match.lastgroup or match.lastgroup in found:
            return None
        found[match.lastgroup] = _option_value(match.lastgroup, match[match.lastgroup])
        at = match.end()
    return found


def _option_value(name: str, text: str) -> Any:
    if name == "tz":
        return "UTC" if text.upper() == "UTC" else text
    if name == "anchor" and not text.isdecimal():
        return _anchor(text)
    if name == "starts":
        return text.lower()
    if name in ("burst", "anchor"):
        return int(text)
    if name == "soft":
        return float(text)
    return text.lower() if name == "algorithm" else True


def _anchor(text: str) -> Any:
    from datetime import date, datetime

    try:
        return date.fromisoformat(text) if len(text) == len("2026-01-31") else datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"anchor {text!r} is neither a day of a month nor a date such as '2026-01-31'") from None


def _seconds(number: str, unit_us: int) -> float:
    """Return a decimal number of units in seconds, rounded to the microsecond. 9 ms are 0.009 s exactly."""
    whole, _, fraction = number.partition(".")
    millionths = int(whole) * 1_000_000 + int(fraction.ljust(6, "0") or 0)
    return (millionths * unit_us + 500_000) // 1_000_000 / 1_000_000


def _in_longest_unit(seconds: float) -> tuple[str, tuple[str, str]]:
    """Return a window as a number and the longest unit that it is a whole number of; else it is in seconds."""
    us = round(seconds * 1_000_000)
    for written in _WRITTEN if us < _SECOND_US else _WRITTEN[:-1]:
        if us % _UNITS[written[0]] == 0:
            return str(us // _UNITS[written[0]]), written
    return format_seconds(seconds), ("s", "second")
