"""What README and docs show passes mypy and pyright, both strict, as a user's checkers see it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest
from fastapi import FastAPI

from ratekit import asgi, wsgi
from ratekit.core.limits import Algorithm, AlgorithmName
from ratekit_django import rate_limit
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, install
from support import django_ready  # noqa: F401
from support.pages import ROOT, snippets

# A wrong argument for each public function and class; each line has to be found.
WRONG = """
from ratekit import Limit, Policy, RateLimiter
from ratekit.asgi import App, RateLimitMiddleware
from ratekit.overrides import set_rate_limit_override
from flask import Flask
from ratekit.flask import install
from ratekit_django import rate_limit
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter


def use(app: App, limiter: RateLimiter, policy: Policy) -> None:
    Limit(3, 60, algorithm="leaky_cauldron")
    limiter.check(policy, 42)
    RateLimitMiddleware(app, rulez={"/x": "1/s"})
    PathRateLimiter(3, 60, colour="red")
    ProjectRateLimiter(3, 60, anonymus="ip")
    rate_limit("3/min", bye="ip")
    install(Flask("shop"), identifie=None)
    set_rate_limit_override(limiter, endpoint="/x", subject="u", max_request=3)
"""


Faults = dict[str, dict[int, str]]  # what a checker says of a line of a file


def mypy(folder: Path) -> Faults:
    """What mypy --strict says of each file of a folder."""
    options = ["--strict", "--follow-imports=silent", "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *options, *files_of(folder)]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert finished.stderr == "", finished.stderr
    found = re.findall(r"^(\w+\.py):(\d+): error: (.*)$", finished.stdout, re.MULTILINE)
    return by_file((file, int(line), fault) for file, line, fault in found)


def pyright(folder: Path) -> Faults:
    """What pyright, strict, says of each file of a folder."""
    settings = {"extraPaths": [str(ROOT)], "pythonVersion": "3.11", "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)]
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = json.loads(finished.stdout)["generalDiagnostics"]
    faults = [fault for fault in said if fault["severity"] == "error"]
    return by_file((Path(fault["file"]).name, fault["range"]["start"]["line"] + 1, fault["message"]) for fault in faults)


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.py"))


def by_file(faults: Iterable[tuple[str, int, str]]) -> Faults:
    found: Faults = {}
    for file, line, fault in faults:
        lines = found.setdefault(file, {})
        lines[line] = lines.get(line, "") + fault
    return found


def as_module(name: str) -> str:
    """The file of a snippet: `docs/fastapi.md-1` is in `docs_fastapi_md_1.py`."""
    return re.sub(r"\W", "_", name) + ".py"


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_every_snippet_passes_the_type_checker_and_a_wrong_one_does_not(checker, tmp_path):
    for name, code in snippets().items():
        (tmp_path / as_module(name)).write_text(code)
    (tmp_path / "wrong.py").write_text(WRONG)
    faults = checker(tmp_path)
    wrong = faults.pop("wrong.py")
    assert sorted(wrong) == [line for line, code in enumerate(WRONG.splitlines(), 1) if code.startswith("    ")]
    said = "\n".join(wrong.values())
    assert [word for word in ("rulez", "colour", "anonymus", "bye") if f'"{word}"' not in said] == []
    assert faults == {}


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda: asgi.RateLimitMiddleware(None, rulez={}), "rules"),
        (lambda: wsgi.RateLimitMiddleware(None, adress_limit="1/s"), "address_limit"),
        (lambda: PathRateLimiter(3, 60, on_outrage="open"), "on_outage"),
        (lambda: ProjectRateLimiter(3, 60, anonymus="ip"), "anonymous"),
        (lambda: rate_limit("3/min", bye="ip"), "by"),
        (lambda: install(FastAPI(), dead_line=3), "deadline"),
        (lambda: rate_limit("3/min", cots=3), "cost"),
    ],
)
def test_misspelt_argument_is_an_error_that_names_the_right_one(call, meant):
    with pytest.raises(TypeError, match=f"did you mean '{meant}'"):
        call()


def test_type_checkers_know_the_name_of_every_algorithm():
    assert get_args(AlgorithmName) == tuple(Algorithm)
