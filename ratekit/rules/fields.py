"""The types of the fields of a document that a type of Python cannot say alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import MOST_REQUESTS
from ratekit.rules.identities import NAMED, Part, read_part
from ratekit.rules.problems import fault, shown
from ratekit.web.charging import charging_of
from ratekit.web.methods import checked_method
from ratekit.web.patterns import Pattern

MOST_KEY = 1024  # characters of a name, or of a key of custom limits
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_NEVER_IN_PATHS = re.compile(r"[?#]|%[0-9A-Fa-f]{2}|(?<=/)\.\.?(?=/|$)")
_SEVERAL = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_or_all(value: tuple[str, ...]) -> Any:
    return value[0] if len(value) == 1 else list(value)


def _checked(check: Callable[[str], str]) -> Callable[[Any], str]:
    def validate(value: Any) -> str:
        if not isinstance(value, str):
            raise fault(f"{shown(value)} is not a text")
        try:
            return check(value)
        except ConfigurationError as error:
            raise fault(str(error)) from None

    return validate


def _moment(value: Any) -> datetime:
    """Return a point in time. One without a zone is in UTC, as databases keep them."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise fault(f"{shown(value)} is not a time: write it like '2026-11-18T09:00:00Z'") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise fault(f"{shown(value)} is not a time: write it like '2026-11-18T09:00:00Z'")
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise fault(f"{shown(value.isoformat())} is not between the years 1 and 9999 in UTC") from None


@dataclass(frozen=True, slots=True)
class ByUnit:
    """A cost for each of some units."""

    costs: tuple[tuple[str, int | Part], ...]


def _cost(value: Any) -> int | Part | ByUnit:
    if isinstance(value, ByUnit):
        return value
    if isinstance(value, Mapping):
        if not value or not all(isinstance(unit, str) and unit for unit in value):
            raise fault(f"{shown(value)} is not a cost by unit: write it like {{tokens: json:max_tokens, requests: 1}}")
        return ByUnit(tuple((unit, _one_cost(one, unit)) for unit, one in value.items()))
    return _one_cost(value)


def _one_cost(value: Any, *place: str) -> int | Part:
    if type(value) is int:
        if not 0 <= value <= MOST_REQUESTS:
            raise fault(f"{value} is not between 0 and {MOST_REQUESTS}", *place)
        return value
    kind = value.partition(":")[0] if isinstance(value, str) else None
    if not isinstance(value, Part) and kind not in NAMED:
        known = "a whole number, or where the request says one, like 'json:size'"
        raise fault(f"{shown(value)} is not a cost: it is {known}", *place)
    return value if isinstance(value, Part) else read_part(value, *place)


def parts_of_cost(cost: int | Part | ByUnit | None) -> list[Part]:
    """Return where a request says what it costs."""
    costs = [one for _, one in cost.costs] if isinstance(cost, ByUnit) else [cost]
    return [one for one in costs if isinstance(one, Part)]


def _written_cost(cost: int | Part | ByUnit) -> Any:
    if isinstance(cost, ByUnit):
        return {unit: _written_cost(one) for unit, one in cost.costs}
    return cost if isinstance(cost, int) else str(cost)


def _charging(name: str, hint: Mapping[str, Any]) -> Any:
    """Return the type of a field that fronts take as an argument of the same name, and check as they do."""

    def validate(value: Any) -> Any:
        given = tuple(value) if isinstance(value, list) else value
        try:
            charging_of({name: given})
        except ConfigurationError as error:
            raise fault(str(error)) from None
        return given

    return Annotated[
        Any,
        PlainValidator(validate),
        PlainSerializer(lambda value: list(value) if isinstance(value, tuple) else value, return_type=Any),
        WithJsonSchema(dict(hint)),
    ]


def _anchor(value: Any) -> int | date:
    day = value
    if isinstance(value, str):
        with suppress(ValueError):
            day = date.fromisoformat(value)
    if type(day) is date or (type(day) is int and 1 <= day <= 31):
        return day
    raise fault(f"{shown(value)} is neither a day of 1 to 31 nor a date like '2026-11-18'")


def integral(value: Any) -> Any:
    """Return a float without a fraction as a whole number: some databases, and 1e6 in YAML, know no other numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_host(text: str) -> str:
    """Return a host. Its port does not matter, and names in other scripts are sent in their ASCII form."""
    if not _HOST.fullmatch(text):
        raise ConfigurationError(
            f"{shown(text)} is not a host: write it like 'api.example.com' or '*.example.com', in ASCII and without a port"
        )
    return text


def _check_path(text: str) -> str:
    """Return a pattern of paths. A slash at its end does not matter, as it does not in paths."""
    if wrong := _NEVER_IN_PATHS.search(text):
        raise ConfigurationError(
            f"{shown(text)} has {wrong[0]!r}, and matches no request: paths are compared decoded, without a query, "
            "and without '.' and '..'"
        )
    return Pattern(text if text == "/" else text.removesuffix("/")).text


def _check_method(text: str) -> str:
    return checked_method(text, "the field")


NonEmpty = Annotated[str, Field(min_length=1, max_length=MOST_KEY)]
_OneOrSeveral = (
    BeforeValidator(_as_list),
    PlainSerializer(_one_or_all, return_type=Any),
    WithJsonSchema(_SEVERAL),
)
Texts = Annotated[tuple[NonEmpty, ...], Field(min_length=1, strict=False), *_OneOrSeveral]
Hosts = Annotated[
    tuple[Annotated[str, PlainValidator(_checked(_check_host))], ...], Field(min_length=1, strict=False), *_OneOrSeveral
]
Methods = Annotated[
    tuple[Annotated[str, PlainValidator(_checked(_check_method))], ...],
    Field(min_length=1, strict=False),
    *_OneOrSeveral,
]
PathField = Annotated[str, PlainValidator(_checked(_check_path)), WithJsonSchema({"type": "string", "pattern": "^/"})]
Moment = Annotated[
    datetime,
    PlainValidator(_moment),
    PlainSerializer(lambda value: value.isoformat(), return_type=str),
    WithJsonSchema({"type": "string", "examples": ["2026-11-18T09:00:00Z"]}),
]
_ONE_COST = [{"type": "integer", "minimum": 0, "maximum": MOST_REQUESTS}, {"type": "string"}]
CostField = Annotated[
    int | Part | ByUnit,
    PlainValidator(_cost),
    PlainSerializer(_written_cost, return_type=Any),
    WithJsonSchema(
        {"anyOf": [*_ONE_COST, {"type": "object", "additionalProperties": {"anyOf": _ONE_COST}, "minProperties": 1}]}
    ),
]
_STATUS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 100, "maximum": 599},
    {"type": "string", "pattern": "^[1-5]([xX][xX]|[0-9][0-9])$"},
]
_STATUSES = {"anyOf": [*_STATUS, {"type": "array", "items": {"anyOf": _STATUS}, "minItems": 1}]}
CountField = _charging("count", _STATUSES)
ResetField = _charging("reset_when", _STATUSES)
ActualField = _charging("actual", {"type": "string", "pattern": "^header:."})
ShareField = _charging("share", {"type": "number", "exclusiveMinimum": 0, "maximum": 1})
AnchorField = Annotated[
    int | date,
    PlainValidator(_anchor),
    PlainSerializer(lambda value: value if isinstance(value, int) else value.isoformat(), return_type=Any),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 31}, {"type": "string", "format": "date"}]}),
]
