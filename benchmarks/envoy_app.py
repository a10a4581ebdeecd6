"""The servers that benchmarks.envoy measures: `python -m benchmarks.envoy_app CASE PORT`, and `app` for pyvoy."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from ratekit import AsyncRateLimiter
from ratekit.rules.descriptors.file import DescriptorFile
from ratekit.rules.descriptors.tree import Domains
from ratekit_service.envoy.asgi_host import EnvoyMiddleware
from ratekit_service.envoy.service import SERVICE, RateLimitService

FILE = """
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 1000000000}}
"""


def service() -> RateLimitService:
    """Return the service on the store of RATE_LIMIT_STORE_URL."""
    return RateLimitService(AsyncRateLimiter(deadline=2), Domains.of([DescriptorFile.parse(FILE)]))


async def _not_found(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


app = EnvoyMiddleware(_not_found, service())


async def _nothing(message: bytes, context: Any) -> bytes:
    return b"\x08\x01"


async def _serve(case: str, port: int) -> None:
    if case == "nothing":
        server = grpc.aio.server()
        handlers: dict[str, Any] = {"ShouldRateLimit": grpc.unary_unary_rpc_method_handler(_nothing)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()
        return
    from ratekit_service.envoy.grpc_host import GrpcServer

    host = GrpcServer(service(), f"127.0.0.1:{port}")
    await host.start()
    await host.wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
