"""What `import ratekit` adds to the start of an interpreter."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from benchmarks.rounds import Case, Pair, Row, measure
from benchmarks.settings import Settings

_TARGET_MS = 60.0
_LONGEST_SECONDS = 30.0
_UNWANTED = {"redis", "valkey", "hiredis", "lupa", "fastapi", "starlette", "django", "flask", "pytest"}
_LIST_MODULES = "import sys, ratekit; print(*{name.partition('.')[0] for name in sys.modules})"


def compare_import(settings: Settings) -> list[Row]:
    """Compare an interpreter that imports ratekit with a bare one; no framework and no driver may come with it."""
    with _installed_environment() as environment:
        unwanted = _UNWANTED.intersection(_python(_LIST_MODULES, environment).split())
        assert not unwanted, f"import ratekit imports {', '.join(sorted(unwanted))}"
        case, bare = _start_ms("import ratekit", environment), _start_ms("pass", environment)
        pair = Pair("ratekit, ms more than bare Python", case, bare, _TARGET_MS, operator.sub)
        return measure("import", [pair], settings.rounds)


@contextmanager
def _installed_environment() -> Iterator[dict[str, str]]:
    """Make an environment in which modules are compiled once, as pip does, even if this one keeps no bytecode."""
    with tempfile.TemporaryDirectory(prefix="ratekit-benchmark-") as folder:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        yield kept | {"PYTHONPYCACHEPREFIX": folder}


def _start_ms(code: str, environment: dict[str, str]) -> Case:
    def block() -> float:
        start = perf_counter()
        _python(code, environment)
        return (perf_counter() - start) * 1000

    return block


def _python(code: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", code]
    answer = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=_LONGEST_SECONDS
    )
    return answer.stdout
