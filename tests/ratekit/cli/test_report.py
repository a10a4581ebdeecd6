"""ratekit report: for people, for programs, and for spreadsheets."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ratekit import Limit, Policy, RateLimiter, RateLimitMode
from ratekit.core.protocol import encode
from ratekit.report import Reporter
from support.servers import free_port


@pytest.fixture
def reported(url, ratekit_clock):
    """The report of some traffic, at a time that stands still."""
    ratekit_clock.set(1_800_000_000)
    serve(url)


def serve(url: str) -> None:
    """Ten users of /search ask for 1 to 10 in a minute, where 5 are allowed; /login is refused to one with an odd name."""
    with RateLimiter(url, deadline=5) as limiter:
        reporter = Reporter(limiter, subjects="plain", interval=3600).start()
        search = Policy("/search", Limit(5, 60))
        for number in range(1, 11):
            for _ in range(number):
                limiter.decide(encode(search, f"user:{number}", "/search"), RateLimitMode.MONITOR)
        for _ in range(3):
            limiter.check(Policy("/login", Limit(1, 60)), "\x1b[31mred")
        reporter.close()


@pytest.mark.usefixtures("reported")
def test_report_is_a_table_of_limits_and_of_subjects(ratekit):
    ended = ratekit("report", "--top", "2")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].split() == ["ENDPOINT", "LIMIT", "MODE", "MAXIMUM", "REQUESTS", "REFUSED", "SUBJECTS", "AFFECTED"]
    assert " ".join(lines[1].split()) == "/search 60s monitor 5 per 60 s 55 15 (27.27%) 10 5 (50.00%)"
    assert " ".join(lines[2].split()) == "/login 60s on 1 per 60 s 3 2 (66.67%) 1 1 (100.00%)"
    assert "/search 60s: would be refused" in lines
    assert "user:10  5        10    2x          2027-01-15T08:00:00Z  2027-01-15T08:00:00Z" in lines
    assert "/search 60s: near" in lines
    assert "user:8" not in ended.out


def test_report_says_whose_peaks_have_what_was_returned(ratekit, url):
    """Three requests of an estimate of 800 that cost 100 each, one after the other: 300 are used, and 1000 were needed."""
    llm = Policy("/chat", "1000 tokens/min")
    with RateLimiter(url, deadline=5) as limiter:
        reporter = Reporter(limiter, subjects="plain", interval=3600).start()
        for _ in range(3):
            with limiter.reserve(llm, "org:7", estimate={"tokens": 800}) as reservation:
                reservation.settle(tokens=100)
        limiter.check(Policy("/search", "5/min"), "org:7")
        reporter.close()
    told = ratekit("report", "--share", "1%").out
    assert "peaks of /chat tokens-60s have what requests reserve, also what they return when they end" in told
    found = {one["endpoint"]: one for one in json.loads(ratekit("report", "--json", "--share", "1%").out)["limits"]}
    assert (found["/chat"]["is_reserved"], found["/search"]["is_reserved"]) == (True, False)
    assert found["/chat"]["limit_for_share"]["max_requests"] == 1000


def test_report_says_units_and_periods_of_calendars(ratekit, url):
    with RateLimiter(url, deadline=5) as limiter:
        reporter = Reporter(limiter, subjects="plain", interval=3600).start()
        limiter.check(Policy("/chat", ["90000 tokens/min", "3000000 tokens/month Europe/Berlin"]), "u", cost={"tokens": 8})
        reporter.close()
    maxima = [" ".join(line.split()[3:-6]) for line in ratekit("report").out.splitlines()[1:]]
    assert maxima == ["90000 tokens per 60 s", "3000000 tokens per month Europe/Berlin"]
    (minute, month) = json.loads(ratekit("report", "--json").out)["limits"]
    assert [(one["unit"], one["calendar"]) for one in (minute, month)] == [("tokens", ""), ("tokens", "month Europe/Berlin")]


@pytest.mark.usefixtures("reported")
def test_report_says_which_limit_affects_how_many(ratekit):
    lines = ratekit("report", "/search", "--share", "20%", "--if", "9", "--top", "0").out.splitlines()
    assert len(lines) == 2
    assert lines[0].split()[-4:] == ["FOR", "0.2", "IF", "9"]
    assert lines[1].split()[-3:] == ["8", "1", "(10.00%)"]


@pytest.mark.usefixtures("reported")
def test_report_is_json(ratekit):
    limits = ratekit("report", "/search", "--json", "--share", "0.2", "--if", "9", "--top", "1").json["limits"]
    assert [limit["endpoint"] for limit in limits] == ["/search"]
    assert limits[0]["limit_for_share"] == {"share": 0.2, "max_requests": 8}
    assert limits[0]["affected_if"] == {"max_requests": 9, "subjects": 1, "share": 0.1, "is_exact": True}
    assert [use["subject"] for use in limits[0]["refused"]] == ["user:10"]


@pytest.mark.usefixtures("reported")
def test_report_is_csv(ratekit):
    rows = list(csv.DictReader(io.StringIO(ratekit("report", "/search", "--csv").out)))
    assert [row["subject"] for row in rows] == [f"user:{number}" for number in (10, 9, 8, 7, 6, 5, 4)]
    assert [row["kind"] for row in rows] == ["refused"] * 5 + ["near"] * 2


def test_report_in_a_pipe_has_no_colours_and_a_subject_cannot_talk_to_a_terminal(piped, terminal, url):
    serve(url)
    plain, coloured = piped("report").out, terminal("report").out
    assert "\x1b" not in plain
    assert "\\x1b[31mred" in plain
    assert "\x1b[1mENDPOINT\x1b[0m" in coloured
    assert "\x1b[31mred" not in coloured
    assert json.loads(piped("report", "--json").out)["limits"][0]["endpoint"] == "/search"


def test_report_that_nobody_keeps_says_how_to(ratekit, url):
    assert ratekit("report").out == "the report is empty: the application records it after ratekit.report.install()\n"
    assert ratekit("report", "--json").json == {"limits": []}
    assert ratekit("report", "--csv").out.count("\n") == 1


@pytest.mark.usefixtures("reported")
def test_report_is_cleared(ratekit):
    assert ratekit("report", "/search", "--clear").out == "deleted: 1 limit(s)\n"
    assert [limit["endpoint"] for limit in ratekit("report", "--json").json["limits"]] == ["/login"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--share", "150%"], "'150%'"),
        (["--share", "nan"], "'nan'"),
        (["--share", "many"], "'many'"),
        (["--if", "-1"], "-1"),
        (["--top", "x"], "'x'"),
        (["--days", "0"], "0"),
        (["--csv", "--json"], "--csv and --json"),
        (["--store", "nowhere://"], "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_question_that_makes_no_sense_is_refused_in_one_sentence(ratekit, url, arguments, named):
    ended = ratekit("report", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("ratekit: ")
    assert named in ended.err
    assert ended.err.count("\n") == 1


def test_store_that_is_away_is_told_in_one_sentence(piped):
    ended = piped("report", "--store", f"redis://127.0.0.1:{free_port()}")
    assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1)
    assert "connection" in ended.err
