"""The command: its sections, what it saves, what it puts into pages, and what it says while it runs."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import __main__ as command
from benchmarks import pages, report, server
from benchmarks.contest.contestants import Colour
from benchmarks.findings import AXES
from benchmarks.progress import Progress
from benchmarks.rounds import Gap, Pair, Sense, measure
from benchmarks.sections import SECTIONS, Section
from benchmarks.settings import Settings


@pytest.mark.parametrize("name", ["memory", "redis", "cpu", "envoy", "rules", "import", "plans"])
def test_section_measures_ratios(name):
    rows = SECTIONS[name].run(name, Settings(2, server.wheel_server()))
    assert rows
    assert all(math.isfinite(row.median) for row in rows)
    assert any(row.is_reached is not None for row in rows)


def test_section_that_misses_a_module_or_a_program_is_a_row_that_says_so(monkeypatch):
    settings = Settings(2, server.wheel_server())
    missing = Section("no_such_section:compare", lambda _: 1).run("none", settings)
    assert missing == [Gap("none", "all of it", "No module named 'benchmarks.no_such_section'")]
    monkeypatch.setattr("benchmarks.import_time.compare_import", lambda settings: [])
    without = Section("import_time:compare_import", lambda _: 1, "a thing").run("none", settings)
    assert without == [Gap("none", "all of it", "it needs a thing, which is not here")]


def test_command_prints_and_saves_what_it_measured(tmp_path, capsys):
    command.main(["--only", "redis", "--rounds", "2", "--out", str(tmp_path)])
    said = capsys.readouterr()
    assert "redis one after the other: check / INCR, sync" in said.out
    assert "at most 1.3" in said.out
    found = json.loads((tmp_path / "results.json").read_text())
    assert [row["target"] for row in found["rows"]] == [1.3, 1.4]
    assert found["packages"]["limits"]
    command.main(["--redraw", str(tmp_path / "results.json"), "--out", str(tmp_path / "again")])
    assert json.loads((tmp_path / "again" / "results.json").read_text()) == found
    assert capsys.readouterr().out == said.out


def test_command_refuses_one_round(capsys):
    with pytest.raises(SystemExit):
        command.main(["--rounds", "1"])
    assert "'1' is not a number of rounds above 1" in capsys.readouterr().err


def test_table_tells_reached_missed_and_not_measured():
    rows = measure("part", [Pair("good", lambda: 1.0, lambda: 2.0, 0.6), Pair("bad", lambda: 2.0, lambda: 1.0, 0.6)], 2)
    gap = Gap("part", "absent", "it is not here", 5, Sense.AT_LEAST)
    good, bad, absent = report.table([report.entry(row) for row in (*rows, gap)]).splitlines()[1:]
    assert good.split() == ["part:", "good", "0.500", "0.500", "-", "0.500", "at", "most", "0.6", "reached"]
    assert bad.endswith("at most 0.6  missed")
    assert absent.endswith("at least 5  not measured: it is not here")


def test_tables_go_to_their_places_in_a_page_and_nothing_else_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- benchmarks: targets -->\nold\n<!-- end: targets -->\nafter\n")
    row = report.entry(Gap("part", "absent", "it is not here", 5, Sense.AT_LEAST))
    facts = {"python": "3", "server": "v=7", "machine": {"cores": 2, "system": "Linux", "processor": "p"}, "packages": {}}
    pages.publish({**facts, "rounds": 2, "contest": {"rounds": 2}, "rows": [row], "standings": [], "memory": []}, [page])
    first, second, *table, last_but_one, last = page.read_text().splitlines()
    assert (first, second) == ("before", "<!-- benchmarks: targets -->")
    assert (last_but_one, last) == ("<!-- end: targets -->", "after")
    assert "not measured: it is not here" in table[-1]


def test_pages_have_a_place_for_each_table():
    readme, docs = (page.read_text() for page in command.PAGES)
    assert "<!-- benchmarks: ranking-async -->" in readme
    growths = [f"growth-{colour}-{axis}" for colour in Colour for axis in AXES]
    rankings = [f"{kind}-{colour}" for kind in ("ranking", "refused") for colour in Colour]
    for name in ["facts", "targets", "rows", "not-measured", *rankings, *growths]:
        assert f"<!-- benchmarks: {name} -->" in docs
        assert f"<!-- end: {name} -->" in docs


def test_progress_corrects_its_guess_by_what_was_done(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("benchmarks.progress.monotonic", lambda: now[0])
    progress = Progress()
    progress.plan({"first": 10, "second": 30})
    progress.begin("first")
    assert progress.left() == 40
    now[0] = 20.0  # twice as long as expected
    progress.begin("second")
    assert progress.left() == 60
    now[0] = 50.0
    assert progress.left() == 30
