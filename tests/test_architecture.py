"""The house: layers point downwards, the public names are those of the contract, imports are light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ratekit

ROOT = Path(ratekit.__file__).parents[1]
LEVELS = {
    "ratekit.errors": 0,
    "ratekit.limits": 0,
    "ratekit.figures": 0,
    "ratekit.headers": 0,
    "ratekit.results": 0,
    "ratekit.modes": 0,
    "ratekit.clock": 0,
    "ratekit.addresses": 1,
    "ratekit.keys": 1,
    "ratekit.outage": 1,
    "ratekit.override_fields": 1,
    "ratekit.plans": 1,
    "ratekit.protocol": 1,
    "ratekit.breaker": 1,
    "ratekit.events": 1,
    "ratekit.stores": 2,
    "ratekit.stores.asking": 2,
    "ratekit.stores.batch": 2,
    "ratekit.stores.cluster": 2,
    "ratekit.stores.hub": 2,
    "ratekit.stores.line": 2,
    "ratekit.stores.locations": 2,
    "ratekit.stores.memory": 2,
    "ratekit.stores.patience": 2,
    "ratekit.stores.pool": 2,
    "ratekit.stores.redis": 2,
    "ratekit.stores.redis_asyncio": 2,
    "ratekit.stores.script": 2,
    "ratekit.stores.turns": 2,
    "ratekit.stores.wires": 2,
    "ratekit.stores.commands": 2,
    "ratekit.absence": 2,
    "ratekit.local": 2,
    "ratekit.refusals": 2,
    "ratekit.limiter": 2,
    "ratekit.operations": 2,
    "ratekit": 3,
    "ratekit.subjects": 1,
    "ratekit.tracing": 3,
    "ratekit.prometheus": 3,
    "ratekit.opentelemetry": 3,
    "ratekit.logs": 3,
    "ratekit.report": 3,
    "ratekit.report.forms": 3,
    "ratekit.report.merging": 3,
    "ratekit.report.reading": 3,
    "ratekit.report.reporter": 3,
    "ratekit.report.tallies": 3,
    "ratekit.report.values": 3,
    "ratekit.requests": 3,
    "ratekit.identity": 3,
    "ratekit.anonymous": 3,
    "ratekit.rules": 3,
    "ratekit.override_flows": 3,
    "ratekit.overrides": 3,
    "ratekit.fleet": 3,
    "ratekit.counters": 3,
    "ratekit.explanations": 3,
    "ratekit.front": 3,
    "ratekit.decisions": 3,
    "ratekit.guard": 3,
    "ratekit.gathering": 0,
    "ratekit.caches": 0,
    "ratekit.loggers": 0,
    "ratekit.scopes": 3,
    "ratekit.passages": 3,
    "ratekit.asgi": 3,
    "ratekit.wsgi": 3,
    "ratekit.testing": 3,
    "ratekit.doctor": 3,
    "ratekit.pytest_plugin": 4,
    "ratekit.cli": 4,
    "ratekit.cli.__main__": 4,
    "ratekit.cli.checks": 4,
    "ratekit.cli.completion": 4,
    "ratekit.cli.doctor": 4,
    "ratekit.cli.explain": 4,
    "ratekit.cli.mode": 4,
    "ratekit.cli.overrides": 4,
    "ratekit.cli.program": 4,
    "ratekit.cli.report": 4,
    "ratekit.cli.session": 4,
    "ratekit_django": 4,
    "ratekit_django.apps": 4,
    "ratekit_django.caches": 4,
    "ratekit_django.checks": 4,
    "ratekit_django.conf": 4,
    "ratekit_django.decisions": 4,
    "ratekit_django.declared": 4,
    "ratekit_django.decorators": 4,
    "ratekit_django.drf": 4,
    "ratekit_django.limits": 4,
    "ratekit_django.management": 4,
    "ratekit_django.management.commands": 4,
    "ratekit_django.management.commands.ratekit": 4,
    "ratekit_django.middleware": 4,
    "ratekit_django.ninja": 4,
    "ratekit_django.programmatic": 4,
    "ratekit_django.requests": 4,
    "ratekit_django.responses": 4,
    "ratekit_django.rules": 4,
    "ratekit_django.steps": 4,
    "ratekit_django.urls": 4,
    "ratekit_fastapi": 4,
    "ratekit_fastapi.bodies": 4,
    "ratekit_fastapi.decisions": 4,
    "ratekit_fastapi.dependencies": 4,
    "ratekit_fastapi.errors": 4,
    "ratekit_fastapi.installation": 4,
    "ratekit_fastapi.programmatic": 4,
    "ratekit_fastapi.routes": 4,
    "ratekit_fastapi.settings": 4,
}
DRIVERS = {"redis", "valkey", "lupa"}
FRAMEWORKS = {"click", "fastapi", "starlette", "django", "asgiref", "rest_framework", "ninja", "ddtrace"}


def modules() -> dict[str, Path]:
    files = [path for package in ("ratekit", "ratekit_django", "ratekit_fastapi") for path in (ROOT / package).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(path: Path) -> set[str]:
    """Every module that a file imports while it runs, wherever in it; what only types need does not count."""
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_every_module_has_a_level():
    assert set(modules()) == set(LEVELS)


@pytest.mark.parametrize("name", LEVELS)
def test_module_imports_only_from_its_own_level_or_below(name):
    for other in imported(modules()[name]) & set(LEVELS):
        if other != "ratekit":
            assert LEVELS[other] <= LEVELS[name], f"{name} imports {other}"


@pytest.mark.parametrize("name", LEVELS)
def test_drivers_are_imported_in_stores_only_and_frameworks_in_their_fronts_only(name):
    roots = {other.partition(".")[0] for other in imported(modules()[name])}
    assert LEVELS[name] == 4 or not roots & FRAMEWORKS
    assert name.startswith("ratekit.stores") or not roots & DRIVERS


def test_public_names_are_those_of_the_contract():
    assert sorted(ratekit.__all__) == [
        "Algorithm", "AsyncRateLimiter", "ConfigurationError", "Limit", "Policy", "RateLimitExceeded", "RateLimitMode",
        "RateLimitResult", "RateLimitUnavailable", "RateLimiter", "RatekitError", "get_rate_limit_mode",
    ]  # fmt: skip
    assert all(hasattr(ratekit, name) for name in ratekit.__all__)


def test_import_brings_no_driver_and_no_framework():
    code = "import sys, ratekit; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & (
        DRIVERS | FRAMEWORKS | {"prometheus_client", "opentelemetry", "hiredis", "fakeredis", "pytest", "asyncio"}
    )


def test_modules_and_functions_stay_small():
    for name, path in modules().items():
        text = path.read_text()
        assert text.count("\n") <= 300, name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 40, f"{name}.{node.name}"
