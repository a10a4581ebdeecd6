"""A Django request as key functions see it, and where a request keeps what was decided about it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http.request import RawPostDataException, UnreadablePostError

from ratekit.addresses import TrustedProxies
from ratekit.identity import KeyFunction, body_too_long
from ratekit.requests import WsgiRequest

MIDDLEWARE = "ratekit.django.middleware"  # the middleware will write the headers
LEDGER = "ratekit.django.ledger"  # what the limits of the request have done so far
IDENTITY = "ratekit.django.identity"  # the subject of the project, or None


class DjangoRequest(WsgiRequest):
    """A request of Django's, or of a framework on top of it. Its META has the names of WSGI under ASGI too."""

    def __init__(self, request: Any, proxies: TrustedProxies) -> None:
        self._request = request
        self._environ = request.META
        self.proxies = proxies
        self.method = request.method or "GET"
        self.path = request.path_info

    @property
    def native(self) -> Any:
        """The request itself."""
        return self._request


def state_of(request: Any) -> MutableMapping[str, Any]:
    """Return what the fronts of a request share: the scope under ASGI, else the environ."""
    scope = getattr(request, "scope", None)
    state: MutableMapping[str, Any] = scope if isinstance(scope, dict) else request.META
    return state


def is_asgi(request: Any) -> bool:
    """Whether a request came through ASGI, whose event loop outlives it; an async view under WSGI has one of its own."""
    return isinstance(getattr(request, "scope", None), dict)


def read_body(request: Any, by: KeyFunction) -> bytes | None:
    """Return the body for a key function that looks into it; None for uploads, and where the view has it already."""
    if (request.content_type or "").lower() == "multipart/form-data":
        return None
    length = request.META.get("CONTENT_LENGTH") or "0"
    if length.isdecimal() and int(length) > by.most_body:
        raise body_too_long(by)
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        raise body_too_long(by) from None
    except (RawPostDataException, UnreadablePostError):
        return None
    if len(body) > by.most_body:
        raise body_too_long(by)
    return body
