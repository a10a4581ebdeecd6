"""What each command does to a real store."""

from __future__ import annotations

import pytest

from ratekit import Limit, Policy, RateLimiter
from ratekit.fleet import get_fleet_mode
from ratekit.overrides import get_rate_limit_override

LIMITS = ["--limit", "3/min", "--limit", "hour=100/h@sliding_window_log", "--limit", "1/min shadow"]
POLICY = Policy(
    "/x", [Limit(3, 60), Limit(100, 3600, name="hour", algorithm="sliding_window_log"), Limit(1, 60, shadow=True)]
)


@pytest.fixture
def limiter(url):
    with RateLimiter(url, deadline=5) as limiter:
        yield limiter


def test_check_spends_and_says_so(ratekit, limiter):
    assert ratekit("check", "/x", "u", *LIMITS, "--cost", "2").out == "allowed: u on /x, within limit '60s': 2 of 3 used\n"
    assert limiter.peek(POLICY, "u").request_count == 2
    told = ratekit("check", "/x", "u", *LIMITS, "--cost", "2", "--json")
    assert (told.code, told.json["allowed"], told.json["remaining"]) == (1, False, 0)
    assert [limit["name"] for limit in told.json["limits"]] == ["60s", "hour", "60s-shadow"]
    assert 0 < told.json["retry_after"] <= 60


def test_inspect_shows_the_state_and_spends_nothing(ratekit, limiter):
    limiter.check(POLICY, "u")
    ratekit("overrides", "set", "/x", "u", "--max-requests", "9", "--by", "ada")
    for _ in range(2):
        told = ratekit("inspect", "/x", "u", *LIMITS, "--json").json
        assert [limit["used"] for limit in told["limits"]] == [1, 1, 1]
        assert (told["max_requests"], told["override"]["set_by"]) == (9, "ada")
    lines = ratekit("inspect", "/x", "u", *LIMITS).out.splitlines()
    assert lines[0].startswith("limit     60s (3/60s fixed_window): 1 of 9 by override used, 8 left")
    assert lines[3] == "override  max_requests 9, by ada"


def test_inspect_finds_counters_without_a_limit(ratekit, limiter):
    assert "counters  none" in ratekit("inspect", "/x", "u").out
    limiter.check(POLICY, "u")
    told = ratekit("inspect", "/x", "u", "--json").json
    assert [(item["limit"], item["algorithm"], item["shadow"]) for item in told["counters"]] == [
        ("60s", "fixed_window", False),
        ("60s-shadow", "fixed_window", True),
        ("hour", "sliding_window_log", False),
    ]
    assert "LIMIT       ALGORITHM           SHADOW  EXPIRES IN" in ratekit("inspect", "/x", "u").out


@pytest.mark.parametrize("limits", [LIMITS, []], ids=["known", "found"])
def test_reset_forgets_what_was_used(limits, ratekit, limiter):
    limiter.charge(POLICY, "u", cost=5)
    limiter.check(POLICY, "v")
    assert ratekit("reset", "/x", "u", *limits).out.startswith("forgotten: 3 counter(s) of u on /x") or not limits
    assert limiter.peek(POLICY, "u").request_count == 0
    assert limiter.peek(POLICY, "v").request_count == 1


def test_limits_come_from_the_application(ratekit, tmp_path, monkeypatch):
    (tmp_path / "shop_limits.py").write_text(
        "from ratekit import Limit\nRULES = {'/items/{id}': ['2/min', '9/h']}\nONE = Limit(4, 60)\n"
    )
    monkeypatch.chdir(tmp_path)
    told = ratekit("explain", "/items/7", "u", "--rules", "shop_limits:RULES", "--store", "memory://cli", "--json").json
    assert (told["endpoint"], told["rule"], [limit["max_requests"] for limit in told["limits"]]) == (
        "/items/{id}", "/items/{id}", [2, 9]
    )  # fmt: skip
    assert (
        ratekit("check", "/y", "u", "--rules", "shop_limits:ONE", "--store", "memory://cli", "--json").json["remaining"] == 3
    )
    assert "no limits for '/z'" in ratekit("check", "/z", "u", "--rules", "shop_limits:RULES", "--store", "memory://cli").err


def test_memory_is_said_to_be_empty(ratekit):
    ended = ratekit("check", "/x", "u", "--limit", "1/s", "--store", "memory://cli")
    assert ended.code == 0
    assert "memory://" in ended.err


def test_overrides_are_set_shown_listed_and_deleted(ratekit, limiter):
    words = ["--org", "1", "--project", "42"]
    numbers = ["--max-requests", "500", "--expiry", "2min", "--ttl", "24h", "--note", "trial", "--by", "ada"]
    assert ratekit("overrides", "set", "/x", *words, *numbers).out.startswith("set: 1:42 on /x: max_requests 500 expiry 120")
    written = get_rate_limit_override(limiter, endpoint="/x", org_id=1, project_id=42)
    assert (written.max_requests, written.expiry, written.note, written.set_by) == (500, 120, "trial", "ada")
    assert 86390 < written.expires_in <= 86400
    ratekit("overrides", "set", "/x", "user:7", "--unlimited")
    ratekit("overrides", "set", "/y", "1:42", "--limit", "hour", "--max-requests", "0")
    assert ratekit("overrides", "get", "/x", *words, "--json").json["note"] == "trial"
    assert ratekit("overrides", "get", "/x", "nobody").out == "override  none\n"
    listed = ratekit("overrides", "list").out.splitlines()
    assert listed[0].split() == ["ENDPOINT", "SUBJECT", "OVERRIDE"]
    assert [line.split()[:2] for line in listed[1:]] == [["/x", "1:42"], ["/x", "user:7"], ["/y", "1:42"]]
    assert len(ratekit("overrides", "list", "--org", "1", "--endpoint", "/x", "--json").json["overrides"]) == 1
    assert ratekit("overrides", "delete", "/y", "1:42", "--limit", "hour").out == "deleted\n"
    assert ratekit("overrides", "delete", "/y", "1:42").out == "there was none\n"
    assert ratekit("overrides", "clear", "--org", "1", "--yes", "--json").json == {"deleted": 1}
    assert ratekit("overrides", "clear", "--yes").out == "deleted: 1\n"
    assert ratekit("overrides", "list").out == "there are none\n"


def test_overrides_are_listed_in_pages(ratekit, limiter):
    for number in range(300):
        limiter.check(Limit(5, 60), f"u{number}", endpoint="/x")
    for number in range(250):
        ratekit("overrides", "set", "/x", f"u{number}", "--max-requests", "1")
    found, cursor = [], []
    while True:
        page = ratekit("overrides", "list", "--page-size", "50", *cursor, "--json").json
        found += [override["subject"] for override in page["overrides"]]
        if page["cursor"] is None:
            break
        cursor = ["--cursor", page["cursor"]]
    assert sorted(set(found)) == sorted(f"u{number}" for number in range(250))
    assert cursor


def test_what_was_written_by_others_does_not_talk_to_the_terminal(ratekit, redis_server, url):
    with redis_server.client() as client:
        client.hset("ratelimit_override:/x:{u}", mapping={"max_requests": 5, "note": "\x1b[2J", "set_by": "\x1b]0;x\x07"})
        client.hset("ratelimit_mode", mapping={"mode": "\x1b[2J"})
    assert "\x1b" not in ratekit("overrides", "list").out
    assert "\x1b" not in ratekit("overrides", "get", "/x", "u").out
    assert "\x1b" not in ratekit("mode").out
    assert "\x1b" not in ratekit("explain", "/x", "u").out


def test_mode_is_shown_set_and_cleared(ratekit, limiter):
    assert "no mode" in ratekit("mode").out
    assert ratekit("mode", "monitor", "--note", "trial", "--by", "ada").out == "monitor, set by ada, note 'trial'\n"
    assert get_fleet_mode(limiter).mode == "monitor"
    assert ratekit("mode", "--json").json["set_by"] == "ada"
    assert "no mode" in ratekit("mode", "clear").out
    assert get_fleet_mode(limiter) is None
    assert ratekit("mode", "--json").json is None


def test_explain_says_what_would_happen_now(ratekit, limiter):
    limiter.charge(POLICY, "u", cost=3)
    ratekit("mode", "monitor", "--by", "ada")
    ended = ratekit("explain", "/x", "u", *LIMITS)
    assert ended.code == 0
    assert ended.out.startswith(
        "allowed\nu on /x: a request that costs 1 passes, as the mode is monitor; on would refuse it"
    )
    assert "fleet mode: monitor" in ended.out
    told = ratekit("explain", "/x", "u", *LIMITS, "--json").json
    assert (told["mode"], told["mode_source"], told["refused"]) == ("monitor", "fleet mode", False)
    assert limiter.peek(POLICY, "u").request_count == 3


def test_explain_says_what_the_store_knows_without_a_limit(ratekit, limiter):
    limiter.check(POLICY, "u")
    told = ratekit("explain", "/x", "u", "--json").json
    assert (len(told["counters"]), told["override"], told["fleet_mode"]) == (3, None, None)
    assert "give --limit or --rules" in ratekit("explain", "/x", "u").out
