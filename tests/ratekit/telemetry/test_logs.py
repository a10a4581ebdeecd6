"""Refusals in the log: structured, sampled, with pseudonyms."""

from __future__ import annotations

import logging

import pytest

from ratekit import ConfigurationError, Limit, Policy, RateLimiter
from ratekit.core import events
from ratekit.core.events import StoreState
from ratekit.core.pseudonyms import pseudonym
from ratekit.telemetry import logs

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


def test_outage_is_logged_when_it_begins_and_when_it_ends_however_often_the_store_is_probed(lines):
    records = lines()
    events.notify_store_change("redis://host", StoreState.UP)
    for _ in range(2):
        events.notify_store_change("redis://host", StoreState.DOWN, "timeout")
        for _ in range(5):
            events.notify_store_change("redis://host", StoreState.PROBING, "timeout")
            events.notify_store_change("redis://host", StoreState.DOWN, "connection")
        events.notify_store_change("redis://host", StoreState.UP)
    outage = [("WARNING", "store redis://host is down"), ("INFO", "store redis://host is up")]
    assert [(record.levelname, record.getMessage()) for record in records] == outage * 2
    assert [record.ratekit_reason for record in records] == ["timeout", ""] * 2


def test_outages_of_two_stores_are_logged_apart(lines):
    records = lines()
    for store in ("redis://one", "redis://other"):
        events.notify_store_change(store, StoreState.DOWN, "timeout")
    assert [record.ratekit_store for record in records] == ["redis://one", "redis://other"]


@pytest.mark.parametrize("per_second", [0, -1, "10", float("inf"), None], ids=repr)
def test_number_of_lines_that_makes_no_sense_is_refused(per_second):
    with pytest.raises(ConfigurationError, match="per_second"):
        logs.install(per_second=per_second)
