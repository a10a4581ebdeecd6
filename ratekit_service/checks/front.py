"""The front: reads bodies within bounds, and answers the hot paths itself; everything else goes to FastAPI.

A request that it cannot read goes to FastAPI too, whose reference route says what is wrong with it. So the two never
disagree about an error, and a property compares them where they could.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ratekit.core.headers import RawLine
from ratekit_service.checks.bodies import BodyReader, ClientGone
from ratekit_service.checks.handlers import Answer, HotPath
from ratekit_service.problems import Problem
from ratekit_service.telemetry import tracing
from ratekit_service.telemetry.metrics import OTHER_ROUTE

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from ratekit_service.service import Service

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_encode = msgspec.json.Encoder().encode


class _Head(NamedTuple):
    """The header lines that the front reads."""

    key: bytes | None = None
    content_type: bytes | None = None
    length: bytes | None = None


class Front:
    """An ASGI application before another one."""

    def __init__(self, app: App, service: Service) -> None:
        self._app = app
        self.service = service
        settings = service.settings
        self._bodies = BodyReader(settings.body_bytes, settings.body_seconds)
        self._paths: dict[str, HotPath] = service.handlers.table() if settings.front else {}
        self._decoders = {path: msgspec.json.Decoder(row.request) for path, row in self._paths.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        tracer = self.service.tracer
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif tracer is None:
            await self._respond(scope, receive, send, None)
        else:
            with tracing.request_span(tracer, scope["path"], scope["method"], scope["headers"]) as span:
                await self._respond(scope, receive, send, span)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, span: Span | None) -> None:
        started = perf_counter()
        path = scope["path"]
        hot = self._paths.get(path) if scope["method"] == "POST" else None
        try:
            head = _head(scope["headers"])
            body = await self._bodies.read(head.length, receive)
            deciding = None if hot is None else self._begin(hot, head, body, scope)
            answer = None if deciding is None else await deciding
        except ClientGone:
            return
        except Problem as problem:
            await _send(send, problem.status, problem.headers, problem.body)
            self.service.metrics.request(path if hot else OTHER_ROUTE, str(problem.status), perf_counter() - started)
            return
        if answer is None:
            await self._pass_on(scope, body, receive, send, started)
            return
        await _send(send, answer.status, answer.headers, _encode(answer.body))
        self._note(path, answer, span, perf_counter() - started)

    def _begin(self, hot: HotPath, head: _Head, body: bytes, scope: Scope) -> Awaitable[Answer] | None:
        """Return the answer of a hot path, to be awaited; None if the reference has to say what is wrong."""
        if head.content_type != b"application/json":
            return None
        try:
            request = self._decoders[hot.path].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        text = None if head.key is None else head.key.decode("latin-1")
        record = self.service.authentication.key(text, hot.scope, address_of(scope))
        return hot.handle(record, request)

    async def _pass_on(self, scope: Scope, body: bytes, receive: Receive, send: Send, started: float) -> None:
        """Let the application answer, and count what it does."""
        is_read, status = False, 500

        async def replay() -> MutableMapping[str, Any]:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, replay, watch)
        finally:
            route = getattr(scope.get("route"), "path", OTHER_ROUTE)
            self.service.metrics.request(route, str(status), perf_counter() - started)

    def _note(self, path: str, answer: Answer, span: Span | None, seconds: float) -> None:
        """Count what was answered, write its log line, and mark its span."""
        service, decisions = self.service, answer.decisions
        outcome = decisions[0].outcome if len(decisions) == 1 else str(answer.status)
        service.metrics.request(path, outcome, seconds)
        service.note(path, decisions)
        if span is not None and len(decisions) == 1:
            tracing.mark(span, decisions[0])


def address_of(scope: Scope) -> str:
    """Return the address of a request's peer."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _head(lines: Sequence[RawLine]) -> _Head:
    """Return what the front reads; of a header that comes twice, the first key and the last of the others."""
    key = content_type = length = None
    for name, value in lines:
        if name == b"x-api-key":
            key = value if key is None else key
        elif name == b"content-type":
            content_type = value
        elif name == b"content-length":
            length = value
    return _Head(key, content_type, length)


async def _send(send: Send, status: int, headers: Sequence[RawLine], body: bytes) -> None:
    lines = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
