"""The oldest and the newest release of redis-py that are supported, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ratekit
from support.servers import REQUIRE_ALL

OLDEST = "5.2.0"
ROOT = Path(ratekit.__file__).parents[1]


@pytest.fixture
def oldest(tmp_path) -> Path:
    """A folder with the oldest release of redis-py."""
    folder = tmp_path / "oldest"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), f"redis=={OLDEST}"]
    installed = subprocess.run(install, capture_output=True, text=True, check=False, timeout=120)
    if installed.returncode != 0:
        reason = f"pip cannot install the oldest redis-py: {installed.stderr.strip()[-300:]}"
        if REQUIRE_ALL:
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


def run_with(url: str, *folders: Path) -> str:
    """Run the script with the packages of some folders before all others, and return what it prints."""
    script = Path(__file__).with_name("redis_release.py")
    path = os.pathsep.join(map(str, (*folders, ROOT)))
    finished = subprocess.run(
        [sys.executable, "-W", "error", str(script), url],
        env=os.environ | {"PYTHONPATH": path},
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return finished.stdout + finished.stderr


def test_oldest_redis_py_is_used_alike(redis_server, oldest):
    assert run_with(redis_server.url, oldest) == f"all is well with {OLDEST}"


def test_newest_redis_py_is_used_alike(redis_server):
    assert run_with(redis_server.url).startswith("all is well with ")
