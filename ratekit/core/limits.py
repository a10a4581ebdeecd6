"""Limits and policies: the values that say how many requests are allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from ratekit.core import limit_text
from ratekit.core.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import date

    from ratekit.core.calendars import Calendar
else:
    Calendar = Any  # for those who read the hints while a program runs: calendars are loaded only where there are some

MOST_REQUESTS = 10**12
MOST_LIMITS = 50  # of one policy
UNNAMED_POLICY = "route"  # the name of a policy that was made of limits alone: its endpoint tells it from others
LONGEST_WINDOW = 315_576_000.0  # ten years, in seconds
SHORTEST_WINDOW = 1e-6

REQUESTS = "requests"  # the unit of a limit that says none
_NAME = r"[a-z0-9][a-z0-9._-]*"
_UNIT = r"[a-z][a-z0-9_-]{0,63}"
_TITLE = r"[ !#-\[\]-~]{1,100}"  # fits between the quotes of a structured header


class Algorithm(StrEnum):
    """How a limit counts."""

    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW_COUNTER = "sliding_window_counter"
    SLIDING_WINDOW_LOG = "sliding_window_log"
    TOKEN_BUCKET = "token_bucket"  # noqa: S105 - not a secret
    CONCURRENCY = "concurrency"


AlgorithmName = Literal["fixed_window", "sliding_window_counter", "sliding_window_log", "token_bucket", "concurrency"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: `max_requests` per `window` seconds, counted by an algorithm.

    - window: seconds; or a Calendar, whose periods are the windows
    - unit: what is counted, "requests" by default; a check says what it costs of any other unit
    - burst: the capacity of a token bucket; a limit with a burst is a token bucket
    - name: part of the keys of its counters, and of the fields of its overrides; by default its window, such as "60s", and
      its unit before that, such as "tokens-60s"
    - shadow: counts and reports, and never refuses
    - aligned: a fixed window starts on the clock (every full minute), not at a subject's first request
    - soft: a fraction of the maximum, from which on requests are refused with linearly growing probability
    """

    max_requests: int
    window: float
    algorithm: Algorithm = field(default=Algorithm.FIXED_WINDOW, kw_only=True)
    burst: int | None = field(default=None, kw_only=True)
    name: str = field(default="", kw_only=True)
    shadow: bool = field(default=False, kw_only=True)
    aligned: bool = field(default=False, kw_only=True)
    soft: float | None = field(default=None, kw_only=True)
    unit: str = field(default=REQUESTS, kw_only=True)
    calendar: Calendar | None = field(default=None, kw_only=True)
    # Not for users: whether max_requests may be 0, as in the text "0/s", and a title in place of the window's.
    _blocking: bool = field(default=False, kw_only=True, repr=False, compare=False)
    _title: str = field(default="", kw_only=True, repr=False)
    _policy: Any = field(default=None, init=False, repr=False, compare=False)

    if TYPE_CHECKING:  # the name of an algorithm is taken too; it is an Algorithm when the limit is made

        def __init__(
            self,
            max_requests: int,
            window: float | Calendar,
            *,
            algorithm: Algorithm | AlgorithmName = ...,
            burst: int | None = ...,
            name: str = ...,
            shadow: bool = ...,
            aligned: bool = ...,
            soft: float | None = ...,
            unit: str = ...,
            calendar: Calendar | None = ...,
            _blocking: bool = ...,
            _title: str = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        self._check_max_requests()
        self._set_calendar()
        _refuse_bad_window(self.window)
        object.__setattr__(self, "algorithm", _algorithm(self.algorithm))
        self._check_switches()
        self._check_burst()
        self._check_aligned()
        self._check_soft()
        self._check_unit()
        object.__setattr__(self, "name", check_name(self.name or self._default_name))

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Return the limit that a text stands for: "20/s", "100 per hour", "daily=1000/day", "100/s burst 200 shadow".

        The whole text has to match, or ConfigurationError is raised. "0/s" blocks everybody. str() is the opposite.
        """
        fields = limit_text.limit_fields(text)
        try:
            return cls(**fields, _blocking=fields["max_requests"] == 0)
        except ConfigurationError as error:
            raise ConfigurationError(f"rate {text!r} is not a limit: {error}") from None

    def __str__(self) -> str:
        name = "" if self.name == self._default_name else f"{self.name}="
        is_implied = self.algorithm is Algorithm.FIXED_WINDOW or self.burst is not None
        unit = "" if self.unit == REQUESTS else f" {self.unit}"
        words = [f"{name}{self.max_requests}{unit}/{self._window_text}"]
        words[0] += "" if is_implied else f"@{self.algorithm}"
        words += [f"burst {self.burst}"] if self.burst is not None else []
        words += [f"soft {limit_text.format_fraction(self.soft)}"] if self.soft is not None else []
        words += ["aligned"] if self.aligned else []
        return " ".join([*words, "shadow"] if self.shadow else words)

    @property
    def title(self) -> str:
        """What clients and people are shown in place of the name: "minute" for "60s", "post minute" for "post-60s".

        A name that was given is its own title. Keys and overrides go by the name, never by the title.
        """
        window = f"{limit_text.format_seconds(self.window)}s"
        before, found, after = f"-{self.name}-".rpartition(f"-{window}-")
        if self._title or not found:
            return self._title or self.name
        return " ".join(word for word in (before[1:], limit_text.window_title(self.window), after[:-1]) if word)

    def with_title(self, title: str) -> Limit:
        """Return the same limit, under the same keys, that clients and people are shown by another title."""
        if not isinstance(title, str) or not re.fullmatch(_TITLE, title, re.ASCII):
            raise ConfigurationError(f"title {title!r} is not 1 to 100 printable ASCII characters without '\"' and '\\'")
        return replace(self, _title=title)

    @property
    def capacity(self) -> int:
        """What can be spent at once: the burst of a token bucket, else max_requests."""
        return self.burst if self.burst is not None else self.max_requests

    @property
    def refill_seconds(self) -> float:
        """How long it takes until all of the capacity is there again: the window, or the time to fill a token bucket."""
        return self.window if self.burst is None else self.window * self.burst / self.max_requests

    @property
    def window_us(self) -> int:
        """The window in microseconds."""
        return round(self.window * 1_000_000)

    @property
    def _window_text(self) -> str:
        return limit_text.format_window(self.window) if self.calendar is None else str(self.calendar)

    @property
    def _default_name(self) -> str:
        window = f"{limit_text.format_seconds(self.window)}s" if self.calendar is None else self.calendar.period
        unit = "" if self.unit == REQUESTS else f"{self.unit}-"
        return f"{unit}{window}-shadow" if self.shadow else f"{unit}{window}"

    def _set_calendar(self) -> None:
        """Take a calendar in place of the window; the window is then the length that no period exceeds."""
        if self.calendar is None and not isinstance(self.window, int | float):
            from ratekit.core.calendars import Calendar  # few limits have one, and it is slow to load

            object.__setattr__(self, "calendar", self.window if isinstance(self.window, Calendar) else None)
        if self.calendar is None:
            return
        object.__setattr__(self, "window", self.calendar.longest)
        if self.algorithm != Algorithm.FIXED_WINDOW or self.aligned or self.burst is not None:
            raise ConfigurationError(f"calendar {self.calendar} needs a fixed_window without burst and without aligned")

    def _check_max_requests(self) -> None:
        if self.max_requests == 0 and type(self.max_requests) is int and not self._blocking:
            raise ConfigurationError("max_requests 0 would block everybody: if that is meant, write the limit as '0/s'")
        _refuse_bad_count("max_requests", self.max_requests, least=0 if self._blocking else 1)

    def _check_burst(self) -> None:
        if self.burst is None:
            return
        _refuse_bad_count("burst", self.burst)
        if self.max_requests == 0:
            raise ConfigurationError(f"burst {self.burst} makes no sense where max_requests is 0: nothing would refill it")
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

    def _check_unit(self) -> None:
        if check_unit(self.unit) != REQUESTS and self.algorithm is Algorithm.CONCURRENCY:
            raise ConfigurationError(
                f"unit {self.unit!r} makes no sense with algorithm 'concurrency': each request holds one slot, at any cost"
            )

    def _check_switches(self) -> None:
        for name, value in (("shadow", self.shadow), ("aligned", self.aligned)):
            if not isinstance(value, bool):
                raise ConfigurationError(f"{name} {value!r} is neither True nor False")


@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """A named set of limits that are decided together: a request refused by one of them spends from none."""

    name: str
    limits: tuple[Limit, ...]
    has_slots: bool = field(init=False, repr=False, compare=False)  # whether a limit counts concurrent slots
    _compiled: Any = field(default=None, init=False, repr=False, compare=False)
    _current: Any = field(default=None, init=False, repr=False, compare=False)  # compiled for this time of its calendars

    def __init__(self, name: str, limits: Iterable[Limit | str] | Limit | str) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"name {name!r} of a policy is not a non-empty text")
        if not isinstance(limits, Iterable | Limit):
            raise ConfigurationError(f"limits {limits!r} of policy {name!r} are neither a limit, nor a rate, nor several")
        given = [limits] if isinstance(limits, Limit | str) else limits
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "limits", tuple(limit for item in given for limit in as_limits(item)))
        object.__setattr__(self, "has_slots", any(limit.algorithm is Algorithm.CONCURRENCY for limit in self.limits))
        object.__setattr__(self, "_compiled", None)
        object.__setattr__(self, "_current", None)
        self._check_limits()

    @property
    def units(self) -> tuple[str, ...]:
        """The units that its limits count, each once, in order."""
        return tuple(dict.fromkeys(limit.unit for limit in self.limits))

    def anchored(self, anchor: int | date | None) -> Policy:
        """Return the same policy, under the same keys, whose calendars have another anchor. None returns this one."""
        if anchor is None:
            return self
        if not isinstance(anchor, Hashable):
            raise ConfigurationError(f"anchor {anchor!r} is not a day of a month between 1 and 31, a date or a datetime")
        return _anchored(self, anchor)

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


def check_unit(unit: str) -> str:
    """Return the name of a unit as it is, or raise ConfigurationError if no limit can count it."""
    if not isinstance(unit, str) or not re.fullmatch(_UNIT, unit, re.ASCII) or unit == "per":
        raise ConfigurationError(f"unit {unit!r} is not a unit's name: lower-case letters, digits, '-' and '_'")
    return unit


@lru_cache(maxsize=4096, typed=True)  # 31.0 is no day, although it equals one
def _anchored(policy: Policy, anchor: int | date) -> Policy:
    if all(limit.calendar is None for limit in policy.limits):
        raise ConfigurationError(f"anchor {anchor} makes no sense for policy {policy.name!r}: no limit has a calendar")
    if isinstance(anchor, int) and (isinstance(anchor, bool) or not 1 <= anchor <= 31):
        raise ConfigurationError(f"anchor {anchor!r} is not a day of a month between 1 and 31, a date or a datetime")
    return Policy(policy.name, [_with_anchor(limit, anchor) for limit in policy.limits])


def _with_anchor(limit: Limit, anchor: int | date) -> Limit:
    """Return a limit with another anchor. The day of a month is one for months only."""
    calendar = limit.calendar
    if calendar is None or (isinstance(anchor, int) and calendar.period != "month"):
        return limit
    return replace(limit, calendar=calendar.anchored(anchor))


def as_limits(value: Limit | str) -> list[Limit]:
    """Return the limits that a value stands for: a Limit, or the text of one limit or of several ("20/s; 1000/h")."""
    if isinstance(value, Limit):
        return [value]
    texts = limit_text.split_limits(value) if isinstance(value, str) else [value]
    if len(texts) == 1:
        return [Limit.parse(value)]
    try:
        return [Limit.parse(text) for text in texts]
    except ConfigurationError as error:
        raise ConfigurationError(f"limits {value!r}: {error}") from None


def _refuse_bad_count(name: str, value: object, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigurationError(f"{name} {value!r} is not a whole number")
    if not least <= value <= MOST_REQUESTS:
        raise ConfigurationError(f"{name} {value!r} is not between {least} and {MOST_REQUESTS}")


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
