"""ShouldRateLimit through its hosts: a real gRPC client on grpc.aio, and calls of the ASGI form."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from ratekit import AsyncRateLimiter, ConfigurationError
from ratekit.rules.descriptors.file import DescriptorFile
from ratekit.rules.descriptors.tree import Domains
from ratekit.stores.memory import MemoryStore
from ratekit_service.envoy.asgi_host import HEALTH, EnvoyMiddleware
from ratekit_service.envoy.grpc_host import GrpcServer
from ratekit_service.envoy.service import METHOD, SERVICE, RateLimitService
from support.envoy_messages import OK, OVER_LIMIT, Request, Response, request

FILE = "{domain: shop, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]}"
MESSAGE = request("shop", [("user", "42")]).SerializeToString()


def service() -> RateLimitService:
    return RateLimitService(AsyncRateLimiter(MemoryStore()), Domains.of([DescriptorFile.parse(FILE)]))


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    server = GrpcServer(service(), "127.0.0.1:0", **options)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield server, channel
    await server.stop(0)


def method(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=Response.FromString)


async def test_grpc_client_is_refused_after_the_limit():
    async with running() as (_, channel):
        answers = [await method(channel)(MESSAGE) for _ in range(5)]
    assert [answer.overall_code for answer in answers] == [OK, OK, OK, OVER_LIMIT, OVER_LIMIT]


@pytest.mark.parametrize(
    ("message", "code", "details"),
    [
        (b"\xff", grpc.StatusCode.INVALID_ARGUMENT, "the request is not a RateLimitRequest"),
        (request("other", [("user", "1")]).SerializeToString(), grpc.StatusCode.NOT_FOUND, "domain 'other' is unknown"),
        (request("shop", [("user", "x" * 2**20)]).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT, "at most 262144"),
        (request("shop", [("user", "x" * 5 * 2**20)]).SerializeToString(), grpc.StatusCode.RESOURCE_EXHAUSTED, "larger"),
    ],
    ids=["malformed", "unknown-domain", "1-MB", "5-MB"],
)  # fmt: skip
async def test_grpc_client_is_told_what_is_wrong(message, code, details):
    async with running() as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(channel)(message)
        assert caught.value.code() is code
        assert details in caught.value.details()
        assert (await method(channel)(MESSAGE)).overall_code == OK


async def test_health_says_whether_the_service_serves():
    async with running() as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.ensure_future(server.stop(5))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await stopping


async def test_call_in_flight_is_answered_when_the_server_stops():
    class Slow(RateLimitService):
        async def should_rate_limit(self, message: bytes) -> bytes:
            started.set()
            await go_on.wait()
            return await super().should_rate_limit(message)

    started, go_on = asyncio.Event(), asyncio.Event()
    slow = Slow(AsyncRateLimiter(MemoryStore()), Domains.of([DescriptorFile.parse(FILE)]))
    server = GrpcServer(slow, "127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = asyncio.ensure_future(method(channel)(MESSAGE))
        await started.wait()
        stopping = asyncio.ensure_future(server.stop(10))
        await asyncio.sleep(0)
        go_on.set()
        assert (await call).overall_code == OK
        await stopping


async def test_reflection_shows_envoys_service():
    async with running(max_connection_age=60) as (server, _):

        def reflected() -> tuple[list[str], Any]:
            with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                return list(database.get_services()), database.FindFileContainingSymbol(SERVICE)

        names, file = await asyncio.to_thread(reflected)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(names)
    assert [one.name for one in file.service[0].method] == ["ShouldRateLimit"]
    assert file.package == Request.DESCRIPTOR.file.package


async def test_ping_on_an_idle_connection_is_answered():
    """Envoy's keep-alive, in frames of HTTP/2: settings, then two pings."""
    preface, settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", struct.pack(">HBBBL", 0, 0, 4, 0, 0)
    pings = [struct.pack(">HBBBL", 0, 8, 6, 0, 0) + text for text in (b"ratekit1", b"ratekit2")]
    answers = [struct.pack(">HBBBL", 0, 8, 6, 1, 0) + text for text in (b"ratekit1", b"ratekit2")]
    async with running() as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(preface + settings)
        for ping, answer in zip(pings, answers, strict=True):
            writer.write(ping)
            await asyncio.wait_for(reader.readuntil(answer), 5)
        writer.close()
        await writer.wait_closed()


async def test_port_in_use_is_named():
    async with running() as (server, _):
        with pytest.raises(ConfigurationError, match=f"grpc address '127.0.0.1:{server.port}' cannot be listened on"):
            GrpcServer(service(), f"127.0.0.1:{server.port}")


async def call_asgi(
    app: Any, path: str, body: bytes, kind: bytes = b"application/grpc", extensions: Any = None
) -> list[Any]:
    """Return what an application sends."""
    chunks = [{"type": "http.request", "body": body[:3], "more_body": True}, {"type": "http.request", "body": body[3:]}]
    sent: list[Any] = []

    async def receive() -> Any:
        return chunks.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    trailers = {"http.response.trailers": {}} if extensions is None else extensions
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", kind)], "extensions": trailers}
    await app(scope, receive, send)
    return sent


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


async def test_asgi_form_answers_as_grpc_does():
    app = EnvoyMiddleware(inner, service())
    codes = []
    for _ in range(4):
        start, body, trailers = await call_asgi(app, METHOD, framed(MESSAGE))
        assert (start["status"], start["trailers"], trailers["headers"]) == (200, True, [(b"grpc-status", b"0")])
        codes.append(Response.FromString(body["body"][5:]).overall_code)
        assert struct.unpack(">BI", body["body"][:5]) == (0, len(body["body"]) - 5)
    assert codes == [OK, OK, OK, OVER_LIMIT]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (METHOD, framed(b"\xff"), b"3", b"the%20request%20is%20not%20a%20RateLimitRequest"),
        (METHOD, b"", b"3", b"the%20body%20is%20not%20one%20uncompressed%20message"),
        (METHOD, b"\x01" + framed(MESSAGE)[1:], b"3", b"the%20body%20is%20not%20one%20uncompressed"),
        (METHOD, framed(MESSAGE) + b"x", b"3", b"the%20body%20is%20not%20one%20uncompressed"),
        (METHOD, framed(bytes(300_000)), b"3", b"the%20request%20has%20more%20than%20262144%20bytes"),
        (f"/{SERVICE}/Other", framed(b""), b"12", b"the%20method"),
    ],
    ids=["malformed", "empty", "compressed", "longer", "large", "method"],
)
async def test_asgi_form_tells_what_is_wrong(path, body, status, message):
    *_, trailers = await call_asgi(EnvoyMiddleware(inner, service()), path, body)
    lines = dict(trailers["headers"])
    assert lines[b"grpc-status"] == status
    assert lines[b"grpc-message"].startswith(message)


async def test_asgi_form_hands_on_what_is_not_grpc():
    app = EnvoyMiddleware(inner, service())
    assert (await call_asgi(app, "/", b"", kind=b"text/plain"))[0]["status"] == 204
    assert (await call_asgi(app, METHOD, framed(MESSAGE), extensions={}))[0]["status"] == 501
    _, body, trailers = await call_asgi(app, HEALTH, framed(b""))
    assert (body["body"][5:], trailers["headers"]) == (b"\x08\x01", [(b"grpc-status", b"0")])
