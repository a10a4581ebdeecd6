"""docs/outages.md: its table is the fault table, row by row, and shows no figure that is out of bounds."""

from __future__ import annotations

import re
import tomllib

import pytest

from faults.report import HEAD, PAGE, ROOT, shown
from faults.table import ROWS


def lines() -> list[list[str]]:
    return [line.strip("|").split(" | ") for line in shown(PAGE.read_text()).removeprefix(HEAD).splitlines()]


def test_page_has_the_rows_that_are_measured():
    assert [(fault.strip(), promise) for fault, promise, _ in lines()] == [(row.fault, row.promise) for row in ROWS.values()]


@pytest.mark.parametrize("name", ROWS)
def test_page_shows_every_figure_of_a_row_within_its_bounds(name):
    cell = lines()[list(ROWS).index(name)][2]
    for colour in re.findall(r"a?sync: [^;]*", cell):
        for figure, (least, most) in ROWS[name].bounds.items():
            words, unit = re.fullmatch(r"(.*?)( ms| s)?", figure).groups()
            value = re.search(rf"(?:: |, ){re.escape(words)} ([\d.e+]+){unit or ''}(?:,|$|\s)", colour)
            assert value, f"{figure} is missing in {colour}"
            assert least <= float(value[1]) <= most, f"{figure} in {colour}"
    assert "async: " in cell


def test_faults_are_no_part_of_the_plain_suite():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    assert "faults" in settings["norecursedirs"]
    assert re.search(r"^make faults$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
