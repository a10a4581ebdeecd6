"""The commands and paths that CONTRIBUTING.md names exist, and its example is a test of the suite."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from support.pages import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
COMMANDS = [line.partition("  #")[0].strip() for line in re.findall(r"^    (.+)$", PAGE.replace("```", ""), re.MULTILINE)]
PYTEST = ".venv/bin/python -m pytest "


def test_every_make_target_exists():
    named = set(re.findall(r"\bmake ([a-z-]+)\b", " ".join([*COMMANDS, *re.findall(r"`([^`\n]+)`", PAGE)])))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "dev", "test"} <= named
    assert named - targets == set()


def test_every_path_exists():
    paths = [path for path in re.findall(r"`([\w./]+)`", PAGE) if "/" in path or path.endswith(".md")]
    assert len(paths) > 15
    made = ("build/",)  # by commands of the page
    assert [path for path in paths if not path.startswith(made) and not (ROOT / path).exists()] == []


def test_every_fixture_and_helper_that_is_named_exists():
    assert re.findall(r"fixtures? `(\w+)`", PAGE) == ["limiter", "ratekit_clock", "redis_server"]
    for name, home in {
        "limiter": "tests/ratekit/conftest.py",
        "redis_server": "tests/conftest.py",
        "server": "tests/conftest.py",
        "ratekit_clock": "ratekit/pytest_plugin.py",
        "wait_until": "benchmarks/server.py",
    }.items():
        assert f"`{name}`" in PAGE
        assert f"def {name}(" in (ROOT / home).read_text()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(PYTEST)])
def test_every_pytest_command_finds_tests(command):
    words = shlex.split(command.removeprefix(PYTEST))
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert collected.returncode == 0, collected.stdout


def test_example_is_a_test_of_the_file_that_is_named():
    (example,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    assert example in (ROOT / "tests/ratekit/stores/test_conformance.py").read_text()
