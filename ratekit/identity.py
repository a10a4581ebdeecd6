"""Key functions: who is limited. Each takes a request and returns a subject, or None if the request does not say.

What a client sends (headers, cookies, parameters, fields) is hashed before it becomes a subject, so that secrets do not show
up in the names of keys; `plain=True` leaves it readable.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from ratekit.errors import ConfigurationError, UnusableRequestError
from ratekit.keys import project_subject
from ratekit.requests import FrontRequest

MOST_BODY = 64 * 1024


@dataclass(frozen=True, slots=True)
class KeyFunction:
    """A function from a request to a subject, and what a front has to know about it."""

    name: str
    read: Callable[[FrontRequest], str | None]
    needs_body: bool = False
    most_body: int = MOST_BODY
    is_address: bool = False  # it is the client's address, at least where nothing else is said
    wants_body: Callable[[FrontRequest], bool] | None = None  # for this request; None: always, if it needs it
    is_claimed: bool = False  # the client says it, and nobody has verified it

    def __call__(self, request: FrontRequest) -> str | None:
        """Return the subject of a request."""
        return self.read(request)

    def looks_into_body(self, request: FrontRequest) -> bool:
        """Whether the body of this request has to be read first."""
        return self.needs_body and (self.wants_body is None or self.wants_body(request))


def client_ip() -> KeyFunction:
    """The client's address: the peer's, unless proxies are trusted; IPv6 by /64."""
    return KeyFunction("client_ip", _address, is_address=True)


def header(name: str, *, plain: bool = False) -> KeyFunction:
    """A header that the client sends."""
    return _claimed("header", name, lambda request: request.header(name), plain=plain)


def query(name: str, *, plain: bool = False) -> KeyFunction:
    """A parameter of the query."""
    return _claimed("query", name, lambda request: request.query(name), plain=plain)


def cookie(name: str, *, plain: bool = False) -> KeyFunction:
    """A cookie."""
    return _claimed("cookie", name, lambda request: request.cookie(name), plain=plain)


def json_field(path: str, *, plain: bool = False, most_body: int = MOST_BODY) -> KeyFunction:
    """A field of a JSON body, by a path such as "user.id" or "items.0.sku"; the body may have so many bytes."""
    return _claimed("json", path, lambda request: _json_at(request, path), plain=plain, most_body=most_body)


def form_field(name: str, *, plain: bool = False, most_body: int = MOST_BODY) -> KeyFunction:
    """A field of a URL-encoded form; the body may have so many bytes. Uploads are left alone, and say nothing."""
    return _claimed("form", name, lambda request: _form_at(request, name), plain=plain, most_body=most_body)


def first_of(*choices: KeyFunction | Callable[[Any], str | None] | str) -> KeyFunction:
    """The first of several that the request says: an API key, else a user, else the address."""
    functions = [as_key_function(choice) for choice in choices]
    if not functions:
        raise ConfigurationError("first_of () has nothing to choose from")

    def read(request: FrontRequest) -> str | None:
        return next((subject for function in functions if (subject := function(request)) is not None), None)

    def wants_body(request: FrontRequest) -> bool:
        """Whether no earlier choice says who it is, so that one is asked that looks into the body."""
        for function in functions:
            if function.needs_body and function.looks_into_body(request):
                return True
            if not function.needs_body and function(request) is not None:
                return False
        return False

    return KeyFunction(
        name="first_of(" + ", ".join(function.name for function in functions) + ")",
        read=read,
        needs_body=any(function.needs_body for function in functions),
        most_body=min(function.most_body for function in functions),
        is_address=any(function.is_address for function in functions),
        wants_body=wants_body,
        is_claimed=any(function.is_claimed for function in functions),
    )


def as_key_function(by: KeyFunction | Callable[[Any], str | None] | str) -> KeyFunction:
    """Read what a user gives: a key function, any callable of the request, "ip", or "header:X-API-Key" and its like."""
    if isinstance(by, KeyFunction):
        return by
    if isinstance(by, str):
        kind, colon, name = by.partition(":")
        if by in ("ip", "client_ip"):
            return client_ip()
        if colon and name and kind in _NAMED:
            return _NAMED[kind](name)
        raise ConfigurationError(
            f"by {by!r} is unknown: it is 'ip', one of {', '.join(f'{kind}:…' for kind in _NAMED)}, or a callable"
        )
    if not callable(by):
        raise ConfigurationError(f"by {by!r} is neither a text nor a callable")
    if inspect.iscoroutinefunction(by):
        raise ConfigurationError(f"by {by!r} is awaited, but a key function is not: find out before who it is, and keep it")
    return KeyFunction(getattr(by, "__name__", "custom"), _checked(by))


def _address(request: FrontRequest) -> str | None:
    return request.address()


def _checked(function: Callable[[Any], Any]) -> Callable[[FrontRequest], str | None]:
    def read(request: FrontRequest) -> str | None:
        return checked_subject(function(request))

    return read


def checked_subject(subject: Any) -> str | None:
    """Return what a key function has answered, or refuse a request that it cannot name anybody for."""
    if subject is not None and (not isinstance(subject, str) or not subject):
        raise UnusableRequestError(f"the key function answered {subject!r}, which is neither a text nor None")
    return subject


def _claimed(
    kind: str, name: str, read: Callable[[FrontRequest], str | None], *, plain: bool, most_body: int = MOST_BODY
) -> KeyFunction:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigurationError(f"{kind} {name!r} is not a name")
    label = f"{kind}:{name.lower() if kind == 'header' else name}"

    def subject(request: FrontRequest) -> str | None:
        value = read(request)
        if value is None:
            return None
        return f"{label}:{value if plain else hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"

    wants_body = _is_form if kind == "form" else None
    needs_body = kind in ("json", "form")
    return KeyFunction(label, subject, needs_body=needs_body, most_body=most_body, wants_body=wants_body, is_claimed=True)


def identified_subject(identity: Any) -> str | None:
    """Return the subject of what identify has answered. Half a project is none: it would be a bucket for many."""
    if isinstance(identity, tuple) and len(identity) == 2 and "" not in identity:
        return None if None in identity else project_subject(*identity)
    if identity is None or (isinstance(identity, str) and identity):
        return identity
    raise UnusableRequestError(f"identify answered {identity!r}: it is (org_id, project_id), a text, or None")


def body_too_long(by: KeyFunction) -> UnusableRequestError:
    """Return the error for a body that is longer than a key function may look into."""
    detail = f"the body has more than {by.most_body} bytes, and who is limited ({by.name}) is in it"
    return UnusableRequestError(detail, status=413)


def _is_form(request: FrontRequest) -> bool:
    kind = (request.header("content-type") or "").partition(";")[0].strip().lower()
    return kind == "application/x-www-form-urlencoded"


def _json_at(request: FrontRequest, path: str) -> str | None:
    if not request.body:
        return None
    try:
        value = json.loads(request.body)
    except (ValueError, RecursionError):
        raise UnusableRequestError(f"the body is not JSON, and who is limited is in its field {path!r}") from None
    for part in path.split("."):
        value = _child(value, part)
    if value is None or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) and value else json.dumps(value)


def _child(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
        return value[int(part)]
    return None


def _form_at(request: FrontRequest, name: str) -> str | None:
    if not _is_form(request):
        return None
    try:
        fields = parse_qs((request.body or b"").decode("utf-8", "replace"), max_num_fields=1000)
    except ValueError:
        raise UnusableRequestError("the form has more than 1000 fields") from None
    values = fields.get(name)
    return values[0] if values else None


_NAMED: dict[str, Callable[[str], KeyFunction]] = {
    "header": header,
    "query": query,
    "cookie": cookie,
    "json": json_field,
    "form": form_field,
}
