"""The wheel: what is in it, and that it works from another folder. The demo: what has to be installed for it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_script_in_the_wheel_is_the_one_of_the_checkout(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for name in ("ratekit", "embedded"):
            assert archive.read(f"ratekit/lua/{name}.lua") == (ROOT / "lua" / f"{name}.lua").read_bytes()
        typed = {f"{package}/py.typed" for package in ("ratekit", "ratekit_django", "ratekit_fastapi", "ratekit_service")}
        served = {"ratekit_django/templates/ratekit/429.html", "ratekit_service/page/files/index.html"}
        assert typed | served <= set(archive.namelist())
        assert not [name for name in archive.namelist() if name.startswith("tests")]


def test_installed_wheel_limits_from_another_folder(wheel, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Of this environment only lupa: what is left must be enough.
    import lupa

    (site / "lupa").symlink_to(Path(lupa.__file__).parent)
    code = """
import ratekit, sys
from ratekit.stores import script
limiter = ratekit.RateLimiter()
policy = ratekit.Policy("p", "2/min")
print([limiter.check(policy, "u").allowed for _ in range(3)], script.digest())
print(ratekit.__file__)
try:
    ratekit.RateLimiter("redis://localhost")
except ratekit.ConfigurationError as error:
    print(error)
"""
    environment = {"PATH": os.environ["PATH"]}
    output = subprocess.check_output([tmp_path / "venv/bin/python", "-c", code], text=True, cwd=tmp_path, env=environment)
    answers, where, missing = output.splitlines()
    from ratekit.stores import script

    assert answers == f"[True, True, False] {script.digest()}"
    assert where.startswith(str(site))
    assert missing == "redis:// needs a package that is not installed: pip install 'ratekit[redis]'"


def test_demo_starts_with_only_what_make_demo_installs():
    installed = installed_by(demo_needs())
    others = [
        name for name, owners in metadata.packages_distributions().items() if not installed & set(map(canonical, owners))
    ]
    served = "from ratekit_service.server import application; print(application.__name__)"
    code = f"import sys; sys.modules.update(dict.fromkeys({others})); {served}"
    assert "django" in others
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT) == "application\n"


def demo_needs() -> list[Requirement]:
    """What the Makefile installs for the demo."""
    line = re.search(r"^DEMO_NEEDS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    return [Requirement(word.replace(".[", "ratekit[")) for word in shlex.split(line[1])]


def installed_by(requirements: list[Requirement]) -> set[str]:
    """The names of all distributions that pip installs for some requirements, by what is installed here."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        found.add(canonical(requirement.name))
        for text in metadata.requires(requirement.name) or ():
            needed = Requirement(text)
            applies = needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in {"", *requirement.extras}
            )
            if applies and canonical(needed.name) not in found:
                waiting.append(needed)
    return found
