"""Run the suite on each supported Python, with the oldest and the newest dependencies that are supported. `make matrix`.

`make matrix MATRIX=3.12-oldest` runs one cell, WORKERS=2 with two processes. A Python that is not installed is a fault,
unless --skip-missing is given.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.fullmatch(r".*Python :: 3\.\d+", text)]
DEPENDENCIES = ("oldest", "newest")
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# What belongs to the check service needs newer versions of what the fronts need: it has an environment of its own.
OF_THE_SERVICE = ("service", "envoy", "grpc")
TESTS_OF_THE_SERVICE = [
    *("tests/ratekit_service", "tests/ratekit/client", "tests/example_projects/gateways", "tests/test_architecture_page.py"),
    *("tests/test_documentation.py", "tests/test_documentation_commands.py"),  # their pages show all of ratekit
]
# What looks at the repository, by tools of ours that are new in any case, and not at ratekit beside old versions.
OF_THE_REPOSITORY = [
    *("tests/test_habits.py", "tests/test_site.py", "tests/test_snippets_typed.py", "tests/test_packaging.py"),
    *("tests/test_comparison.py", "tests/test_deploy.py", "tests/example_projects/test_kubernetes.py", "tests/benchmarks"),
    *("tests/ratekit/admin/test_typing.py", "tests/ratekit_django/test_typing.py"),
]
# What the oldest ones need beside them, and do not ask for: the test client of an old Starlette.
BESIDE = {"httpx==0.28.1"}
# Old dependencies use what newer ones of their own have deprecated, also in what the tests start.
WARNINGS = "-W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning"


def python_of(version: str) -> str | None:
    """Return the interpreter of a version: on the PATH, or one of pyenv's."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
        return found
    versions = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    return str(versions[-1]) if versions else None


def oldest(extras: Iterable[str]) -> list[str]:
    """Return the oldest supported version of each dependency of these extras: the bound that pyproject.toml names."""
    wanted, pins = set(extras), set(PROJECT["dependencies"])
    while wanted:
        texts = EXTRAS[wanted.pop()]
        pins |= {text for text in texts if not text.startswith("ratekit[")}
        wanted |= {name for text in texts if text.startswith("ratekit[") for name in text[8:-1].split(",")}
    pins |= {text.replace("-api", "-sdk") for text in pins if text.startswith("opentelemetry-api")}
    return sorted({text.replace(">=", "==") for text in pins} | BESIDE)


def run_cell(version: str, dependencies: str) -> bool:
    """Make the environments of a cell, and run the suite in them."""
    if dependencies == "newest":
        return run_tests(environment(version, "newest"))
    fronts = environment(version, "oldest", oldest(set(EXTRAS) - set(OF_THE_SERVICE)))
    left_out = (f"--ignore={path}" for path in [*TESTS_OF_THE_SERVICE, *OF_THE_REPOSITORY])
    passes = run_tests(fronts, *left_out, warnings=WARNINGS)
    service = environment(version, "oldest-service", oldest(OF_THE_SERVICE))
    return run_tests(service, *TESTS_OF_THE_SERVICE, warnings=WARNINGS) and passes


def environment(version: str, name: str, pins: Sequence[str] = ()) -> str:
    """Make an environment with everything that the suite needs, and these versions; return its interpreter."""
    folder, made_by = ROOT / "build/matrix" / f"{version}-{name}", python_of(version)
    assert made_by is not None
    python = str(folder / "bin/python")
    if not Path(python).exists():
        subprocess.run([made_by, "-m", "venv", str(folder)], check=True)
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "pip>=25.1"], check=True)
    subprocess.run([*pip, "--editable", f".[{','.join(EXTRAS)}]", "--group", "dev"], cwd=ROOT, check=True)
    if pins:
        subprocess.run([*pip, *pins], cwd=ROOT, check=True)
    return python


def run_tests(python: str, *options: str, warnings: str = "") -> bool:
    """Run the suite, or the part of it that is named, in an environment."""
    workers = os.environ.get("WORKERS", "auto")
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"  # some tests start programs of the environment
    command = [python, "-m", "pytest", "-q", "-n", workers, *options]
    variables = os.environ | {"PATH": path, "PYTEST_ADDOPTS": warnings}
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode == 0


def main() -> int:
    """Run the cells that are asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", default=[f"{version}-{name}" for version in PYTHONS for name in DEPENDENCIES])
    parser.add_argument("--skip-missing", action="store_true", help="leave out Pythons that are not installed")
    options = parser.parse_args()
    failed = []
    for cell in options.cells:
        version, _, dependencies = cell.partition("-")
        if python_of(version) is None:
            print(f"{cell}: no Python {version} is installed", flush=True)
            failed += [] if options.skip_missing else [cell]
            continue
        print(f"{cell}:", flush=True)
        failed += [] if run_cell(version, dependencies) else [cell]
    print(f"failed: {', '.join(failed)}" if failed else "every cell passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
