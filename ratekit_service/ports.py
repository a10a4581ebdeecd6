"""Whether a port can be listened on, told in one sentence before anything begins."""

from __future__ import annotations

import errno
import socket

from ratekit.core.errors import ConfigurationError

_LAST_PORT = 65_535


def check_port(host: str, port: int, option: str) -> None:
    """Raise ConfigurationError if nobody can listen there. A port of 0 is any that is free."""
    if not 0 <= port <= _LAST_PORT:
        raise ConfigurationError(f"port {port} is not between 0 and {_LAST_PORT}")
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
