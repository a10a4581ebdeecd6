"""Sentences about requests that make no sense: which field, which value, and what belongs there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratekit_service.problems import Problem

_MOST_ERRORS = 20
_BODY = "the body"
_SHOWN = 40  # characters of a value
# By the type of pydantic's error: what it says of a field. The place of the error's own values is `ctx`.
_SENTENCES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "is missing",
    "extra_forbidden": lambda _: "is no field of this request",
    "string_too_short": lambda _: "is empty",
    "string_too_long": lambda ctx: f"has more than {ctx['max_length']} characters",
    "string_type": lambda _: "is not a text",
    "string_unicode": lambda _: "is not a text in Unicode",
    "string_pattern_mismatch": lambda _: "has other characters than letters, digits, _ and -",
    "int_type": lambda _: "is not a whole number",
    "int_parsing": lambda _: "is not a whole number",
    "int_from_float": lambda _: "is not a whole number",
    "float_type": lambda _: "is not a number",
    "bool_type": lambda _: "is neither true nor false",
    "bool_parsing": lambda _: "is neither true nor false",
    "list_type": lambda _: "is not a list",
    "greater_than": lambda ctx: f"is not more than {ctx['gt']}",
    "greater_than_equal": lambda ctx: f"is less than {ctx['ge']}",
    "less_than_equal": lambda ctx: f"is more than {ctx['le']}",
    "literal_error": lambda ctx: f"is unknown: it is {ctx['expected']}",
    "too_short": lambda _: "is an empty list",
    "too_long": lambda ctx: f"has more than {ctx['max_length']} items",
    "value_error": lambda ctx: str(ctx["error"]),
    "model_attributes_type": lambda _: "is not a JSON object",
    "datetime_type": lambda _: "is no time: write it like 2026-12-31T18:00:00Z",
    "datetime_parsing": lambda _: "is no time: write it like 2026-12-31T18:00:00Z",
    "datetime_from_date_parsing": lambda _: "is no time: write it like 2026-12-31T18:00:00Z",
    "timezone_aware": lambda _: "has no time zone: write it like 2026-12-31T18:00:00Z",
}
_OF_VALUES = ("greater_than", "greater_than_equal", "less_than_equal", "literal_error", "int_parsing")


def problem_of(errors: Sequence[Mapping[str, Any]], content_type: str | None) -> Problem:
    """Return the 422 for what is wrong with a request. `errors` are those of pydantic."""
    told = [{"field": _field(one), "message": _sentence(one, content_type)} for one in errors]
    return Problem(422, told[0]["message"], field=told[0]["field"], members={"errors": told[:_MOST_ERRORS]})


def _sentence(error: Mapping[str, Any], content_type: str | None) -> str:
    field, kind, ctx = _field(error), error["type"], error.get("ctx") or {}
    if kind == "json_invalid":
        return f"{_BODY} is not JSON: {ctx.get('error', 'it cannot be read')}, at character {error['loc'][-1]}"
    if not field and kind == "missing":
        return f"{_BODY} is empty: send a JSON object"
    if not field and "json" not in (content_type or ""):
        return f"{_BODY} is not sent as JSON: its content-type is {content_type or 'missing'}, not application/json"
    if kind not in _SENTENCES:
        return f"{field or _BODY}: {error['msg']}"
    value = f" {_shown(error['input'])}" if kind in _OF_VALUES else ""
    return f"{field or _BODY}{value} {_SENTENCES[kind](ctx)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _field(error: Mapping[str, Any]) -> str:
    """Return where in a request something is wrong: "cost", "checks[2].cost", "query limit" is "limit"."""
    if error["type"] == "json_invalid":
        return ""
    text = ""
    for part in error["loc"]:
        if part not in ("body", "query", "path", "header"):
            text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")
