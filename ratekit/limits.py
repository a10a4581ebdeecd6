"""What is allowed: limits and policies."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ratekit.errors import ConfigurationError

MOST_REQUESTS = 10**12
MOST_LIMITS = 50  # of one policy
UNNAMED_POLICY = "route"  # the name of a policy that was made of limits alone: its endpoint tells it from others
LONGEST_WINDOW = 315_576_000.0  # ten years, in seconds
SHORTEST_WINDOW = 1e-6

_UNITS = {
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
}  # fmt: skip
_RATE = r"(\d{1,15}) ?/ ?(\d{1,9})? ?([a-z]+?)(?: burst (\d{1,15}))?( shadow)?"  # compiled on first use
_DURATION = r"(-?\d{1,12}(?:\.\d{1,6})?) ?([a-z]*)"
_NAME = r"[a-z0-9][a-z0-9._-]*"


class Algorithm(StrEnum):
    """How a limit counts."""

    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW_COUNTER = "sliding_window_counter"
    SLIDING_WINDOW_LOG = "sliding_window_log"
    TOKEN_BUCKET = "token_bucket"  # noqa: S105 - not a secret
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Limit:
    """`max_requests` per `window` seconds, by an algorithm.

    burst is the capacity of a token bucket, and makes the limit one. A shadow limit counts and reports, and never
    refuses. An aligned fixed window starts on the clock (every full minute), not at a subject's first request. Between
    soft, a fraction of the maximum, and the maximum, requests are refused with linearly growing probability.
    """

    max_requests: int
    window: float
    algorithm: Algorithm = field(default=Algorithm.FIXED_WINDOW, kw_only=True)
    burst: int | None = field(default=None, kw_only=True)
    name: str = field(default="", kw_only=True)
    shadow: bool = field(default=False, kw_only=True)
    aligned: bool = field(default=False, kw_only=True)
    soft: float | None = field(default=None, kw_only=True)
    _policy: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _refuse_bad_count("max_requests", self.max_requests)
        _refuse_bad_window(self.window)
        object.__setattr__(self, "algorithm", _algorithm(self.algorithm))
        self._check_switches()
        self._check_burst()
        self._check_aligned()
        self._check_soft()
        object.__setattr__(self, "name", self._checked_name())

    @classmethod
    def parse(cls, rate: str) -> Limit:
        """Read a limit such as "20/s", "5000/15min", "100/s burst 200" or "60/min shadow"; the whole string has to match."""
        match = re.fullmatch(_RATE, rate, re.ASCII) if isinstance(rate, str) else None
        unit = _UNITS.get(match[3]) if match else None
        if not match or not unit:
            raise ConfigurationError(
                f"rate {rate!r} is not a limit: write it like '20/s', '5000/15min', '100/s burst 200' or '60/min shadow'"
            )
        burst = int(match[4]) if match[4] else None
        return cls(int(match[1]), float(int(match[2] or 1) * unit), burst=burst, shadow=match[5] is not None)

    @property
    def capacity(self) -> int:
        """What can be spent at once: the burst of a token bucket, else max_requests."""
        return self.burst if self.burst is not None else self.max_requests

    @property
    def window_us(self) -> int:
        """The window in microseconds."""
        return round(self.window * 1_000_000)

    def _check_burst(self) -> None:
        if self.burst is None:
            return
        _refuse_bad_count("burst", self.burst)
        if self.algorithm is Algorithm.FIXED_WINDOW:
            object.__setattr__(self, "algorithm", Algorithm.TOKEN_BUCKET)
        elif self.algorithm is not Algorithm.TOKEN_BUCKET:
            raise ConfigurationError(f"burst {self.burst} needs a token_bucket, not algorithm {str(self.algorithm)!r}")

    def _check_aligned(self) -> None:
        if self.aligned and self.algorithm is not Algorithm.FIXED_WINDOW:
            raise ConfigurationError(f"aligned True needs a fixed_window, not algorithm {str(self.algorithm)!r}")

    def _check_soft(self) -> None:
        if self.soft is not None and (not isinstance(self.soft, float) or not 0 < self.soft < 1):
            raise ConfigurationError(f"soft {self.soft!r} is not a fraction between 0 and 1")

    def _check_switches(self) -> None:
        for name, value in (("shadow", self.shadow), ("aligned", self.aligned)):
            if not isinstance(value, bool):
                raise ConfigurationError(f"{name} {value!r} is neither True nor False")

    def _checked_name(self) -> str:
        return check_name(self.name or plain_seconds(self.window) + ("s-shadow" if self.shadow else "s"))


@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """A named set of limits that are decided together: a request refused by one of them spends from none."""

    name: str
    limits: tuple[Limit, ...]
    has_slots: bool = field(init=False, repr=False, compare=False)  # whether a limit counts concurrent slots
    _compiled: Any = field(default=None, init=False, repr=False, compare=False)

    def __init__(self, name: str, limits: Iterable[Limit | str] | Limit | str) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"name {name!r} of a policy is not a text with something in it")
        if not isinstance(limits, Iterable | Limit):
            raise ConfigurationError(f"limits {limits!r} of policy {name!r} are neither a limit, nor a rate, nor several")
        given = [limits] if isinstance(limits, Limit | str) else list(limits)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "limits", tuple(as_limit(limit) for limit in given))
        object.__setattr__(self, "has_slots", any(limit.algorithm is Algorithm.CONCURRENCY for limit in self.limits))
        object.__setattr__(self, "_compiled", None)
        self._check_limits()

    def _check_limits(self) -> None:
        if not 1 <= len(self.limits) <= MOST_LIMITS:
            raise ConfigurationError(f"policy {self.name!r} has {len(self.limits)} limits: give it 1 to {MOST_LIMITS}")
        seen: set[str] = set()
        for limit in self.limits:
            if limit.name in seen:
                raise ConfigurationError(
                    f"name {limit.name!r} stands twice in policy {self.name!r}: give each limit a name of its own"
                )
            seen.add(limit.name)


def check_name(name: str) -> str:
    """Return the name of a limit as it is, or raise ConfigurationError if no limit can have it."""
    if not isinstance(name, str) or not re.fullmatch(_NAME, name, re.ASCII):
        raise ConfigurationError(f"name {name!r} is not a limit's name: lower-case letters, digits, '.', '-' and '_'")
    return name


def parse_seconds(text: str) -> float:
    """Read a length of time such as "90", "90s", "15min" or "24h"; the whole string has to match."""
    match = re.fullmatch(_DURATION, text, re.ASCII) if isinstance(text, str) else None
    unit = _UNITS.get(match[2] or "s") if match else None
    if not match or not unit:
        raise ConfigurationError(f"duration {text!r} is not a length of time: write it like '90', '90s', '15min' or '24h'")
    return float(match[1]) * unit


def plain_seconds(seconds: float) -> str:
    """Return a number of seconds as digits, with no exponent and no more of them than it needs."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def as_limit(value: Limit | str) -> Limit:
    """Return a limit as it is, or parse a rate."""
    return value if isinstance(value, Limit) else Limit.parse(value)


def _refuse_bad_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(f"{name} {value!r} is not a whole number")
    if not 1 <= value <= MOST_REQUESTS:
        raise ConfigurationError(f"{name} {value!r} is not between 1 and {MOST_REQUESTS}")


def _refuse_bad_window(value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigurationError(f"window {value!r} is not a finite number of seconds")
    if not SHORTEST_WINDOW <= value <= LONGEST_WINDOW:
        raise ConfigurationError(f"window {value!r} is not between {SHORTEST_WINDOW:f} and {LONGEST_WINDOW:.0f} seconds")


def _algorithm(value: str) -> Algorithm:
    try:
        return Algorithm(value)
    except ValueError:
        known = ", ".join(Algorithm)
        raise ConfigurationError(f"algorithm {value!r} is unknown: it is one of {known}") from None
