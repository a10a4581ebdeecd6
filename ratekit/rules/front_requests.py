"""Requests of every framework as ratekit reads them, for applications that ask the SDK themselves.

Known by what they have: an ASGI scope, a WSGI environ, the request of Starlette and FastAPI, of Flask and Werkzeug, or of
Django and what stands on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ratekit.core.errors import ConfigurationError
from ratekit.web.client_address import TrustedProxies
from ratekit.web.identity import KeyFunction, body_too_long
from ratekit.web.requests import AsgiRequest, FrontRequest, WsgiRequest


class Opened(NamedTuple):
    """A request, and a function that reads its body for a key function; it may have to be awaited."""

    request: FrontRequest
    load_body: Callable[[KeyFunction], Any]


def opened(given: Any, proxies: TrustedProxies) -> Opened:
    """Return a request of any framework. Raises ConfigurationError for anything else."""
    if isinstance(given, FrontRequest):
        return Opened(given, lambda by: None)
    if hasattr(given, "META"):
        return _with_body(_of_django(given, proxies), lambda: given.body)
    if hasattr(given, "scope"):  # Starlette's requests are mappings, too
        return _with_body(AsgiRequest(given.scope, proxies), getattr(given, "body", None))
    if hasattr(given, "environ"):
        return _with_body(WsgiRequest(given.environ, proxies), getattr(given, "get_data", None))
    if isinstance(given, Mapping):
        return Opened(_of_mapping(given, proxies), lambda by: None)
    raise ConfigurationError(f"request of type {type(given).__name__!r} is unknown: give a scope, an environ, or a request")


def _of_mapping(given: Mapping[str, Any], proxies: TrustedProxies) -> FrontRequest:
    if "REQUEST_METHOD" in given:
        return WsgiRequest(given, proxies)
    if "type" in given and "headers" in given:
        return AsgiRequest(given, proxies)
    raise ConfigurationError("request is a mapping, but neither an ASGI scope nor a WSGI environ")


def _of_django(given: Any, proxies: TrustedProxies) -> FrontRequest:
    request = WsgiRequest({"REQUEST_METHOD": given.method or "GET", "PATH_INFO": "/"} | dict(given.META), proxies)
    request.method, request.path = given.method or "GET", given.path_info
    return request


def _with_body(request: FrontRequest, read: Callable[[], Any] | None) -> Opened:
    """Let a framework read the body, as it keeps what it has read. Starlette's is awaited."""

    def load(by: KeyFunction) -> Any:
        if read is None or request.is_longer_than(by.most_body):
            request.body_error = body_too_long(by)
            return None
        body = read()
        return _later(body, by) if hasattr(body, "__await__") else keep(body, by)

    async def _later(body: Any, by: KeyFunction) -> None:
        keep(await body, by)

    def keep(body: bytes, by: KeyFunction) -> None:
        request.body = body if len(body) <= by.most_body else None
        request.body_error = None if request.body is not None else body_too_long(by)

    return Opened(request, load)
