"""The snippets that a newcomer pastes: with what the page says to install, and on a clock that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.pages import ROOT, snippets

PASTED = {
    name: code
    for name, code in snippets().items()
    if name.startswith(("README.md", "docs/recipes.md", "docs/quickstart.md")) and "def test_" not in code
}
WITHOUT_DJANGO = {name: code for name, code in PASTED.items() if "django" not in code}
# Modules of packages that were not installed are not there.
ONLY_INSTALLED = """
import importlib.metadata, sys
allowed, owners = set(sys.argv[1].split()), importlib.metadata.packages_distributions()

class Absent:
    def find_spec(self, name, path=None, target=None):
        own = {one.lower().replace("_", "-") for one in owners.get(name.partition(".")[0], ())}
        if own and not own & allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
exec(compile(sys.stdin.read(), "snippet", "exec"), {"__name__": "snippet"})
"""


def installed_by(page: Path, *more: str) -> set[str]:
    """Return the distributions that the first lines `pip install` of a page bring, with all that they need."""
    lines = re.findall(r"^    pip install (.*?)(?:  #.*)?$", page.read_text().partition("\n## ")[0], re.MULTILINE)
    waiting = [Requirement(text.strip("'")) for line in (*lines, *more) for text in line.split()]
    found: set[str] = set()
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found.add(canonicalize_name(wanted.name))
        try:
            needed = map(Requirement, metadata.requires(wanted.name) or ())
        except metadata.PackageNotFoundError:
            continue
        extras = wanted.extras or {""}
        waiting += [one for one in needed if not one.marker or any(one.marker.evaluate({"extra": name}) for name in extras)]
    return found


@pytest.mark.parametrize("name", [name for name in WITHOUT_DJANGO if name.startswith("docs/quickstart.md")])
def test_quickstart_needs_what_its_first_lines_install(name, tmp_path):
    code = WITHOUT_DJANGO[name]
    more = ["ratekit[flask]"] if "flask" in code else []  # "or django, flask"
    installed = installed_by(ROOT / "docs" / "quickstart.md", *more)
    command = [sys.executable, "-c", ONLY_INSTALLED, " ".join(installed)]
    finished = subprocess.run(command, input=code, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("name", WITHOUT_DJANGO)
def test_snippet_prints_what_it_says_on_a_clock_that_runs(name, tmp_path):
    code = WITHOUT_DJANGO[name]
    finished = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == re.findall(r"^# (.*)$", code, re.MULTILINE)
