"""Envoy's rate limit service with TLS: a real gRPC client, and certificates made for the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ratekit import ConfigurationError
from ratekit_service.envoy.service import METHOD
from ratekit_service.settings import Settings
from support.certificates import make_certificates
from support.envoy_messages import OK, Response, request
from support.gateway_service import process
from support.servers import free_port

FILE = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 3}}\n"
MESSAGE = request("shop", [("user", "42")]).SerializeToString()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["serve", "alone"])
def port(request: pytest.FixtureRequest, tmp_path: Path, certificates: Path) -> Iterator[int]:
    """The port of a service that asks clients for a certificate: by `ratekit serve`, and alone."""
    import sys

    port, http = free_port(), free_port()
    (tmp_path / "limits.yaml").write_text(FILE)
    pair = ("--tls-certificate", str(certificates / "server.pem"), "--tls-key", str(certificates / "server.key"))
    authority, rules = str(certificates / "authority.pem"), ("--rules", str(tmp_path / "limits.yaml"))
    alone = [sys.executable, "-m", "ratekit_service.envoy", "--grpc-port", str(port), "--store", "memory://", *rules]
    serve = [sys.executable, "-m", "ratekit.cli", "serve", "--port", str(http), "--grpc-port", str(port), *rules]
    commands = {
        "alone": [*alone, *pair, "--tls-client-authority", authority],
        "serve": [*serve, *pair, "--grpc-client-authority", authority],
    }
    database = {"RATEKIT_DATABASE_URL": f"sqlite:///{tmp_path}/ratekit.db", "RATE_LIMIT_STORE_URL": "memory://"}
    with process(commands[request.param], port, tmp_path, **database):
        yield port


def ask(port: int, folder: Path, authority: str, client: str | None) -> int:
    pair = (
        {}
        if client is None
        else {"private_key": _read(folder, f"{client}.key"), "certificate_chain": _read(folder, f"{client}.pem")}
    )
    credentials = grpc.ssl_channel_credentials(_read(folder, f"{authority}.pem"), **pair)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        method = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=Response.FromString)
        return method(MESSAGE, timeout=10).overall_code


def _read(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def test_client_with_a_certificate_of_the_authority_is_answered_and_others_are_not(port, certificates):
    assert ask(port, certificates, "authority", "client") == OK
    for authority, client in (("authority", None), ("authority", "stranger"), ("stranger", "client")):
        with pytest.raises(grpc.RpcError) as raised:
            ask(port, certificates, authority, client)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=bytes)(MESSAGE, timeout=10)


def test_authority_without_tls_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="grpc_client_authority needs"):
        Settings(grpc_port=8081, rules="limits.yaml", grpc_client_authority="authority.pem")
