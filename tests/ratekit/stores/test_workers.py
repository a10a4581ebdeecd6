"""Whether several processes with a memory:// each are warned of: real servers, and processes of multiprocessing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

APPLICATION = """
from ratekit import Limit, Policy, RateLimiter

limiter = RateLimiter("memory://")
print("LOADED", flush=True)


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
"""
PROGRAM = """
import uvicorn

if __name__ == "__main__":
    uvicorn.run("application:app", port=0, workers=2)
"""
SPAWNED = """
import multiprocessing
from ratekit import RateLimiter


def work():
    RateLimiter("memory://")
    RateLimiter("memory://")


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
"""


def output_of(folder: Path, *command: str, loaded: int, **environment: str) -> str:
    """Start a server, end it when so many workers have loaded the application, and return what it has written."""
    (folder / "application.py").write_text(APPLICATION)
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    kept = {name: value for name, value in os.environ.items() if name != "WEB_CONCURRENCY"}
    log = folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, stdout=out, stderr=out, env={**kept, "PYTHONPATH": paths, **environment}
        )
        try:
            end = time.monotonic() + 60
            while log.read_text().count("LOADED") < loaded and process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return log.read_text()


UVICORN = ("-m", "uvicorn", "application:app", "--port", "0")


@pytest.mark.parametrize("workers", [("--workers", "2"), ("--workers=2",)])
def test_workers_of_uvicorn_are_warned_of_with_their_number(tmp_path, workers):
    written = output_of(tmp_path, *UVICORN, *workers, loaded=2)
    assert written.count("SeveralProcessesWarning: memory:// is used in 2 workers (uvicorn --workers)") == 2
    assert "together they admit 2 times each limit" in written


def test_workers_of_a_program_that_runs_uvicorn_are_warned_of(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert "2 workers (uvicorn --workers)" in output_of(tmp_path, "program.py", loaded=2)


@pytest.mark.parametrize("options", [(), ("--workers", "1"), ("--reload",)])
def test_single_worker_of_uvicorn_is_not_warned_of(tmp_path, options):
    written = output_of(tmp_path, *UVICORN, *options, loaded=1)
    assert "LOADED" in written
    assert "SeveralProcessesWarning" not in written


@pytest.mark.parametrize(
    ("options", "environment"),
    [(("-w", "2"), {}), (("--workers=2",), {}), (("-w2",), {}), ((), {"GUNICORN_CMD_ARGS": "--workers 2"})],
)
def test_workers_of_gunicorn_are_warned_of_with_their_number(tmp_path, options, environment):
    command = ("-m", "gunicorn", "application:app", "--bind", "127.0.0.1:0", *options)
    assert "2 workers (gunicorn --workers)" in output_of(tmp_path, *command, loaded=2, **environment)


def test_process_of_multiprocessing_is_warned_of_once(tmp_path):
    (tmp_path / "spawned.py").write_text(SPAWNED)
    written = output_of(tmp_path, "spawned.py", loaded=1)
    assert written.count("SeveralProcessesWarning: memory:// is used in a process of multiprocessing") == 1
