"""The host for `grpc.aio`: ShouldRateLimit with health, reflection, keep-alive and a graceful end. Extra `grpc`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ratekit.core.errors import ConfigurationError
from ratekit_service.envoy.errors import GrpcError
from ratekit_service.envoy.reflected import descriptor_pool
from ratekit_service.envoy.service import SERVICE, RateLimitService

_log = logging.getLogger("ratekit.envoy")
_STATUSES = {code.value[0]: code for code in grpc.StatusCode}
_MOST_RECEIVED = 4 * 1024 * 1024  # bytes; a longer message is refused by gRPC itself


@dataclass(frozen=True, slots=True)
class Tls:
    """The files of a server's certificate and key, and of the authority whose clients it accepts."""

    certificate: Path
    key: Path
    client_authority: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Read the files."""
        authority = self.client_authority.read_bytes() if self.client_authority is not None else None
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


class GrpcServer:
    """A gRPC server in the running event loop.

    max_connection_age is how many seconds a connection lives before clients are asked to connect anew, so that a load
    balancer can spread them again; None: for ever. shares_port is for several workers on one port.
    """

    def __init__(
        self,
        service: RateLimitService,
        address: str,
        *,
        tls: Tls | None = None,
        max_connection_age: float | None = None,
        shares_port: bool = False,
    ) -> None:
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=_options(max_connection_age, shares_port=shares_port))
        handlers: dict[str, Any] = {
            "ShouldRateLimit": grpc.unary_unary_rpc_method_handler(_handler(service.should_rate_limit))
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, pool=descriptor_pool())
        self.port = self._listen(address, tls)

    async def start(self) -> None:
        """Accept calls."""
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        _log.info("Envoy's rate limit service listens on port %d", self.port)

    async def stop(self, grace: float = 5.0) -> None:
        """Say that the service ends, let calls finish for so many seconds, and close."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)

    async def wait(self) -> None:
        """Wait until the server has ended."""
        await self._server.wait_for_termination()

    def _listen(self, address: str, tls: Tls | None) -> int:
        try:
            if tls is not None:
                return self._server.add_secure_port(address, tls.credentials())
            return self._server.add_insecure_port(address)
        except (RuntimeError, OSError) as error:
            raise ConfigurationError(f"grpc address {address!r} cannot be listened on: {error}") from None


def _handler(decide: Callable[[bytes], Awaitable[bytes]]) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def should_rate_limit(message: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            return await decide(message)
        except GrpcError as error:
            await context.abort(_STATUSES[error.code.value], error.message)

    return should_rate_limit


def _options(max_connection_age: float | None, *, shares_port: bool) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.so_reuseport", int(shares_port)),  # a second server on the same port is an error, and not half of the calls
        ("grpc.max_receive_message_length", _MOST_RECEIVED),
        ("grpc.keepalive_time_ms", 60_000),  # a peer that is gone is noticed
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),  # Envoy's own keep-alive is no abuse
    ]
    if max_connection_age is not None:
        options.append(("grpc.max_connection_age_ms", round(max_connection_age * 1000)))
    return options
