"""Run the suite on each supported Python, with the oldest and the newest dependencies that are supported. `make matrix`.

`make matrix MATRIX=3.12-oldest` runs one cell. A Python that is not installed is a fault, unless --skip-missing is given.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.fullmatch(r".*Python :: 3\.\d+", text)]
DEPENDENCIES = ("oldest", "newest")
EXTRAS = ",".join(name for name in PROJECT["optional-dependencies"])
# What the tests themselves need is new in any case: only what users bring along is old.
FOLDERS = ["tests/ratekit", "tests/ratekit_fastapi", "tests/ratekit_django", "tests/lua", "tests/test_several_limits.py"]
# What the oldest ones need beside them, and do not ask for: the test client of an old Starlette.
BESIDE = {"httpx==0.28.1"}
# Old dependencies use what newer ones of their own have deprecated.
WARNINGS = ["-W", "ignore::DeprecationWarning", "-W", "ignore::PendingDeprecationWarning"]


def python_of(version: str) -> str | None:
    """Return the interpreter of a version: on the PATH, or one of pyenv's."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
        return found
    versions = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    return str(versions[-1]) if versions else None


def oldest() -> list[str]:
    """Return the oldest version of each dependency that is supported: the bound that pyproject.toml names."""
    texts = [text for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()) for text in group]
    pins = {text.replace(">=", "==") for text in texts if not text.startswith("ratekit[")}
    return sorted(pins | {text.replace("-api", "-sdk") for text in pins if text.startswith("opentelemetry-api")} | BESIDE)


def run_cell(version: str, dependencies: str) -> bool:
    """Make the environment of a cell, and run the suite in it."""
    python, folder = python_of(version), ROOT / "build/matrix" / f"{version}-{dependencies}"
    assert python is not None
    if not (folder / "bin/python").exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "pip>=25.1"], check=True)
    subprocess.run([*pip, "--editable", f".[{EXTRAS}]", "--group", "test", "--group", "benchmark"], cwd=ROOT, check=True)
    if dependencies == "oldest":
        subprocess.run([*pip, *oldest()], cwd=ROOT, check=True)
    warnings = WARNINGS if dependencies == "oldest" else []
    tests = [str(folder / "bin/python"), "-m", "pytest", "-q", "-n", "auto", *warnings, *FOLDERS]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode == 0


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
