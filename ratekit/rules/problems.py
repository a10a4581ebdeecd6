"""Faults of a document as sentences: the place, then what is wrong with which value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

Place = tuple[str | int, ...]
_LONGEST_VALUE = 80
_KEY = "[key]"  # what pydantic calls the key of a mapping
_NAME = re.compile(r"[A-Za-z_]\w*")


def fault(message: str, *inner: str | int) -> PydanticCustomError:
    """Return the error of a validator. inner is the place within the value that is validated."""
    return PydanticCustomError("fault", "{sentence}", {"sentence": message, "inner": list(inner)})


def place_text(place: Iterable[str | int]) -> str:
    """Return a place as people write it: rules[2].limits[0], custom_rate_limits['user:42']."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _NAME.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text or "the document"


def shown(value: object) -> str:
    """Return a value as an error shows it."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def problems_of(error: ValidationError, fields: Mapping[Place, Sequence[str]], at: Place = ()) -> list[str]:
    """Return a sentence for each fault that pydantic has found. fields has the names of the fields of each model."""
    found = error.errors(include_url=False)
    within = {one["loc"][:size] for one in found for size in range(len(one["loc"]))}
    # A list whose items are wrong is too short for pydantic, too.
    return [_sentence(one, fields, at) for one in found if one["type"] != "too_short" or one["loc"] not in within]


def _sentence(found: Any, fields: Mapping[Place, Sequence[str]], at: Place) -> str:
    place: Place = (*at, *found["loc"])
    context = found.get("ctx", {})
    kind = found["type"]
    if kind == "fault":
        return f"{place_text((*place, *context['inner']))}: {context['sentence']}"
    if kind == "extra_forbidden":
        return f"{place_text(place)}: unknown field{_hint(str(place[-1]), fields, place[:-1])}"
    if kind == "missing":
        return f"{place_text(place)}: missing"
    if kind == "too_short":
        return f"{place_text(place)}: it is empty: give something, or leave the field out"
    if place[-1:] == (_KEY,):
        return f"{place_text(place[:-2])}: the key {shown(found['input'])} is wrong: {_lower(found['msg'])}"
    return f"{place_text(place)}: {shown(found['input'])} is wrong: {_lower(found['msg'])}"


def _hint(name: str, fields: Mapping[Place, Sequence[str]], parent: Place) -> str:
    known = fields.get(tuple(part for part in parent if isinstance(part, str)), ())
    close = difflib.get_close_matches(name, known, 1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; it has {', '.join(known)}" if known else ""


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
