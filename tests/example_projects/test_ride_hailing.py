"""The surge: a short one runs here, and the figures that are published are those of its result file."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "example_projects/ride_hailing"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ride_hailing_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


report = module("report")


def test_limits_keep_the_surplus_of_riders_away_from_the_matching_service():
    finished = subprocess.run(
        [sys.executable, "surge.py", "--short", "--json"], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    before, after = found["without"], found["with"]
    assert before["refused"]["requests"] == 0
    assert after["refused"]["requests"] > after["served"]["requests"], "the limit bites"
    assert after["failed_percent"] == 0
    assert after["refused"]["average"] < after["served"]["average"] / 5
    assert after["matching"]["asked_per_second"] < before["matching"]["asked_per_second"]
    assert after["fair_share"]["riders"] == found["plan"]["riders"]
    assert after["fair_share"]["least"] > 0
    assert "p99 of served" in report.table(found)
    assert f"{found['plan']['riders']} riders" in report.short_table(found)


@pytest.fixture
def published():
    return json.loads((FOLDER / "results/surge.json").read_text())


def test_published_surge_reaches_every_target(published):
    assert [target for target in report.targets(published) if not report.is_reached(target)] == []


def test_published_surge_bites_and_says_when_and_of_what_it_was_measured(published):
    assert published["with"]["refused"]["requests"] > published["with"]["served"]["requests"]
    assert {"date", "version", "cores", "python"} <= set(published)


def test_pages_show_the_figures_of_the_result_file(published):
    shown = {FOLDER / "README.md": report.figures(published), FOLDER.parents[1] / "README.md": report.short_table(published)}
    for page, text in shown.items():
        assert report.with_figures(page.read_text(), text) == page.read_text()
        assert text in page.read_text()
