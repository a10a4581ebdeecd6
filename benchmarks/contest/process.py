"""A worker seen from outside. A contestant that fails ends its process, and what it said last is the reason."""

from __future__ import annotations

import json
import re
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.contest.loads import Block, Load

_ROOT = Path(__file__).parents[2]
_LONGEST_SECONDS = 120.0
_STOP_SECONDS = 5.0
_LONGEST_REASON = 200
_PATH = re.compile(r"(?<![\w:/])/[\w./-]+")  # of this machine


class Lost(Exception):
    """A contestant did not answer; the message says why."""


@dataclass(slots=True)
class Worker:
    """The process of a contestant; it is started when it is asked, and again if it was lost."""

    number: int
    url: str
    _process: subprocess.Popen[str] | None = field(default=None, init=False)
    _said: IO[str] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the process, if it does not run."""
        if self._process is None:
            command = [sys.executable, "-m", "benchmarks.contest.worker", str(self.number), self.url]
            self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True, cwd=_ROOT
            )

    def run(self, load: Load, seconds: float, most: int | None = None) -> Block:
        """Put a load on the contestant, for that time or for so many checks. Raises Lost if it fails."""
        self.start()
        answer = self._ask(json.dumps({"load": asdict(load), "seconds": seconds, "most": most}))
        if not answer:
            raise Lost(self.stop())
        return Block(**json.loads(answer))

    def _ask(self, line: str) -> str:
        process: Any = self._process
        with suppress(BrokenPipeError):
            process.stdin.write(line + "\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], _LONGEST_SECONDS)
        return process.stdout.readline() if ready else ""

    def stop(self) -> str:
        """End the process, and return the last line that it said."""
        process, said, self._process, self._said = self._process, self._said, None, None
        if process is None or said is None:
            return ""
        _end(process)
        said.seek(0)
        lines = [line.strip() for line in said if line.strip()]
        said.close()
        return (
            _PATH.sub("...", lines[-1])[:_LONGEST_REASON] if lines else f"it did not answer within {_LONGEST_SECONDS:.0f} s"
        )


def _end(process: subprocess.Popen[str]) -> None:
    """Let a process end by itself, as its input has ended; kill one that does not."""
    with suppress(BrokenPipeError, subprocess.TimeoutExpired):
        process.communicate(timeout=_STOP_SECONDS)
    if process.poll() is None:
        process.kill()
        process.communicate()
