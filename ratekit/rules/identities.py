"""Who is limited, as a document says it.

- header:X-API-Key, query:q, path:tenant, cookie:sid, json:user.id, form:email, body:email (either)
- principal: the user that was authenticated before
- ip: the client's address
- everyone: all callers together
- function:shop.keys:key_of: a function of the request, from trusted sources only

A list is a chain: the first part that the request has. A mapping is a combination: {tenant: json:tenant_id, lang:
json:language} is "tenant:acme:lang:en". It is known only if every part of it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler, PlainSerializer, PlainValidator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ratekit.rules.problems import fault, shown

NAMED = ("header", "query", "path", "cookie", "json", "form", "body", "function")
WHOLE = ("ip", "principal", "everyone")
MOST_PARTS = 20
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,49}")


@dataclass(frozen=True, slots=True)
class Part:
    """One place of a request that may say who asks."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    def written(self) -> Any:
        """Return the part as a document writes it."""
        return str(self)


@dataclass(frozen=True, slots=True)
class Combination:
    """Parts that name somebody together, each under its label."""

    parts: tuple[tuple[str, Part], ...]

    def __str__(self) -> str:
        return " + ".join(f"{label}={part}" for label, part in self.parts)

    def written(self) -> Any:
        """Return the combination as a document writes it."""
        return {label: str(part) for label, part in self.parts}


@dataclass(frozen=True, slots=True)
class Chain:
    """Choices, of which the first that the request has says who asks."""

    choices: tuple[Part | Combination, ...]

    def __str__(self) -> str:
        return ", else ".join(map(str, self.choices))

    def written(self) -> Any:
        """Return the chain as a document writes it."""
        return [choice.written() for choice in self.choices]


Identity = Part | Combination | Chain


def parts_of(identity: Identity | None) -> Iterator[Part]:
    """Yield every part of an identity."""
    if isinstance(identity, Part):
        yield identity
    elif isinstance(identity, Combination):
        yield from (part for _, part in identity.parts)
    elif identity is not None:
        for choice in identity.choices:
            yield from parts_of(choice)


def read_identity(value: Any) -> Identity:
    """Return the identity that a value of a document stands for."""
    if isinstance(value, Part | Combination | Chain):
        return value
    if isinstance(value, list | tuple):
        if not 1 <= len(value) <= MOST_PARTS:
            raise fault(f"the chain has {len(value)} choices: give 1 to {MOST_PARTS}")
        return Chain(tuple(_choice(item, index) for index, item in enumerate(value)))
    return _choice(value)


def _choice(value: Any, *place: int) -> Part | Combination:
    if isinstance(value, Part | Combination):
        return value
    if isinstance(value, Mapping):
        return _combination(value, *place)
    return read_part(value, *place)


def _combination(value: Mapping[Any, Any], *place: int) -> Combination:
    if not 1 <= len(value) <= MOST_PARTS:
        raise fault(f"the combination has {len(value)} parts: give 1 to {MOST_PARTS}", *place)
    for label in value:
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            raise fault(f"the label {shown(label)} is not a word of letters, digits, '.', '-' and '_'", *place)
    parts = tuple((label, read_part(part, *place, label)) for label, part in value.items())
    if "function" in (part.kind for _, part in parts):
        raise fault("a function names somebody alone: it is no part of a combination", *place)
    return Combination(parts)


def read_part(value: Any, *place: str | int) -> Part:
    """Return the part that a text stands for."""
    if not isinstance(value, str):
        raise fault(f"{shown(value)} is neither a text like 'header:X-API-Key', nor a list, nor an object of them", *place)
    if value in WHOLE:
        return Part(value)
    kind, _, name = value.partition(":")
    if kind not in NAMED or not name or not name.isprintable() or name != name.strip():
        known = ", ".join([*WHOLE, *(f"{kind}:…" for kind in NAMED)])
        raise fault(f"{value!r} names nobody: it is one of {known}", *place)
    if kind == "header" and not _HEADER.fullmatch(name):
        raise fault(f"{value!r} is not a header: {name!r} is no name of one", *place)
    if kind == "function" and not _FUNCTION.fullmatch(name):
        raise fault(f"{value!r} is not a function: write it like 'function:shop.keys:key_of'", *place)
    return Part(kind, name)


class _Schema:
    """The JSON Schema of identities: what read_identity accepts."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        part = {"type": "string", "pattern": rf"^({'|'.join(WHOLE)}|({'|'.join(NAMED)}):.+)$"}
        combination = {"type": "object", "additionalProperties": part, "minProperties": 1, "maxProperties": MOST_PARTS}
        one = {"anyOf": [part, combination]}
        return {"anyOf": [part, combination, {"type": "array", "items": one, "minItems": 1, "maxItems": MOST_PARTS}]}


IdentityField = Annotated[
    Identity,
    PlainValidator(read_identity),
    PlainSerializer(lambda identity: identity.written(), return_type=Any),
    _Schema,
]
