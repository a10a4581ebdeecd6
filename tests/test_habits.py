"""What surrounds the code is valid and says the same as the code: workflows, templates, hooks, the release check."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from support.pages import ROOT

SCHEMAS = {
    ".github/workflows/test.yml": "vendor.github-workflows",
    ".github/dependabot.yml": "vendor.dependabot",
    ".github/ISSUE_TEMPLATE/bug_report.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/feature_request.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
}


def test_every_file_of_github_is_valid():
    assert {str(path.relative_to(ROOT)) for path in (ROOT / ".github").rglob("*.yml")} == set(SCHEMAS)
    for path, schema in SCHEMAS.items():
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, path]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr


def test_workflow_runs_what_the_house_runs_on_every_supported_python():
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    classified = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    for job, command in {"everything": ".ci/run", "oldest": "make matrix"}.items():
        assert jobs[job]["strategy"]["matrix"] == {"python": classified}
        assert any(command in step.get("run", "") for step in jobs[job]["steps"])
    assert any("make release-check" in step.get("run", "") for step in jobs["release"]["steps"])


@pytest.fixture
def matrix() -> ModuleType:
    """The program of `make matrix`."""
    spec = importlib.util.spec_from_file_location("matrix", ROOT / ".ci/matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_oldest_versions_are_one_of_each_dependency(matrix):
    every = [matrix.oldest(matrix.OF_THE_SERVICE), matrix.oldest(set(matrix.EXTRAS) - set(matrix.OF_THE_SERVICE))]
    for pins in every:
        names = [re.split(r"[\[=]", pin)[0] for pin in pins]
        assert len(names) == len(set(names)), names  # two versions of one could not be installed
        assert all("==" in pin for pin in pins)
    bounds = {pin for pins in every for pin in pins}
    texts = [text for texts in [matrix.PROJECT["dependencies"], *matrix.EXTRAS.values()] for text in texts]
    assert {text.replace(">=", "==") for text in texts if not text.startswith("ratekit[")} <= bounds


def test_what_the_matrix_names_exists(matrix):
    paths = [*matrix.TESTS_OF_THE_SERVICE, *matrix.OF_THE_REPOSITORY]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_hooks_of_pre_commit_are_those_of_the_linters():
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["id"] for repository in repositories for hook in repository["hooks"]]
    assert {"ruff-check", "ruff-format", "check-github-workflows"} <= set(hooks)
    assert all(re.fullmatch(r"v?\d+\.\d+\.\d+", repository["rev"]) for repository in repositories)


def release_check(root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    script = root / ".ci/release_check.py"
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)


def test_checkout_is_fit_to_be_released():
    finished = release_check()
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "fit to be released"


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of what is built."""
    names = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).splitlines()
    for name in names:
        if (ROOT / name).is_file() and not name.startswith(("benchmarks/results", "docs/images")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def test_release_that_lacks_something_is_found(copy):
    (copy / "ratekit_django/py.typed").unlink()
    code = copy / "ratekit/__init__.py"
    code.write_text(re.sub(r'__version__ = ".*"', '__version__ = "9.9.9"', code.read_text()))
    finished = release_check(copy)
    assert finished.returncode == 1
    assert "the wheel lacks ratekit_django/py.typed" in finished.stderr
    assert "CHANGELOG.md has no section [9.9.9]" in finished.stderr
