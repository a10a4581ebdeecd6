"""Checks before the service starts: what is wrong with its settings here is one sentence, and nothing has begun yet."""

from __future__ import annotations

import errno
import socket
import ssl
from pathlib import Path

from ratekit.core.errors import ConfigurationError
from ratekit.core.modes import get_rate_limit_mode
from ratekit.database import urls
from ratekit_service.settings import Settings


def check(settings: Settings) -> None:
    """Raise ConfigurationError if the service could not run as it is told."""
    if settings.workers > 1 and settings.store_url.startswith("memory:"):
        raise ConfigurationError(
            f"memory:// counts in one process, not in {settings.workers} workers: give a redis:// store"
        )
    get_rate_limit_mode()
    _check_database_folder(settings.database_url)
    if settings.tls_certificate:
        _check_tls(settings.tls_certificate, settings.tls_key)
    _check_port(settings.host, settings.port, "--port")
    if settings.grpc_port:
        _check_port(settings.host, settings.grpc_port, "--grpc-port")


def _check_database_folder(url: str) -> None:
    """Raise ConfigurationError if a SQLite file is in a folder that does not exist: nobody else will make it."""
    parts = urls.parsed(url)
    if parts.get_backend_name() != "sqlite" or not parts.database or parts.database.startswith((":memory:", "file:")):
        return
    folder = Path(parts.database).absolute().parent
    if not folder.is_dir():
        raise ConfigurationError(f"database_url names a file in {str(folder)!r}, and there is no such folder")


def _check_tls(certificate: str, key: str) -> None:
    for name, path in (("tls_certificate", certificate), ("tls_key", key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{name} {path!r} cannot be read: {error.strerror}") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError:
        raise ConfigurationError(
            f"tls_certificate {certificate!r} and tls_key {key!r} are no certificate and key in PEM, without a password"
        ) from None


def _check_port(host: str, port: int, option: str) -> None:
    """Raise ConfigurationError if nobody can listen there. A port of 0 is any that is free."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(f"port {port} of {host} is taken by another program: choose one by {option}") from None
        raise ConfigurationError(f"nobody can listen on host {host!r}, port {port}: {error.strerror}") from None
