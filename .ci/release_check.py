"""Is this checkout fit to be released? Builds it, and looks at metadata, README, contents, changelog and licences.

Run by `make release-check`. Ends with 0 if all is well, else with one sentence for each fault.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
# Licences whose terms an application that imports us can meet without opening its own source.
ALLOWED = ("MIT", "BSD", "Apache", "ISC", "PSF", "Python Software Foundation", "MPL", "Mozilla", "LGPL", "Unlicense", "Zlib")
FORBIDDEN = ("AGPL", "Affero")


def main() -> int:
    """Check everything, print what was found, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        faults = [*check_build(Path(folder)), *check_changelog(), *check_licences()]
    for fault in faults:
        print(f"release-check: {fault}", file=sys.stderr)
    print("fit to be released" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


def check_build(folder: Path) -> Iterator[str]:
    """Build wheel and source distribution; yield what is wrong with their metadata, README and contents."""
    built = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    if built.returncode:
        yield f"it cannot be built: {built.stderr.strip()[-500:]}"
        return
    files = sorted(folder.iterdir())
    checked = run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    if checked.returncode:
        yield f"metadata or README do not render: {checked.stdout.strip()[-500:]}"
    yield from wrong_in_wheel(next(file for file in files if file.suffix == ".whl"))
    yield from wrong_in_source(next(file for file in files if file.name.endswith(".tar.gz")))


def wrong_in_wheel(wheel: Path) -> Iterator[str]:
    """Yield what is missing in the wheel, and what should not be there."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = {f"{package}/py.typed" for package in PACKAGES}
    wanted |= {f"ratekit/lua/{path.name}" for path in (ROOT / "lua").glob("*.lua")}
    for package in PACKAGES:
        wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob("*.py")}
    yield from (f"the wheel lacks {name}" for name in sorted(wanted - names))
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    yield from (f"the wheel has {name}, which is no package of it" for name in sorted(tops - set(PACKAGES)))
    yield from (f"the wheel has {name}" for name in sorted(names) if name.endswith(".pyc"))
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        yield "the wheel lacks the licence"


def wrong_in_source(source: Path) -> Iterator[str]:
    """Yield what is missing in the source distribution."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "lua/ratekit.lua", "tests/conftest.py"}
    yield from (f"the source distribution lacks {name}" for name in sorted(wanted - names))


def check_changelog() -> Iterator[str]:
    """Yield what is wrong with the changelog: the version of the code has a section of its own, with a date."""
    sections = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "ratekit/__init__.py").read_text(), re.MULTILINE)
    if version is None:
        yield "ratekit/__init__.py has no __version__"
        return
    dated = {name: rest for name, rest in sections if name != "Unreleased"}
    if version[1] not in dated:
        yield f"CHANGELOG.md has no section [{version[1]}], which is the version of the code"
    yield from (
        f"the section [{name}] has no date" for name, rest in dated.items() if not re.search(r"\d{4}-\d\d-\d\d", rest)
    )


def check_licences() -> Iterator[str]:
    """Print the licence of everything that ratekit and its extras bring along; yield what may not be brought."""
    for name in sorted(brought_along()):
        licence = licence_of(name)
        print(f"{name:32} {licence}")
        if any(word in licence for word in FORBIDDEN) or not any(word in licence for word in ALLOWED):
            yield f"{name} has the licence {licence!r}, which nobody has looked at"


def brought_along() -> set[str]:
    """Return the names of all distributions that ratekit with all of its extras needs, as far as they are installed."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [own["dependencies"], *own["optional-dependencies"].values()]
    found: set[str] = set()
    waiting = [Requirement(text) for group in groups for text in group]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        found.add(name)
        extras = requirement.extras or {""}
        waiting += [need for text in needs if applies(need := Requirement(text), extras)]
    return found - {"ratekit"}


def applies(requirement: Requirement, extras: set[str]) -> bool:
    """Whether a requirement holds here, for a distribution with some extras."""
    held = requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""})
    requirement.marker = None
    return held


def licence_of(name: str) -> str:
    """Return what a distribution says of its licence: the expression, else classifiers, else a text's first line."""
    told = metadata.metadata(name)
    if told.get("License-Expression"):
        return told["License-Expression"]
    classifiers = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or [] if line.startswith("License ::")]
    return ", ".join(classifiers) or (told.get("License") or licence_text(name) or "unknown").splitlines()[0]


def licence_text(name: str) -> str:
    """Return the text of the licence that comes with a distribution, empty if there is none."""
    files = [file for file in metadata.files(name) or [] if file.name.upper().startswith("LICEN")]
    return files[0].read_text().strip() if files else ""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program, and return what it has said."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
