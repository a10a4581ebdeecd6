"""The limits that a document gives, in each of the ways in which it may write them.

- "20/s; 1000/h": the grammar of ratekit.core.limit_text
- ["20/s", {"max_requests": 5, "window": "15min"}]: several
- {"max_requests": 20, "window": "15min", "algorithm": "token_bucket"}: the arguments of Limit
- {"rps": 20, "rpm": 1000, "rph": 50000, "rpd": 100000}: by the second, the minute, the hour and the day
- {"plan": "pro"}: those of a plan of the document
- "plan": those of the plan of the document that the application's plan_of names
- "unlimited": none
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    create_model,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, ValidationError

from ratekit.core import limit_text
from ratekit.core.cache import Cache
from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import MOST_LIMITS, MOST_REQUESTS, AlgorithmName, Limit, as_limits
from ratekit.rules.fields import integral
from ratekit.rules.problems import fault, place_text, shown
from ratekit.web.plans import PLAN

UNLIMITED = "unlimited"
WINDOWS = {"rps": "s", "rpm": "min", "rph": "h", "rpd": "day"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a document: some of its own, those of a plan, or, with neither, none at all.

    is_by_plan: the application's plan_of is asked for the plan.
    """

    own: tuple[Limit, ...] = ()
    plan: str | None = None
    is_by_plan: bool = False

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited."""
        return not self.own and self.plan is None and not self.is_by_plan

    def written(self) -> Any:
        """Return the limits as a document writes them."""
        if self.is_by_plan:
            return PLAN
        if self.plan is not None:
            return {"plan": self.plan}
        return [str(limit) for limit in self.own] if self.own else UNLIMITED


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


_Most = Annotated[int, Field(ge=0, le=MOST_REQUESTS), BeforeValidator(integral)]
# What JSON Schema and pydantic are to know of the fields of Limit. A field that Limit gets later needs no line here.
_KNOWN: dict[str, Any] = {
    "max_requests": (_Most, ...),
    "window": (float | str, Field(description="seconds, a duration: '15min', or a calendar: 'month Europe/Berlin'")),
    "algorithm": (AlgorithmName, "fixed_window"),
    "burst": (int | None, Field(None, ge=1, le=MOST_REQUESTS)),
    "soft": (float | None, Field(None, gt=0, lt=1)),
}
_BY_WINDOW = "calendar"  # a document writes it as the window


def _fields_of_limit() -> dict[str, Any]:
    hints = get_type_hints(Limit)
    public = [field for field in fields(Limit) if not field.name.startswith("_") and field.name != _BY_WINDOW]
    return {field.name: _KNOWN.get(field.name) or (hints[field.name], field.default) for field in public}


LimitObject = create_model("LimitObject", __base__=_Strict, **_fields_of_limit())
LimitObject.__doc__ = "One limit, by the arguments of ratekit.Limit."


class Windows(_Strict):
    """How many requests a second, a minute, an hour and a day."""

    rps: _Most | None = None
    rpm: _Most | None = None
    rph: _Most | None = None
    rpd: _Most | None = None


class PlanName(_Strict):
    """The limits of a plan of the document."""

    plan: str = Field(min_length=1)


def read_limits(value: Any) -> Limits:
    """Return the limits that a value of a document stands for."""
    if isinstance(value, Limits):
        return value
    if isinstance(value, str):
        return _WORDS.get(value) or _of_text(value)
    if isinstance(value, Mapping) and "plan" in value:
        return Limits(plan=_validated(PlanName, value).plan)
    if isinstance(value, list | tuple):
        own = tuple(limit for index, item in enumerate(value) for limit in _one(item, index))
    else:
        own = tuple(_one(value))
    return _checked(own)


_WORDS = {UNLIMITED: Limits(), PLAN: Limits(is_by_plan=True)}
_texts: Cache[str, Limits] = Cache(lambda text: _checked(tuple(_one(text))), 4096, lambda text, _: len(text) <= 200)


def _of_text(text: str) -> Limits:
    """Return the limits of a text: the same object for each of the rules that have them."""
    return _texts[text]


def _checked(own: tuple[Limit, ...]) -> Limits:
    _refuse_wrong_number(own)
    return Limits(own)


def _refuse_wrong_number(own: tuple[Limit, ...]) -> None:
    if not 1 <= len(own) <= MOST_LIMITS:
        raise fault(f"there are {len(own)} limits: give 1 to {MOST_LIMITS}, or {UNLIMITED!r}")
    names = [limit.name for limit in own]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise fault(f"two limits are called {twice!r}: give each a name of its own, like 'fast={own[0].max_requests}/s'")


def _one(value: Any, *place: int) -> list[Limit]:
    try:
        if isinstance(value, str):
            return list(_parsed(value))
        if isinstance(value, Limit):
            return [value]
        if isinstance(value, Mapping) and value.keys() & WINDOWS.keys():
            return _by_windows(value)
        if isinstance(value, Mapping):
            return [_by_object(value)]
    except ConfigurationError as error:
        raise fault(str(error), *place) from None
    except PydanticCustomError as error:
        context = error.context or {}
        raise fault(context["sentence"], *place, *context["inner"]) from None
    raise fault(f"{shown(value)} is neither a rate like '20/s' nor an object with max_requests and window", *place)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Limit, ...]:
    return tuple(as_limits(text))


def _by_windows(value: Mapping[str, Any]) -> list[Limit]:
    given = _validated(Windows, value)
    numbers = [(name, getattr(given, name)) for name in WINDOWS]
    found = [_parsed(f"{name}={number}/{WINDOWS[name]}")[0] for name, number in numbers if number is not None]
    if not found:
        raise fault(f"none of {', '.join(WINDOWS)} has a number")
    return found


def _by_object(value: Mapping[str, Any]) -> Limit:
    given = dict(_validated(LimitObject, value))
    if isinstance(given["window"], str):
        given["window"] = limit_text.parse_window(given["window"])
    return Limit(**given, _blocking=given["max_requests"] == 0)


def _validated(model: type[BaseModel], value: Mapping[str, Any]) -> Any:
    """Return a value as a model. Of several faults, the first is told."""
    try:
        return model.model_validate(dict(value))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        found = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
        place, kind = found["loc"], found["type"]
        if kind == "extra_forbidden":
            raise fault(f"unknown field {place_text(place)!r}; it has {', '.join(model.model_fields)}") from None
        if kind == "missing" and not value:
            raise fault(
                f"there are no limits: give {', '.join(WINDOWS)}, or max_requests and window, or {UNLIMITED!r}"
            ) from None
        if kind == "missing":
            raise fault(f"{place_text(place)!r} is missing") from None
        message = found["msg"]
        inner = place[:1]  # what follows names a branch of a union
        raise fault(f"{shown(found['input'])} is wrong: {message[:1].lower()}{message[1:]}", *inner) from None


class _Schema:
    """The JSON Schema of limits: what read_limits accepts."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        limit, windows, plan = (handler(model.__pydantic_core_schema__) for model in (LimitObject, Windows, PlanName))
        rate = {"type": "string", "examples": ["20/s", "5000/15min", "100/s burst 200", PLAN, UNLIMITED]}
        one = [rate, limit, windows]
        several = {"type": "array", "items": {"anyOf": one}, "minItems": 1, "maxItems": MOST_LIMITS}
        return {"anyOf": [*one, plan, several]}


LimitsField = Annotated[Limits, PlainValidator(read_limits), PlainSerializer(Limits.written, return_type=Any), _Schema]
