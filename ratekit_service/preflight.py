"""Checks before the service starts: what is wrong with its settings here is one sentence, and nothing has begun yet."""

from __future__ import annotations

import ssl
from pathlib import Path

from ratekit.core.errors import ConfigurationError
from ratekit.core.modes import get_rate_limit_mode
from ratekit.database import urls
from ratekit_service.ports import check_port
from ratekit_service.settings import Settings

_SQLITE = b"SQLite format 3\0"  # how every database of SQLite begins


def check(settings: Settings) -> None:
    """Raise ConfigurationError if the service could not run as it is told."""
    if settings.workers > 1 and settings.store_url.startswith("memory:"):
        raise ConfigurationError(
            f"memory:// counts in one process, not in {settings.workers} workers: give a redis:// store"
        )
    get_rate_limit_mode()
    _check_database_file(settings.database_url)
    if settings.tls_certificate:
        _check_tls(settings.tls_certificate, settings.tls_key)
    check_port(settings.host, settings.port, "--port")
    if settings.grpc_port:
        check_port(settings.host, settings.grpc_port, "--grpc-port")


def _check_database_file(url: str) -> None:
    """Raise ConfigurationError if a SQLite file is in a folder that does not exist, or is something else."""
    parts = urls.parsed(url)
    if parts.get_backend_name() != "sqlite" or not parts.database or parts.database.startswith((":memory:", "file:")):
        return
    path = Path(parts.database).absolute()
    if not path.parent.is_dir():
        raise ConfigurationError(f"database_url names a file in {str(path.parent)!r}, and there is no such folder")
    if path.exists() and not _is_database(path):
        raise ConfigurationError(f"database_url names {str(path)!r}, which is no database of SQLite")


def _is_database(path: Path) -> bool:
    """Whether a file is a database of SQLite, or nothing yet."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) in (b"", _SQLITE)
    except OSError:
        return False


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
