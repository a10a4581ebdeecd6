"""The mode is read on every request, from the environment, a file and callables; the weakest wins."""

from __future__ import annotations

import pytest

from ratekit import ConfigurationError, RateLimitMode, get_rate_limit_mode
from ratekit.core.modes import add_mode_source, as_mode, weakest


def test_mode_is_on_when_nothing_is_set(monkeypatch):
    assert get_rate_limit_mode() is RateLimitMode.ON
    monkeypatch.setenv("RATE_LIMIT_MODE", "")
    assert get_rate_limit_mode() is RateLimitMode.ON


def test_environment_is_read_on_every_request(monkeypatch):
    for value, mode in [("off", "off"), ("Monitor", "monitor"), (" ON ", "on")]:
        monkeypatch.setenv("RATE_LIMIT_MODE", value)
        assert get_rate_limit_mode() == mode


def test_file_is_followed_while_it_changes(monkeypatch, tmp_path):
    path = tmp_path / "mode"
    monkeypatch.setenv("RATE_LIMIT_MODE_FILE", str(path))
    assert get_rate_limit_mode() == "on"
    for value in ("monitor\n", "off", "on", "off"):
        path.write_text(value)
        assert get_rate_limit_mode() == value.strip()
    replacement = tmp_path / "next"
    replacement.write_text("monitor")
    replacement.rename(path)
    assert get_rate_limit_mode() == "monitor"
    path.write_text("")
    assert get_rate_limit_mode() == "monitor"
    path.unlink()
    assert get_rate_limit_mode() == "monitor"
    monkeypatch.setattr("ratekit.core.modes._GONE_SECONDS", 0)
    assert get_rate_limit_mode() == "on"


def test_weakest_of_several_sources_wins(monkeypatch, tmp_path):
    path = tmp_path / "mode"
    path.write_text("off")
    monkeypatch.setenv("RATE_LIMIT_MODE_FILE", str(path))
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert get_rate_limit_mode() == "off"
    path.write_text("on")
    assert get_rate_limit_mode() == "monitor"
    add_mode_source(lambda: "off")
    assert get_rate_limit_mode() == "off"
    assert weakest(RateLimitMode.ON, RateLimitMode.MONITOR) == "monitor"
    assert weakest() == "on"


def test_callable_without_an_opinion_does_not_count():
    add_mode_source(lambda: None)
    assert get_rate_limit_mode() == "on"


def test_source_that_says_no_text_is_refused_at_first():
    add_mode_source(lambda: True)
    with pytest.raises(ConfigurationError, match="True"):
        get_rate_limit_mode()


def test_unknown_mode_at_the_start_is_refused(monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "audit")
    with pytest.raises(ConfigurationError, match="RATE_LIMIT_MODE 'audit'.*monitor"):
        get_rate_limit_mode()


def test_unknown_mode_while_running_leaves_the_last_one_and_is_logged_once(monkeypatch, caplog):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    get_rate_limit_mode()
    monkeypatch.setenv("RATE_LIMIT_MODE", "audit")
    assert [get_rate_limit_mode() for _ in range(3)] == ["monitor"] * 3
    assert [record.levelname for record in caplog.records if record.name.startswith("ratekit")] == ["ERROR"]
    assert "'audit'" in caplog.text
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert get_rate_limit_mode() == "off"


@pytest.mark.parametrize("value", ["", "yes", None, 3])
def test_as_mode_refuses_what_is_no_mode(value):
    with pytest.raises(ConfigurationError, match="mode"):
        as_mode(value)


def test_mode_that_is_remembered_gives_way_to_every_source(monkeypatch, tmp_path):
    assert [get_rate_limit_mode(), get_rate_limit_mode()] == ["on", "on"]
    remove = add_mode_source(lambda: "monitor")
    assert get_rate_limit_mode() == "monitor"
    remove()
    assert get_rate_limit_mode() == "on"
    path = tmp_path / "mode"
    path.write_text("off")
    monkeypatch.setenv("RATE_LIMIT_MODE_FILE", str(path))
    assert get_rate_limit_mode() == "off"
    monkeypatch.delenv("RATE_LIMIT_MODE_FILE")
    assert get_rate_limit_mode() == "on"
