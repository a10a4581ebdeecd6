"""The example projects, each started in a copy of its folder by the command of its README."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

from support.fetching import fetch
from support.pages import ROOT
from support.servers import free_port

EXAMPLES = ROOT / "example_projects"
MAIN = ("main.py",)  # what most of them are started by
_VARIABLES = ("DJANGO_SETTINGS_MODULE", "RATE_LIMIT_STORE_URL")  # of the tests


class Example:
    """An example project that runs: its folder, its URL, a client of it, and what it has printed."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx2.Client(base_url=self.url, timeout=30)

    @property
    def printed(self) -> str:
        """What it has printed, and logged, until now."""
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self.folder.parent / "log"

    def commands(self, start: str = "") -> list[str]:
        """The commands that it tells to try, or those of them that start so."""
        found = re.findall(r"^  (\S.*)$", self.printed, re.MULTILINE)
        return [command for command in found if command.startswith(start)]

    def statuses(self, path: str, times: int, **options: object) -> list[int]:
        """Get a path some times, and return the statuses."""
        return [self.client.get(path, **options).status_code for _ in range(times)]


def variables(**given: str) -> dict[str, str]:
    """Return the environment of an example: that of the tests without what they have set, with what is given."""
    own = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    return own | {"PYTHONPATH": str(ROOT)} | given


def run_example(name: str, folder: Path, *command: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Python in a copy of an example, to its end."""
    place = _copy(name, folder)
    call = [sys.executable, *command]
    return subprocess.run(call, cwd=place, env=variables(**given), capture_output=True, text=True, check=False, timeout=60)


def shell(command: str) -> str:
    """Run a command that an example tells to try, and return what it prints."""
    return subprocess.check_output(["sh", "-c", command], text=True)


@contextmanager
def example(
    name: str, folder: Path, command: Sequence[str] = MAIN, probe: str = "/health", **given: str
) -> Iterator[Example]:
    """Run an example. Ctrl-C ends it, and it has told no traceback."""
    place, port = _copy(name, folder), free_port()
    call = [sys.executable, *command, "--port", str(port)]
    pipes = {"stdout": (folder / "log").open("wb"), "stderr": subprocess.STDOUT}
    process = subprocess.Popen(call, cwd=place, env=variables(**given), preexec_fn=_heed_ctrl_c, **pipes)
    running = Example(place, port, process)
    try:
        fetch(f"{running.url}/health")
        yield running
        process.send_signal(signal.SIGINT)
        process.wait(20)
    except Exception as error:
        error.add_note(running.printed)
        raise
    finally:
        process.kill()  # if it has not ended
        process.wait()
        running.client.close()
        pipes["stdout"].close()
    assert process.returncode == 0, running.printed
    assert "Traceback" not in running.printed, running.printed


def _copy(name: str, folder: Path) -> Path:
    """Copy an example to a folder, unless it is there."""
    place = folder / name
    if not place.exists():
        shutil.copytree(EXAMPLES / name, place, ignore=shutil.ignore_patterns("__pycache__", "*.db"))
    return place


def _heed_ctrl_c() -> None:
    """Undo what a shell does to the commands that it runs in the background: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
