"""Overrides as lines of JSON, to copy them from one store to another.

A line has the fields of an Override that are set. The end of the override is a time, `expires_at`, so that a copy ends when
the original does.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ratekit.admin.override_hash import NUMBERS, Numbers, Override
from ratekit.core.errors import ConfigurationError

_TEXTS = ("endpoint", "subject", "note", "set_by")
_TIMES = ("set_at", "expires_at")


def override_as_line(override: Override, now: float) -> str:
    """Return an override as one line of JSON."""
    fields = asdict(override)
    del fields["unreadable"], fields["expires_in"]
    if override.expires_in is not None:
        fields["expires_at"] = now + override.expires_in
    fields["limits"] = {name: _given(numbers) for name, numbers in fields["limits"].items()}
    return json.dumps(_given(fields))


def override_from_line(line: str, now: float) -> Override:
    """Return the override of a line of JSON; its expires_in is not above 0 if it has ended.

    Raises ConfigurationError if the line is not that of an override.
    """
    fields = _object("line", _parsed(line))
    numbers, limits = _numbers(fields), _object("limits", fields.pop("limits", {}))
    texts = {name: _checked(name, fields.pop(name, None), str) for name in _TEXTS}
    times = {name: _checked(name, fields.pop(name, None), int | float) for name in _TIMES}
    if fields:
        raise ConfigurationError(f"field {next(iter(fields))!r} is unknown")
    if not texts["endpoint"] or not texts["subject"]:
        raise ConfigurationError("endpoint and subject are missing: they say which override it is")
    ends = times.pop("expires_at")
    named = {name: _named_numbers(name, value) for name, value in limits.items()}
    return Override(**texts, **numbers, **times, limits=named, expires_in=None if ends is None else ends - now)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are set. A maximum of 0 is one: it blocks."""
    return {name: value for name, value in fields.items() if value is not None and value is not False and value != {}}


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{line.strip()[:100]!r} is not JSON") from None


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name} {value!r} is not a JSON object")
    return dict(value)


def _numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """Take the numbers out of the fields of a line. Numbers refuses invalid ones."""
    numbers = {name: fields.pop(name) for name in NUMBERS if name in fields}
    Numbers(**numbers)
    return numbers


def _named_numbers(name: str, value: Any) -> Numbers:
    fields = _object(f"limit {name!r}", value)
    numbers = Numbers(**_numbers(fields))
    if fields:
        raise ConfigurationError(f"field {next(iter(fields))!r} of limit {name!r} is unknown")
    return numbers


def _checked(name: str, value: Any, kind: Any) -> Any:
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ConfigurationError(f"{name} {value!r} is not a {'text' if kind is str else 'number'}")
    return value
