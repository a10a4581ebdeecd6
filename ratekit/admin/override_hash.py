"""The fields of an override's hash: values, and pure functions that write and parse them.

max_requests, expiry, burst, unlimited, until            for the policy's first limit
<limit>.max_requests, <limit>.expiry, …                  for the limit of that name
note, set_by, set_at                                     for people; the script ignores them
endpoint, subject                                        only if that part of the key is hashed and cannot be parsed
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import OverrideKey
from ratekit.core.limit_text import format_seconds
from ratekit.core.limits import LONGEST_WINDOW, MOST_REQUESTS, SHORTEST_WINDOW, check_name

LONGEST_TTL = 3_155_760_000.0  # a hundred years, in seconds
LONGEST_NOTE = 500  # characters; each check of the subject reads the hash
LATEST = 253_402_300_799.0  # the end of the year 9999, in seconds since the epoch
NUMBERS = ("max_requests", "expiry", "burst", "until", "unlimited")
_WHOLE = re.compile(r"\d{1,32}", re.ASCII)
_DECIMAL = re.compile(r"\d+\.?\d*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that replace those of one limit. None keeps the limit's own. expiry is the window, in seconds.

    until, in seconds since the epoch, is when the limit stops to refuse everything.
    """

    max_requests: int | None = None
    expiry: float | None = None
    burst: int | None = None
    unlimited: bool = False
    until: float | None = None

    def __post_init__(self) -> None:
        _refuse_bad_count("max_requests", self.max_requests, least=0)
        _refuse_bad_count("burst", self.burst, least=1)
        _refuse_bad_seconds("expiry", self.expiry, SHORTEST_WINDOW, LONGEST_WINDOW)
        _refuse_bad_seconds("until", self.until, 0, LATEST)
        if not isinstance(self.unlimited, bool):
            raise ConfigurationError(f"unlimited {self.unlimited!r} is neither True nor False")

    def check_given(self) -> Numbers:
        """Return the numbers unchanged. Raises ConfigurationError if there are none, or if they contradict each other."""
        given = [name for name in NUMBERS[:-1] if getattr(self, name) is not None]
        if not given and not self.unlimited:
            raise ConfigurationError("the override has no numbers: give max_requests, expiry, burst, until or unlimited")
        if given and self.unlimited:
            raise ConfigurationError(f"unlimited True contradicts {given[0]}: give only one of them")
        return self

    def as_fields(self, limit: str | None) -> dict[str, str]:
        """Return the fields of the hash for the limit of that name; None is the policy's first."""
        values = {
            "max_requests": self.max_requests,
            "expiry": None if self.expiry is None else format_seconds(self.expiry),
            "burst": self.burst,
            "until": None if self.until is None else format_seconds(self.until),
            "unlimited": 1 if self.unlimited else None,
        }
        return {field_name(name, limit): str(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Override:
    """A subject's override on an endpoint, as stored.

    Its own numbers are for the policy's first limit; `limits` has the numbers of limits by name. Times are in seconds, and
    set_at is since the epoch. `unreadable` names the invalid fields, which the script ignores.
    """

    endpoint: str | None  # None: it is hashed in the key, and missing in the hash
    subject: str | None
    max_requests: int | None = None
    expiry: float | None = None
    burst: int | None = None
    unlimited: bool = False
    limits: Mapping[str, Numbers] = field(default_factory=dict)
    note: str | None = None
    set_by: str | None = None
    set_at: float | None = None
    expires_in: float | None = None  # None: never
    unreadable: tuple[str, ...] = ()
    until: float | None = None

    @property
    def org_id(self) -> str | None:
        """The id of the organisation; None if the subject does not have the form of a project."""
        project = OverrideKey(self.endpoint, self.subject).project
        return project[0] if project else None

    @property
    def project_id(self) -> str | None:
        """The id of the project; None if the subject does not have the form of a project."""
        project = OverrideKey(self.endpoint, self.subject).project
        return project[1] if project else None

    @property
    def numbers(self) -> Numbers:
        """Its own numbers, which are for the policy's first limit."""
        return Numbers(self.max_requests, self.expiry, self.burst, self.unlimited, self.until)

    def as_fields(self) -> dict[str, str]:
        """Return the fields of the hash, without those that keep hashed parts of the key."""
        fields = self.numbers.as_fields(None)
        for name, numbers in self.limits.items():
            fields |= numbers.as_fields(name)
        if not fields:
            raise ConfigurationError(f"the override of {self.subject!r} on {self.endpoint!r} has no numbers")
        return fields | remarks(self.note, self.set_by, self.set_at)


def field_name(name: str, limit: str | None) -> str:
    """Return the name of a number's field, for the limit of that name; None is the policy's first."""
    return name if limit is None else f"{check_name(limit)}.{name}"


def remarks(note: str | None, set_by: str | None, set_at: float | None) -> dict[str, str]:
    """Return the fields that are for people."""
    fields = {} if set_at is None else {"set_at": format_seconds(set_at)}
    for name, text in (("note", note), ("set_by", set_by)):
        if text is not None:
            fields[name] = _checked_text(name, text)
    return fields


def as_epoch(until: datetime | float | None) -> float | None:
    """Return an end as seconds since the epoch. Raises ConfigurationError for a datetime without a time zone."""
    if not isinstance(until, datetime):
        return until
    if until.tzinfo is None:
        raise ConfigurationError(f"until {until!r} has no time zone: nobody can tell when that is")
    return until.timestamp()


def ttl_ms(override_ttl: float | None) -> int:
    """Return an override's time to live in milliseconds, rounded up; -1 for never."""
    _refuse_bad_seconds("override_ttl", override_ttl, 0.001, LONGEST_TTL)
    return -1 if override_ttl is None else math.ceil(override_ttl * 1000)


def parse_override(key: OverrideKey, fields: Mapping[str, str], expires_in: float | None) -> Override:
    """Return the override that the fields of its hash stand for."""
    given: dict[str | None, dict[str, Any]] = {None: {}}
    unreadable = []
    for name, text in fields.items():
        limit, dot, number = name.rpartition(".")
        if number not in NUMBERS:
            continue
        value = _parse_number(number, text)
        if value is None:
            unreadable.append(name)
        else:
            given.setdefault(limit if dot else None, {})[number] = value
    return Override(
        endpoint=fields.get("endpoint") if key.endpoint is None else key.endpoint,
        subject=fields.get("subject") if key.subject is None else key.subject,
        **given.pop(None),
        limits={str(limit): Numbers(**numbers) for limit, numbers in sorted(given.items(), key=str)},
        note=fields.get("note"),
        set_by=fields.get("set_by"),
        set_at=float(fields["set_at"]) if _DECIMAL.fullmatch(fields.get("set_at", "")) else None,
        expires_in=expires_in,
        unreadable=tuple(unreadable),
    )


def _parse_number(name: str, text: str) -> int | float | bool | None:
    """Return the number in a field, as the script parses it; None if it is invalid."""
    is_decimal = name in ("expiry", "until")
    if not (_DECIMAL if is_decimal else _WHOLE).fullmatch(text) or len(text) > 32:
        return None
    value = float(text) if is_decimal else int(text)
    try:
        Numbers(**{name: value == 1 if name == "unlimited" and value < 2 else value})  # type: ignore[arg-type]
    except ConfigurationError:
        return None
    return value == 1 if name == "unlimited" else value


def _refuse_bad_count(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_REQUESTS:
        raise ConfigurationError(f"{name} {value!r} is not a whole number between {least} and {MOST_REQUESTS}")


def _refuse_bad_seconds(name: str, value: object, least: float, most: float) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        bounds = f"{format_seconds(least)} and {format_seconds(most)}"
        raise ConfigurationError(f"{name} {value!r} is not a number of seconds between {bounds}")


def _checked_text(name: str, text: str) -> str:
    if not isinstance(text, str) or not text or not text.isprintable() or len(text) > LONGEST_NOTE:
        raise ConfigurationError(f"{name} {text!r} is not a printable text of 1 to {LONGEST_NOTE} characters")
    return text
