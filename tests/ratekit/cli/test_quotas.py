"""Units, calendars and reservations on the command line."""

from __future__ import annotations

import pytest

from ratekit import Policy, RateLimiter
from ratekit.core.errors import ConfigurationError
from ratekit.core.limit_text import parse_cost, parse_window

LLM = ("--limit", "60/min", "--limit", "1000 tokens/min", "--limit", "10000/month Europe/Berlin")
PLACE = ("/chat", "org:7")
POLICY = Policy("/chat", ["60/min", "1000 tokens/min", "10000/month Europe/Berlin"])


def test_check_spends_a_cost_by_unit(ratekit, url):
    answer = ratekit("check", *PLACE, *LLM, "--cost", "tokens=800", "--json")
    assert [(one["own"]["unit"], one["used"]) for one in answer.json["limits"]] == [
        ("requests", 1),
        ("tokens", 800),
        ("requests", 1),
    ]
    assert answer.json["limits"][2]["own"]["calendar"] == "month Europe/Berlin"
    refused = ratekit("check", *PLACE, *LLM, "--cost", "tokens=300, requests=2")
    assert (refused.code, "over limit 'tokens minute': 800 of 1000 used" in refused.out) == (1, True)


def test_cost_that_does_not_name_the_unit_is_an_argument_that_is_wrong(ratekit, url):
    for command in ("check", "explain"):
        ended = ratekit(command, *PLACE, *LLM)
        assert (ended.code, "the limits count requests, tokens: give --cost tokens=…" in ended.err) == (2, True)
    assert ratekit("check", *PLACE, *LLM, "--cost", "tokens").code == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("5", "--cost 5 says no unit, and the limits count requests, tokens: give --cost tokens=…"),
        ("pages=2", "--cost names the unit 'pages', and the limits count requests, tokens"),
        ("requests=2", "--cost does not name the unit 'tokens', which the limits count: give --cost tokens=…"),
    ],
)
def test_cost_that_fits_no_limit_is_told_in_the_words_of_the_command_line(given, said, ratekit, url):
    for command in ("check", "explain"):
        ended = ratekit(command, *PLACE, *LLM, "--cost", given)
        assert (ended.code, said in ended.err) == (2, True), ended.err


def test_check_of_a_concurrency_limit_is_told_in_the_words_of_the_command_line(ratekit, url):
    ended = ratekit("check", *PLACE, "--limit", "5/min@concurrency")
    assert (ended.code, "holds its slot while a request runs" in ended.err, "slot()" in ended.err) == (2, True, False)
    assert "0 of 5 used" in ratekit("inspect", *PLACE, "--limit", "5/min@concurrency").out


def test_explain_says_the_units_and_the_calendar(ratekit, url):
    ratekit("check", *PLACE, *LLM, "--cost", "tokens=800")
    text = ratekit("explain", *PLACE, *LLM, "--cost", "tokens=300").out
    assert "a request that costs 300 tokens is refused" in text
    assert "tokens-60s (1000 tokens/min): 800 of 1000 tokens used, 200 left" in text
    assert "month (10000/month Europe/Berlin): 1 of 10000 used" in text
    assert ratekit("explain", *PLACE, *LLM, "--cost", "tokens=1", "--json").json["cost"] == {"tokens": 1}


def test_reservations_are_told_apart_from_counters(ratekit, url):
    with RateLimiter(url) as limiter:
        done, _ = [limiter.reserve_now(POLICY, "org:7", estimate={"tokens": 100}) for _ in range(2)]
        limiter.settle(POLICY, "org:7", done.id, actual={"tokens": 10}, known=done.estimate)
    for options in ((), LLM):
        shown = ratekit("inspect", *PLACE, *options)
        told = "reserved  1 under way, or over with nothing to return, of 1+100: part of what is used"
        assert told in shown.out
        assert done.id not in shown.out
    assert "1 under way, or over" in ratekit("explain", *PLACE).out
    values = ratekit("inspect", *PLACE, "--json").json
    assert [counter["limit"] for counter in values["counters"]] == ["60s", "month", "tokens-60s"]
    assert sorted(one["is_settled"] for one in values["reservations"]) == [False, True]
    assert ratekit("reset", *PLACE).out == "deleted: 3 counter(s) of org:7 on /chat\n"
    assert "reserved" not in ratekit("inspect", *PLACE).out


@pytest.mark.parametrize(
    ("text", "cost"), [("5", 5), (" 0 ", 0), ("tokens=800", {"tokens": 800}), ("A=1, b-c=2", {"a": 1, "b-c": 2})]
)
def test_cost_is_read(text, cost):
    assert parse_cost(text) == cost


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "tokens", "tokens=", "=5", "tokens=5,", "tokens=5,tokens=6", "5,6", "tokens=1e3"]
)
def test_cost_that_makes_no_sense_is_refused(text):
    with pytest.raises(ConfigurationError, match="cost"):
        parse_cost(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [("fortnight", "neither a length of time nor a period"), ("day Mars/Base", "Mars/Base"), ("1h soft 0.5", "soft")],
)
def test_window_that_makes_no_sense_is_refused(text, words):
    with pytest.raises(ConfigurationError, match=words):
        parse_window(text)
