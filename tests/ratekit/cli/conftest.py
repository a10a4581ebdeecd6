"""The program: in this process for most, as a real one in pipes and in a pseudo-terminal for what depends on that."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ratekit.cli.program import run

COMMAND = [sys.executable, "-m", "ratekit.cli"]


@dataclass(frozen=True)
class Ended:
    """What a run of the program has left."""

    code: int
    out: str
    err: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def url(redis_server: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A real server, empty, which the environment names."""
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", redis_server.url)
    return redis_server.url


@pytest.fixture
def ratekit(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run the program in this process."""

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        code = run(list(arguments))
        return Ended(code, *capsys.readouterr())

    return call


@pytest.fixture
def piped() -> Callable[..., Ended]:
    """Run the program as a process of its own, in pipes."""

    def call(*arguments: str, **options: Any) -> Ended:
        options = {
            "capture_output": True,
            "text": True,
            "timeout": 60,
            "check": False,
            "stdin": subprocess.DEVNULL,
        } | options
        ended = subprocess.run([*COMMAND, *arguments], **options)
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    return call


@pytest.fixture
def terminal() -> Callable[..., Ended]:
    """Run the program in a pseudo-terminal, and type an answer once it asks for one."""

    def call(*arguments: str, answer: str | None = None, **environment: str) -> Ended:
        variables = {**os.environ, "TERM": "xterm-256color", **environment}
        leader, follower = pty.openpty()
        process = subprocess.Popen([*COMMAND, *arguments], stdin=follower, stdout=follower, stderr=follower, env=variables)
        os.close(follower)
        shown = _read(leader, answer)
        code = process.wait(timeout=60)
        os.close(leader)
        return Ended(code, shown)

    return call


def _read(leader: int, answer: str | None) -> str:
    shown, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            data = os.read(leader, 4096)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        shown += data
        if answer is not None and b"?" in shown:
            os.write(leader, f"{answer}\n".encode())
            answer = None
    return shown.decode()
