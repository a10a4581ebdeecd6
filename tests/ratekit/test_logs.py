"""Refusals in the log: structured, sampled, with pseudonyms."""

from __future__ import annotations

import logging

import pytest

from ratekit import ConfigurationError, Limit, Policy, RateLimiter, events, logs
from ratekit.subjects import KEY_VARIABLE, pseudonym

pytestmark = pytest.mark.usefixtures("ratekit_store", "ratekit_clock")
ONE = Policy("search", [Limit(1, 60)])


@pytest.fixture
def lines(caplog, monkeypatch):
    """Install with options, on a clock that stands still unless it is moved; return the records."""
    removers = []
    caplog.set_level(logging.INFO, "ratekit.decisions")

    def install(now: float = 100.0, **options):
        monkeypatch.setattr(logs, "monotonic", lambda: now)
        removers.append(logs.install(**options))
        return caplog.records

    yield install
    for remove in removers:
        remove()


def test_refusal_is_logged_with_fields_and_a_pseudonym(lines):
    records = lines()
    limiter = RateLimiter("memory://")
    for _ in range(2):
        limiter.check(ONE, "user:42", endpoint="/search")
    (record,) = records
    assert record.levelno == logging.INFO
    assert record.getMessage() == f"denied: {pseudonym('user:42')} on /search"
    assert (record.ratekit_endpoint, record.ratekit_policy, record.ratekit_outcome) == ("/search", "search", "denied")
    assert (record.ratekit_limit, record.ratekit_used, record.ratekit_retry_after) == (1, 1, 60)
    assert (record.ratekit_violated, record.ratekit_left_out) == (["60s"], 0)
    assert "user:42" not in str(vars(record))


def test_flood_of_refusals_is_sampled_and_the_rest_is_counted(lines, monkeypatch):
    records = lines(per_second=3)
    limiter = RateLimiter("memory://")
    for _ in range(101):
        limiter.check(ONE, "user:42")
    assert len(records) == 3
    monkeypatch.setattr(logs, "monotonic", lambda: 101.0)
    limiter.check(ONE, "user:42")
    assert len(records) == 4
    assert records[3].ratekit_left_out == 97


def test_subject_is_named_as_the_application_says(lines):
    records = lines(name=str.upper)
    limiter = RateLimiter("memory://")
    for _ in range(2):
        limiter.check(ONE, "user:42")
    assert records[0].ratekit_subject == "USER:42"


def test_changes_of_a_store_are_logged(lines):
    records = lines()
    events.tell_store_change("redis://host", events.StoreState.DOWN, "timeout")
    events.tell_store_change("redis://host", events.StoreState.UP)
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("WARNING", "store redis://host is down"),
        ("INFO", "store redis://host is up"),
    ]


@pytest.mark.parametrize("per_second", [0, -1, "10", float("inf"), None], ids=repr)
def test_number_of_lines_that_makes_no_sense_is_refused(per_second):
    with pytest.raises(ConfigurationError, match="per_second"):
        logs.install(per_second=per_second)


def test_pseudonym_depends_on_the_key(monkeypatch):
    plain = pseudonym("user:42")
    assert len(plain) == 16
    monkeypatch.setenv(KEY_VARIABLE, "a secret")
    assert pseudonym("user:42") != plain
    assert pseudonym("user:42") == pseudonym("user:42", "a secret") != pseudonym("user:42", "another")
    assert pseudonym("user:42", "") == plain
