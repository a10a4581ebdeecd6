"""The host for ASGI servers that speak HTTP/2 and send trailers, such as pyvoy: ShouldRateLimit in front of an application.

One port then serves HTTP and gRPC. Other servers cannot: gRPC needs trailers, and a server without them is told so.
"""

from __future__ import annotations

import struct
from urllib.parse import quote

from ratekit.asgi import App, Message, Receive, Scope, Send, read_body
from ratekit_service.envoy.errors import GrpcError, StatusCode
from ratekit_service.envoy.plans import MOST_BYTES
from ratekit_service.envoy.service import METHOD, RateLimitService

HEALTH = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"
_PREFIX = struct.Struct(">BI")  # of a message: whether it is compressed, and its length
_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/grpc+proto")],
    "trailers": True,
}


class EnvoyMiddleware:
    """Answers gRPC calls of ShouldRateLimit and of the health check, and hands everything else to an application."""

    def __init__(self, app: App, service: RateLimitService) -> None:
        self.app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not _is_grpc(scope):
            await self.app(scope, receive, send)
        elif "http.response.trailers" not in (scope.get("extensions") or {}):
            await _refuse(send)
        else:
            await self._answer(scope["path"], receive, send)

    async def _answer(self, path: str, receive: Receive, send: Send) -> None:
        body, code, message = b"", StatusCode.OK, ""
        try:
            answer = await self._call(path, receive)
            body = _PREFIX.pack(0, len(answer)) + answer
        except GrpcError as error:
            code, message = error.code, error.message
        await send(_START)
        await send({"type": "http.response.body", "body": body, "more_body": False})
        lines = [(b"grpc-status", b"%d" % code), *([(b"grpc-message", quote(message).encode())] if message else [])]
        await send({"type": "http.response.trailers", "headers": lines, "more_trailers": False})

    async def _call(self, path: str, receive: Receive) -> bytes:
        body, _ = await read_body(receive, MOST_BYTES + _PREFIX.size)
        if body is None:
            raise GrpcError(StatusCode.INVALID_ARGUMENT, f"the request has more than {MOST_BYTES} bytes")
        if path == HEALTH:
            return _SERVING
        if path != METHOD:
            raise GrpcError(StatusCode.UNIMPLEMENTED, f"the method {path[:200]!r} is unknown")
        return await self._service.should_rate_limit(_message(body))


def _message(body: bytes) -> bytes:
    if len(body) < _PREFIX.size or body[0] or _PREFIX.unpack_from(body)[1] != len(body) - _PREFIX.size:
        raise GrpcError(StatusCode.INVALID_ARGUMENT, "the body is not one uncompressed message with its length before it")
    return body[_PREFIX.size :]


def _is_grpc(scope: Scope) -> bool:
    return any(name == b"content-type" and value.startswith(b"application/grpc") for name, value in scope["headers"])


async def _refuse(send: Send) -> None:
    body = b"gRPC needs trailers, which this ASGI server does not send: use ratekit's port for gRPC"
    lines = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 501, "headers": lines})
    await send({"type": "http.response.body", "body": body})
