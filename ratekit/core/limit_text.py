"""The grammar of limits and durations as text: one for Python, the command line, rules and settings.

    [NAME=]COUNT/[NUMBER]UNIT[@ALGORITHM] [burst COUNT] [soft FRACTION] [aligned] [shadow]

"COUNT per UNIT" says the same as "COUNT/UNIT". Upper case and outer spaces do not matter. Several limits are separated by
";" or ",". docs/algorithms.md explains it to users.
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
    r"(?:(?P<name>[\w.-]+)\s*=\s*)?(?P<count>\d{1,15})(?:\s*/\s*|\s+per\s+)"
    rf"(?:(?P<number>{_NUMBER})\s*)?(?P<unit>[a-z]+)(?P<options>[\s@].*)?"
)
_OPTION = (
    r"(?:\s*@\s*(?P<algorithm>[a-z_]+)|\s+burst\s+(?P<burst>\d{1,15})|\s+soft\s+(?P<soft>\d?\.\d+)"
    r"|\s+(?P<aligned>aligned)|\s+(?P<shadow>shadow))(?=[\s@]|$)"
)
_DURATION = rf"(?P<sign>-?)(?P<number>{_NUMBER})\s*(?P<unit>[a-z]*)"
_FLAGS = re.ASCII | re.IGNORECASE | re.DOTALL


def limit_fields(text: str) -> dict[str, Any]:
    """Return the arguments of Limit that a text stands for. Raises ConfigurationError if it is not a limit."""
    match = re.fullmatch(_LIMIT, text.strip(), _FLAGS) if isinstance(text, str) else None
    unit_us = _UNITS.get(match["unit"].lower()) if match else None
    options = _options(match["options"] or "") if match else None
    if not match or not unit_us or options is None:
        raise ConfigurationError(
            f"rate {text!r} is not a limit: write it like '20/s', '100 per hour', '5000/15min', '100/s burst 200' or "
            "'60/min shadow', with the units ms, s, min, h, day and week"
        )
    named = {"name": match["name"]} if match["name"] else {}
    return {"max_requests": int(match["count"]), "window": _seconds(match["number"] or "1", unit_us)} | named | options


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


def _option_value(name: str, text: str) -> str | int | float | bool:
    if name == "burst":
        return int(text)
    if name == "soft":
        return float(text)
    return text.lower() if name == "algorithm" else True


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
