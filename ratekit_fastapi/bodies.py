"""A bound on bodies that FastAPI reads for an endpoint before the limiters of its route run."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from ratekit.asgi import Message, Receive, Scope, Sender
from ratekit.core.modes import RateLimitMode
from ratekit.web.identity import KeyFunction, body_too_long
from ratekit.web.parsers import MULTIPART
from ratekit_fastapi.decisions import not_overridden, raise_undecided
from ratekit_fastapi.requests import StarletteRequest
from ratekit_fastapi.routes import calls_of, effective_route, is_limiter
from ratekit_fastapi.settings import settings_of


class BoundedReceive:
    """The receive of a request. It answers 413 as soon as the body is longer than a limiter of the route may look into,
    and takes note of a client that hangs up.

    The limiter would refuse the request anyway, but only after all of the body is in memory. Uploads have no bound here:
    Starlette writes their files to the disk.
    """

    __slots__ = ("_by", "_receive", "_scope", "_sender", "_size")

    def __init__(self, receive: Receive, scope: Scope, sender: Sender) -> None:
        self._receive = receive
        self._scope = scope
        self._sender = sender
        self._size = 0
        self._by: KeyFunction | bool | None = True  # True: not known before the route is

    async def __call__(self) -> Message:
        """Receive a message."""
        if self._by is True and (route := effective_route(self._scope)) is not None:
            self._by = _looking_into_body(route, self._scope)
        if isinstance(self._by, KeyFunction):
            self._refuse_longer(self._by)
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._sender.is_over = True
        self._size += len(message.get("body", b""))
        if isinstance(self._by, KeyFunction):
            self._refuse_longer(self._by)
        return message

    def _refuse_longer(self, by: KeyFunction) -> None:
        request = _front_request(self._scope)
        if self._size > by.most_body or request.is_longer_than(by.most_body):
            raise_undecided(body_too_long(by), RateLimitMode.ON, self._scope)


def _looking_into_body(route: object, scope: Scope) -> KeyFunction | None:
    """Return the key function of a limiter of the route that will look into the body, and refuses what is too long."""
    limiters = [call for call in calls_of(route) if is_limiter(call) and call.needs_body]
    if not limiters or _front_request(scope).media_type.kind == MULTIPART:
        return None
    connection = HTTPConnection(scope)
    enforced = [limiter for limiter in not_overridden(limiters, scope) if limiter.current_mode() is RateLimitMode.ON]
    return next((by for limiter in enforced if (by := limiter.looks_into_body(connection)) is not None), None)


def _front_request(scope: Scope) -> StarletteRequest:
    return StarletteRequest(HTTPConnection(scope), settings_of(scope).proxies)
