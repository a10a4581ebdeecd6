"""Layers are folders, and point downwards; public names are those of the contract."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ratekit

ROOT = Path(ratekit.__file__).parents[1]
# A folder imports from those before it. A module directly in ratekit/ is a door: it imports from any folder before it.
FOLDERS = [
    "core", "stores", "telemetry", "limiter", "web", "database", "rules", "admin", "report", "client", "doors",
    "service", "cli", "flask",
]  # fmt: skip
DRIVERS = {"redis", "valkey", "hiredis", "lupa"}
DATABASE_LIBRARIES = {"alembic", "psycopg", "aiosqlite", "pymysql", "aiomysql"}
FRAMEWORKS = {
    "click",
    "fastapi",
    "starlette",
    "django",
    "asgiref",
    "rest_framework",
    "ninja",
    "ddtrace",
    "flask",
    "werkzeug",
    "httpx2",
}
# Of what has a home within ratekit: Flask's front is a folder of it, and its command is one of click's.
HOMES = {
    "httpx2": ("ratekit.client",),
    "click": ("ratekit.cli", "ratekit.flask"),
    "ddtrace": ("ratekit.telemetry",),
    "flask": ("ratekit.flask",),
    "werkzeug": ("ratekit.flask",),
}
OF_RULES = {"pydantic", "pydantic_core", "yaml", "pymongo"}  # what only documents of rules need


def modules(root: Path = ROOT) -> dict[str, Path]:
    packages = ("ratekit", "ratekit_django", "ratekit_fastapi", "ratekit_service")
    files = [path for package in packages for path in (root / package).rglob("*.py")]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


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


def level_of(module: str) -> int:
    """How far down a module is: the position of its folder; fronts are below all folders of ratekit."""
    package, *parts = module.split(".")
    if package == "ratekit_service":  # the command line starts it
        return FOLDERS.index("service")
    if package != "ratekit":
        return len(FOLDERS)
    return FOLDERS.index(parts[0] if parts[0] in FOLDERS else "doors")


def wrong_imports(root: Path = ROOT) -> list[str]:
    """Every import that points upwards, and every driver or framework outside its home."""
    found = []
    known = modules(root)
    for name, path in known.items():
        if name == "ratekit":
            continue
        names = imported(path)
        inner = sorted((names & set(known)) - {"ratekit", name})
        found += [f"{name} imports {other}" for other in inner if level_of(other) > level_of(name)]
        for other in sorted({other.partition(".")[0] for other in names}):
            if other in DRIVERS and not name.startswith("ratekit.stores"):
                found.append(f"{name} imports the driver {other}")
            if other in DATABASE_LIBRARIES and not name.startswith("ratekit.database"):
                found.append(f"{name} imports the driver {other}")
            if other in OF_RULES and name.startswith("ratekit.") and not name.startswith("ratekit.rules"):
                found.append(f"{name} imports {other}, which only rules need")
            if other in FRAMEWORKS and name.startswith("ratekit.") and not name.startswith(HOMES.get(other, ("?",))):
                found.append(f"{name} imports the framework {other}")
    return found


def test_folders_import_only_from_those_above_them():
    assert wrong_imports() == []


@pytest.mark.parametrize(
    ("file", "line", "fault"),
    [
        ("ratekit/core/limits.py", "from ratekit.stores import memory", "ratekit.core.limits imports ratekit.stores"),
        (
            "ratekit/stores/memory.py",
            "from ratekit.limiter.limiters import X",
            "ratekit.stores.memory imports ratekit.limiter",
        ),
        ("ratekit/web/answers.py", "def f():\n    import ratekit.asgi", "ratekit.web.answers imports ratekit.asgi"),
        ("ratekit/asgi.py", "from ratekit_fastapi import install", "ratekit.asgi imports ratekit_fastapi"),
        ("ratekit/limiter/limiters.py", "import redis.asyncio", "ratekit.limiter.limiters imports the driver redis"),
        ("ratekit/web/table.py", "import pydantic", "ratekit.web.table imports pydantic, which only rules need"),
        ("ratekit/wsgi.py", "from django.http import HttpRequest", "ratekit.wsgi imports the framework django"),
    ],
)
def test_import_that_points_upwards_is_found(tmp_path, file, line, fault):
    for path in modules().values():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("")
    (tmp_path / file).write_text(line)
    assert fault in [found[: len(fault)] for found in wrong_imports(tmp_path)]


def test_doors_are_those_of_the_design():
    doors = {path.name for path in (ROOT / "ratekit").glob("*.py")}
    assert doors == {
        "__init__.py", "asgi.py", "identity.py", "overrides.py", "pytest_plugin.py", "testing.py", "wsgi.py"
    }  # fmt: skip


def test_public_names_are_those_of_the_contract():
    assert sorted(ratekit.__all__) == [
        "Algorithm", "AsyncRateLimiter", "Calendar", "ConfigurationError", "Limit", "Policy", "RateLimitExceeded",
        "RateLimitMode", "RateLimitResult", "RateLimitUnavailable", "RateLimiter", "RatekitError", "Reservation",
        "get_rate_limit_mode",
    ]  # fmt: skip
    assert all(hasattr(ratekit, name) for name in ratekit.__all__)


def test_import_brings_no_driver_and_no_framework():
    code = "import sys, ratekit; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & (
        DRIVERS
        | DATABASE_LIBRARIES
        | FRAMEWORKS
        | {"sqlalchemy", "prometheus_client", "opentelemetry", "fakeredis", "pytest", "asyncio"}
        | OF_RULES
    )


def test_functions_stay_small():
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 40, f"{name}.{node.name}"
