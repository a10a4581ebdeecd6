"""The figures and the plot of docs/algorithms.md are those of the script."""

from __future__ import annotations

from benchmarks import bursts


def test_page_has_the_figures_that_the_script_gives():
    page = bursts.PAGE.read_text()
    assert bursts.table(bursts.measure()) in page
    assert bursts.IMAGE.exists()


def test_no_window_of_the_log_admits_more_than_the_limit():
    assert bursts.most_in(60, bursts.admitted(bursts.LIMITS["sliding_window_log"])) == 60
