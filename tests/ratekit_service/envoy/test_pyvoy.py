"""The ASGI form on pyvoy, with a real gRPC client: HTTP and gRPC on one port."""

from __future__ import annotations

import sys
from pathlib import Path

import grpc
import httpx2
import pytest

from ratekit_service.envoy.asgi_host import HEALTH
from ratekit_service.envoy.service import METHOD
from support.envoy_messages import OK, OVER_LIMIT, Response, request
from support.gateways import process
from support.servers import free_port, missing

APP = """
from ratekit import AsyncRateLimiter
from ratekit.rules.descriptors.file import DescriptorFile
from ratekit.rules.descriptors.tree import Domains
from ratekit_service.envoy.asgi_host import EnvoyMiddleware
from ratekit_service.envoy.service import RateLimitService

async def inner(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"over HTTP"})

file = "{domain: shop, descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]}"
limiter = AsyncRateLimiter("memory://")
app = EnvoyMiddleware(inner, RateLimitService(limiter, Domains.of([DescriptorFile.parse(file)])))
"""


def test_grpc_client_is_answered_on_the_port_of_an_application(tmp_path):
    pyvoy = Path(sys.executable).parent / "pyvoy"
    if not pyvoy.exists():
        missing("no pyvoy: install the extra envoy")
    (tmp_path / "limited.py").write_text(APP)
    port = free_port()
    command = [str(pyvoy), "limited:app", "--port", str(port), "--log-level", "error"]
    with process(command, port, tmp_path), grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=Response.FromString)
        message = request("shop", [("user", "42")]).SerializeToString()
        codes = [method(message, timeout=20).overall_code for _ in range(4)]
        assert codes == [OK, OK, OK, OVER_LIMIT]
        with pytest.raises(grpc.RpcError) as caught:
            method(request("other", [("user", "1")]).SerializeToString(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == "domain 'other' is unknown: there are shop"
        assert channel.unary_unary(HEALTH)(b"", timeout=20) == b"\x08\x01"
        assert httpx2.get(f"http://127.0.0.1:{port}/").text == "over HTTP"
