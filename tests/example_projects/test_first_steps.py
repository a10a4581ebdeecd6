"""What a stranger meets who follows a README: packages that are missing, a port that is taken, values that are wrong."""

from __future__ import annotations

import ast
import re
import socket
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from support.examples import EXAMPLES, MAIN, example, run_example
from support.pages import ROOT

STARTED = {  # each example that is one command, by its command
    "django_datasets": ("manage.py", "demo"),
    "django_quickstart": MAIN,
    "fastapi_quickstart": MAIN,
    "fastapi_search": MAIN,
    "flask_shop": MAIN,
    "llm_gateway": MAIN,
    "observability": MAIN,
    "sentiment_sdk": MAIN,
}
OWN = {"ratekit", "ratekit_django", "ratekit_fastapi", "ratekit_service"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def package_of(requirement: str) -> str:
    return re.split(r"[\[<>=;!~ ]", requirement)[0].lower().replace("_", "-")


def installed_by(name: str) -> set[str]:
    """The packages that the README's command installs, of ratekit those of the extras, and what they need themselves."""
    (line,) = re.findall(r"^    pip install (.*)$", (EXAMPLES / name / "README.md").read_text(), re.MULTILINE)
    words = [word.strip("'") for word in line.split()]
    extras = [extra for word in words for extra in re.findall(r"^ratekit\[(.*)\]", word)]
    waiting = [extra for given in extras for extra in given.split(",")]
    found = {package_of(word) for word in words}
    while waiting:
        for requirement in EXTRAS[waiting.pop()]:
            found.add(package_of(requirement))
            waiting += [one for given in re.findall(r"^ratekit\[(.*)\]", requirement) for one in given.split(",")]
    needed = [one for package in found - {"ratekit"} for one in requires(package) or () if "extra ==" not in one]
    return found | set(map(package_of, needed))


def imported_by(folder: Path) -> set[str]:
    """The modules of others that an example imports, by their top name."""
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
    here = {path.stem for path in folder.iterdir()}
    return {name.partition(".")[0] for name in names} - OWN - here - set(sys.stdlib_module_names)


def test_every_example_is_in_the_list():
    listed = set(re.findall(r"\]\((\w+)/README.md\)", (EXAMPLES / "README.md").read_text()))
    assert listed == {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert set(STARTED) <= listed


@pytest.mark.parametrize("name", STARTED)
def test_readme_installs_what_the_example_imports(name):
    installed = installed_by(name)
    distributions = packages_distributions()
    imported = imported_by(EXAMPLES / name)
    assert [module for module in imported if not set(map(package_of, distributions[module])) & installed] == []
    readme = (EXAMPLES / name / "README.md").read_text()
    assert "redis://" not in readme or "ratekit[redis]" in readme or "redis" in installed


@pytest.mark.parametrize("name", STARTED)
def test_port_that_is_taken_is_told_in_one_line(name, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        ended = run_example(name, tmp_path, *STARTED[name], "--port", port)
    assert ended.returncode != 0
    assert re.search("address already in use", ended.stderr.splitlines()[-1], re.IGNORECASE), ended.stderr
    assert port in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", ["fastapi_quickstart", "flask_shop", "django_datasets", "sentiment_sdk"])
@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("RATE_LIMIT_MODE", "onn", "RATE_LIMIT_MODE 'onn' is unknown: it is one of on, monitor, off"),
        ("RATE_LIMIT_STORE_URL", "reddis://localhost", "store URL 'reddis://localhost' is unknown"),
    ],
)
def test_value_that_makes_no_sense_ends_the_start_and_is_named(name, variable, value, told, tmp_path):
    ended = run_example(name, tmp_path, *STARTED[name], "--port", "0", **{variable: value})
    assert ended.returncode != 0
    assert told in ended.stderr


def test_operator_who_asks_for_nonsense_is_told(tmp_path):
    with example("fastapi_search", tmp_path) as running:
        operator = {"X-API-Key": "operator"}
        for value in ("-1", "abc", "99999999999999999999", ""):
            answer = running.client.put(f"/admin/projects/1/42?max_requests={value}", headers=operator)
            assert answer.status_code == 422, value
        project = {"X-API-Key": "key-of-42"}
        assert running.client.post("/matrix", json="no rows", headers=project).status_code == 422
        never = running.client.post("/matrix", json=[[1.0] * 101], headers=project)
        assert (never.status_code, "Retry-After" in never.headers) == (429, False)  # waiting does not help


def test_shop_refuses_what_is_no_list_of_things(tmp_path):
    with example("flask_shop", tmp_path) as running:
        for body in ({}, {"items": 5}, 5, "book"):
            assert running.client.post("/cart", json=body).status_code == 400
        assert running.client.post("/cart", data={"items": "book"}).status_code == 415
        assert running.client.post("/login", data={"email": "ann@example.org"}).status_code == 400
