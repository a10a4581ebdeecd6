"""Identities of a document become key functions.

A key function of a document answers a `Key`: the readable text that custom limits are looked up by, with the subject that is
counted. What clients send is hashed in the subject, so that secrets do not show up in the keys of the store.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ratekit.core.errors import DocumentError, RatekitError, UnusableRequestError
from ratekit.core.keys import whole_endpoint_subject
from ratekit.rules.identities import Chain, Combination, Identity, Part
from ratekit.rules.request_view import RequestView
from ratekit.web import identity as web
from ratekit.web.arguments import is_awaited
from ratekit.web.exemptions import normalized_path
from ratekit.web.identity import KeyFunction
from ratekit.web.patterns import Pattern
from ratekit.web.requests import MOST_DIGITS, FrontRequest

EVERYONE = "*"  # the key of all callers together
_log = logging.getLogger("ratekit.rules")
_failed: set[str] = set()  # functions of which the log has said that they raise


class Key(str):
    """Who asks, as custom limits name it. `subject` is who is counted."""

    __slots__ = ("subject",)
    subject: str

    @classmethod
    def of(cls, text: str, subject: str) -> Key:
        """Make a key that is counted under another name."""
        key = cls(text)
        key.subject = subject
        return key


def subject_of_key(key: str) -> str:
    """Return who is counted: the subject of a key, or the text itself."""
    return key.subject if isinstance(key, Key) else key


class KeyFunctionError(UnusableRequestError):
    """A function of the application has raised. What happens to the request is for its rule to say."""


class Context(NamedTuple):
    """What a key function has to know of its rule."""

    endpoint: str
    path: str | None  # the pattern whose parameters path:… means
    plain: bool


def key_function(identity: Identity, context: Context) -> KeyFunction:
    """Return the key function of an identity."""
    if isinstance(identity, Chain):
        return web.first_of(*(key_function(choice, context) for choice in identity.choices))
    if isinstance(identity, Combination):
        return _combination(identity, context)
    if identity.kind == "function":
        return _function(identity.name)
    if identity.kind == "ip":
        return web.client_ip()
    if identity.kind == "everyone":
        key = Key.of(EVERYONE, whole_endpoint_subject(context.endpoint))
        return KeyFunction("everyone", lambda request: key)
    return _single(identity, context)


def _single(part: Part, context: Context) -> KeyFunction:
    value = _value(part, context)
    is_hidden = not context.plain and value.is_claimed
    label = value.name

    def read(request: FrontRequest) -> str | None:
        text = value.read(request)
        return None if text is None else Key.of(f"{label}:{text}", f"{label}:{web.hashed(text) if is_hidden else text}")

    return _like(value, label, read)


def _combination(identity: Combination, context: Context) -> KeyFunction:
    """Return the key function of several named parts. A colon in a value is escaped: two combinations are never one."""
    parts = [(label, _value(part, context)) for label, part in identity.parts]

    def read(request: FrontRequest) -> str | None:
        texts, subjects = [], []
        for label, value in parts:
            text = value.read(request)
            if text is None:
                return None
            escaped = text.replace("%", "%25").replace(":", "%3A")
            texts.append(f"{label}:{escaped}")
            subjects.append(f"{label}:{escaped if context.plain or not value.is_claimed else web.hashed(text)}")
        return Key.of(":".join(texts), ":".join(subjects))

    return KeyFunction(
        name=str(identity),
        read=read,
        needs_body=any(value.needs_body for _, value in parts),
        is_claimed=any(value.is_claimed for _, value in parts),
        wants_body=lambda request: any(value.looks_into_body(request) for _, value in parts),
    )


def _value(part: Part, context: Context) -> KeyFunction:
    """Return a key function that answers the bare value of a part."""
    if part.kind == "ip":
        return KeyFunction("ip", _address_value, is_address=True)
    if part.kind == "principal":
        return KeyFunction("principal", lambda request: request.principal)
    if part.kind == "everyone":
        return KeyFunction("everyone", lambda request: EVERYONE)
    if part.kind == "path":
        return _path_value(part.name, context)
    if part.kind == "body":
        either = web.first_of(*(_bare(web.json_field(part.name, plain=True)), _bare(web.form_field(part.name, plain=True))))
        return _like(either, f"body:{part.name}", either.read)
    return _bare(_NAMED[part.kind](part.name, plain=True))


_NAMED: dict[str, Callable[..., KeyFunction]] = {
    "header": web.header,
    "query": web.query,
    "cookie": web.cookie,
    "json": web.json_field,
    "form": web.form_field,
}


def _bare(function: KeyFunction) -> KeyFunction:
    """Return a key function without the name of the part before its answer."""
    start = len(function.name) + 1

    def read(request: FrontRequest) -> str | None:
        text = function.read(request)
        return None if text is None else text[start:]

    return _like(function, function.name, read)


def _like(function: KeyFunction, name: str, read: Callable[[FrontRequest], str | None]) -> KeyFunction:
    return KeyFunction(
        name, read, function.needs_body, function.most_body, function.is_address, function.wants_body, function.is_claimed
    )


def _address_value(request: FrontRequest) -> str | None:
    address = request.address()
    return None if address is None else address.removeprefix("ip:")


def _path_value(name: str, context: Context) -> KeyFunction:
    position = Pattern(context.path or "/").segments[name]

    def read(request: FrontRequest) -> str | None:
        segments = normalized_path(request.path).split("/")
        return segments[position] or None if position < len(segments) else None

    return KeyFunction(f"path:{name}", read, is_claimed=True)


def load_function(name: str) -> Callable[[Any], Any]:
    """Import a function by its dotted path. Raises DocumentError."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise DocumentError([f"the function {name!r} cannot be imported: {type(error).__name__}: {error}"]) from error
    if not callable(found):
        raise DocumentError([f"the function {name!r} is not callable"])
    return found  # type: ignore[no-any-return]


def _function(name: str) -> KeyFunction:
    return function_key(load_function(name), name)


def function_key(function: Callable[[Any], Any], name: str) -> KeyFunction:
    """Return the key function of a function of the application, which gets a RequestView. The body is read if it is JSON."""

    def read(request: FrontRequest) -> str | None:
        try:
            return web.checked_subject(function(RequestView(request)))
        except RatekitError:
            raise
        except Exception as error:
            raise _failure(name, error) from error

    async def aread(request: FrontRequest) -> str | None:
        try:
            return web.checked_subject(await function(RequestView(request)))
        except RatekitError:
            raise
        except Exception as error:
            raise _failure(name, error) from error

    return KeyFunction(name, read, needs_body=True, wants_body=_has_json, aread=aread if is_awaited(function) else None)


def _failure(name: str, error: Exception) -> KeyFunctionError:
    if name not in _failed:
        _failed.add(name)
        _log.error("the key function %s raised; its further errors are not logged", name, exc_info=error)
    return KeyFunctionError("who is limited cannot be told from the request")


def _has_json(request: FrontRequest) -> bool:
    return "json" in (request.header("content-type") or "")


class CostReader:
    """Reads the cost of a request where a rule says that it is. A request that does not say it costs 1.

    A client cannot ask for nothing: 0, which would only look and pass every limit, costs 1. A function may answer 0.
    """

    def __init__(self, part: Part, context: Context) -> None:
        self.__qualname__ = str(part)  # part of the names of the limits
        by = _function_cost(part.name) if part.kind == "function" else _value(part, context)
        self._read = by.read
        self.sources: tuple[KeyFunction, ...] = (by,)

    def __call__(self, request: FrontRequest) -> int:
        """Return the cost. Raises UnusableRequestError if the client says one that is not a whole number."""
        answer: Any = self._read(request)
        if isinstance(answer, str) and not (answer.isascii() and answer.isdecimal() and len(answer) <= MOST_DIGITS):
            raise UnusableRequestError(
                f"the cost of the request, {self.__qualname__}, is not a whole number: {answer[:20]!r}"
            )
        return max(int(answer or 1), 1) if isinstance(answer, str | None) else int(answer)


class UnitCostReader:
    """Reads the costs of a request by unit."""

    def __init__(self, costs: Mapping[str, int | CostReader]) -> None:
        self._costs = costs
        self.__qualname__ = "units"
        self.sources = tuple(by for one in costs.values() if isinstance(one, CostReader) for by in one.sources)

    def __call__(self, request: FrontRequest) -> dict[str, int]:
        """Return the costs. Raises UnusableRequestError if the client says one that is not a whole number."""
        return {unit: one if isinstance(one, int) else one(request) for unit, one in self._costs.items()}


def _function_cost(name: str) -> KeyFunction:
    function = load_function(name)
    return KeyFunction(name, lambda request: function(RequestView(request)), needs_body=True, wants_body=_has_json)
