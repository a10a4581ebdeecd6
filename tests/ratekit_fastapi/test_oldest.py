"""The oldest FastAPI that is supported, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import REQUIRE_ALL

OLDEST = ["fastapi==0.115.12", "starlette==0.46.2", "httpx==0.28.1", "httpcore==1.0.9", "certifi"]


def test_oldest_fastapi_is_served_alike(tmp_path):
    """Only what is pinned is installed, into a folder that comes before all others; the rest is here already."""
    folder = tmp_path / "oldest"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *OLDEST]
    installed = subprocess.run(install, capture_output=True, text=True, check=False, timeout=120)
    if installed.returncode != 0:
        reason = f"pip cannot install the oldest FastAPI: {installed.stderr.strip()[-300:]}"
        if REQUIRE_ALL:
            pytest.fail(reason)
        pytest.skip(reason)
    script = Path(__file__).with_name("oldest.py")
    finished = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(folder)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert finished.stdout == "all is well", finished.stdout + finished.stderr
