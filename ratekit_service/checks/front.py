"""The front: reads bodies within bounds, and answers the hot paths itself; everything else goes to FastAPI.

A request that it cannot read goes to FastAPI too, whose reference route says what is wrong with it. So the two never
disagree about an error, and a property compares them where they could.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from ratekit.core.headers import RawLine
from ratekit_service.checks.handlers import Answer, HotPath
from ratekit_service.problems import Problem
from ratekit_service.telemetry import tracing
from ratekit_service.telemetry.metrics import OTHER_ROUTE

if TYPE_CHECKING:
    from ratekit_service.service import Service

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_encode = msgspec.json.Encoder().encode
no_span = nullcontext()


class ClientGone(Exception):
    """The client has closed the connection before its request was whole."""


class Front:
    """An ASGI application before another one."""

    def __init__(self, app: App, service: Service) -> None:
        self._app = app
        self.service = service
        self._bytes = service.settings.body_bytes
        self._seconds = service.settings.body_seconds
        self._paths: dict[str, HotPath] = service.handlers.table() if service.settings.front else {}
        self._decoders = {path: msgspec.json.Decoder(row.request) for path, row in self._paths.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = perf_counter()
        path = scope["path"]
        hot = self._paths.get(path) if scope["method"] == "POST" else None
        tracer = self.service.tracer
        span: Any = (
            nullcontext() if tracer is None else tracing.request_span(tracer, path, scope["method"], scope["headers"])
        )
        with span as current:
            try:
                body = await self._body(scope, receive)
                answer = None if hot is None else await self._answer(hot, scope, body)
            except ClientGone:
                return
            except Problem as problem:
                await _send_problem(send, problem)
                self.service.metrics.request(path if hot else OTHER_ROUTE, str(problem.status), perf_counter() - started)
                return
            if answer is None:
                await self._pass_on(scope, body, receive, send, started)
                return
            await _send(send, answer.status, answer.headers, _encode(answer.body))
            self._note(path, answer, current, perf_counter() - started)

    async def _answer(self, hot: HotPath, scope: Scope, body: bytes) -> Answer | None:
        """Return the answer of a hot path; None if the reference has to say what is wrong."""
        key = content_type = None
        for name, value in scope["headers"]:
            if name == b"x-api-key" and key is None:
                key = value
            elif name == b"content-type":
                content_type = value
        if content_type != b"application/json":
            return None
        try:
            request = self._decoders[hot.path].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        text = None if key is None else key.decode("latin-1")
        record = self.service.authentication.key(text, hot.scope, address_of(scope))
        return await hot.handle(record, request)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the whole body. Raises Problem if it is too large or too slow."""
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > self._bytes:
                raise self._too_large()
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read(receive)
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {self._seconds:g} s") from None

    async def _read(self, receive: Receive) -> bytes:
        message = await receive()
        body: bytes = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._bytes:
                raise self._too_large()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if len(body) > self._bytes:
            raise self._too_large()
        return body

    def _too_large(self) -> Problem:
        return Problem(413, f"the body is larger than {self._bytes} bytes", headers=((b"connection", b"close"),))

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

    def _note(self, path: str, answer: Answer, span: Any, seconds: float) -> None:
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


async def _send_problem(send: Send, problem: Problem) -> None:
    await _send(send, problem.status, problem.headers, problem.body)


async def _send(send: Send, status: int, headers: Sequence[RawLine], body: bytes) -> None:
    lines = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
