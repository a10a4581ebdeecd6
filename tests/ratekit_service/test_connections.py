"""Connections of a real server: headers and trailers without end, headers that come late, and requests that are in order."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support import instances

START = b"GET /v1/health HTTP/1.1\r\nhost: ratekit\r\n"
BODY_SECONDS = 0.5


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Where a service listens that has half a second for each request."""
    folder: Path = tmp_path_factory.mktemp("connections")
    (folder / "settings.toml").write_text(f"body_seconds = {BODY_SECONDS}\nbody_bytes = 1024\n")
    with instances.instances(1, folder, "sqlite:///r.db", "memory://", "--config", "settings.toml") as (one,):
        parts = urlsplit(one.url)
        yield str(parts.hostname), int(parts.port or 0)
        assert "Traceback" not in one.log.read_text()


def answered(connection: socket.socket) -> bytes:
    """Return all that comes until the server closes the connection."""
    found = b""
    while part := connection.recv(65536):
        found += part
    return found


def send_without_end(connection: socket.socket, start: bytes, line: bytes) -> int:
    """Send lines until the server has had enough. Returns how many bytes that took."""
    connection.sendall(start)
    for sent in range(0, 50_000_000, len(line)):
        try:
            connection.sendall(line)
        except OSError:
            return sent
    raise AssertionError("the server reads without end")


def test_headers_without_end_are_refused(address):
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(START + b"a: " + b"b" * 400_000)
        try:
            answer = answered(connection)
        except ConnectionResetError:  # what was sent after the answer may throw it away
            answer = b"HTTP/1.1 400"
        assert answer.startswith(b"HTTP/1.1 400")
    with socket.create_connection(address, timeout=10) as connection:
        assert send_without_end(connection, START, b"a: " + b"b" * 10_000 + b"\r\n") < 20_000_000


def test_trailers_without_end_are_not_read(address):
    start = b"POST /v1/check HTTP/1.1\r\nhost: ratekit\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    with socket.create_connection(address, timeout=10) as connection:
        assert send_without_end(connection, start, b"a: " + b"b" * 10_000 + b"\r\n") < 20_000_000


@pytest.mark.parametrize("begun", [b"GET", START, b"\r\n", START + b"\r\n" + START])
def test_headers_that_do_not_come_are_not_waited_for(address, begun):
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(begun)
        answers = answered(connection)  # which ends only if the server closes the connection
    assert answers.count(b"HTTP/1.1 200") == begun.count(b"\r\n\r\n")


def test_requests_in_pieces_one_after_the_other_and_pipelined_are_answered(address):
    last = START + b"connection: close\r\n\r\n"
    with socket.create_connection(address, timeout=10) as connection:
        for piece in (START[:10], START[10:], b"a: " + b"b" * 30_000, b"\r\n\r\n", START + b"\r\n" + START + b"\r\n", last):
            connection.sendall(piece)
        assert answered(connection).count(b"HTTP/1.1 200") == 4
