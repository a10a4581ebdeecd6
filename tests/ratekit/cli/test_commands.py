"""What each command does to a real store."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ratekit import Limit, Policy, RateLimiter
from ratekit.admin.fleet_mode import get_fleet_mode
from ratekit.overrides import (
    clear_rate_limit_overrides,
    get_rate_limit_override,
    list_rate_limit_overrides,
    set_rate_limit_override,
)
from ratekit.web.identity import hashed

LIMITS = ["--limit", "3/min", "--limit", "hour=100/h@sliding_window_log", "--limit", "1/min shadow"]
POLICY = Policy(
    "/x", [Limit(3, 60), Limit(100, 3600, name="hour", algorithm="sliding_window_log"), Limit(1, 60, shadow=True)]
)


@pytest.fixture
def limiter(url):
    with RateLimiter(url, deadline=5) as limiter:
        yield limiter


def test_check_spends_and_says_so(ratekit, limiter):
    assert (
        ratekit("check", "/x", "u", *LIMITS, "--cost", "2").out == "allowed: u on /x, within limit 'minute': 2 of 3 used\n"
    )
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
    assert lines[0].startswith("limit     60s (3/min): 1 of 9 by override used, 8 left")
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
    assert [(item["used"], item["is_exact"]) for item in told["counters"]] == [(1, True), (1, True), (1, False)]
    lines = ratekit("inspect", "/x", "u").out.splitlines()
    assert lines[0] == "LIMIT       ALGORITHM           SHADOW  USED       RESETS IN  EXPIRES IN"
    assert [" ".join(line.split()[:4]) for line in lines[1:4]] == [
        "60s fixed_window - 1", "60s-shadow fixed_window yes 1", "hour sliding_window_log - at"
    ]  # fmt: skip
    assert "at most 1" in lines[3]


@pytest.mark.parametrize("limits", [LIMITS, []], ids=["known", "found"])
def test_reset_forgets_what_was_used(limits, ratekit, limiter):
    limiter.charge(POLICY, "u", cost=5)
    limiter.check(POLICY, "v")
    assert ratekit("reset", "/x", "u", *limits).out.startswith("deleted: 3 counter(s) of u on /x") or not limits
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


def test_limits_of_a_method_are_asked_for_by_it(ratekit, tmp_path, monkeypatch):
    (tmp_path / "method_limits.py").write_text("RULES = {'POST /login': '5/min', '/login': '9/min'}\n")
    monkeypatch.chdir(tmp_path)
    asked = {
        endpoint: ["explain", endpoint, "u", "--rules", "method_limits:RULES"] for endpoint in ("POST /login", "/login")
    }
    told = {endpoint: ratekit(*words, "--store", "memory://cli", "--json").json for endpoint, words in asked.items()}
    assert {answer["endpoint"] for answer in told.values()} == {"/login"}
    assert [answer["limits"][0]["name"] for answer in told.values()] == ["post-60s", "60s"]


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


RULES = "RULES = {'/items/{id}': '2/min; hour=9/h', 'POST /login': '5/min'}\n"


@pytest.fixture
def rules(tmp_path, monkeypatch):
    (tmp_path / "override_rules.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    return ["--rules", "override_rules:RULES"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/items/7", "u"], "the limits of '/items/7' are counted under '/items/{id}'"),
        (["/other", "u"], "no limit is declared for the endpoint '/other'"),
        (["/items/{id}", "u", "--limit", "day"], "limit 'day' is not one of 60s, hour"),
        (["/items/{id}", "user:*"], "subject 'user:*' has a wildcard, and overrides have none"),
    ],
)
def test_override_that_would_match_nothing_is_refused_unless_it_is_forced(words, said, rules, ratekit, limiter):
    refused = ratekit("overrides", "set", *words, "--max-requests", "1", *rules)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert said in refused.err
    assert "--force" in refused.err
    assert ratekit("overrides", "list", "--json").json["overrides"] == []
    forced = ratekit("overrides", "set", *words, "--max-requests", "1", *rules, "--force")
    assert forced.code == 0
    assert f"ratekit: warning: {said}" in forced.err
    assert len(ratekit("overrides", "list", "--json").json["overrides"]) == 1


@pytest.mark.parametrize(
    "words",
    [["/items/{id}", "u"], ["/items/{id}", "u", "--limit", "hour"], ["/items/{id}", "*/items/{id}"], ["/login", "u"]],
    ids=" ".join,
)
def test_override_that_the_rules_have_is_written_without_a_warning(words, rules, ratekit, limiter):
    ended = ratekit("overrides", "set", *words, "--max-requests", "1", *rules)
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(("title", "name"), [("minute", "60s"), ("hour", "hour"), ("post minute", "post-60s")])
def test_limit_may_be_given_by_the_title_that_clients_are_shown(title, name, rules, ratekit, limiter):
    endpoint = "POST /login" if title.startswith("post") else "/items/{id}"
    written = ["overrides", "set", endpoint, "u", "--limit", title, "--max-requests", "1", *rules, "--force", "--json"]
    assert list(ratekit(*written).json["limits"]) == [name]


def test_title_of_a_limit_that_is_not_known_is_told_from_its_name(ratekit, limiter):
    for words in (["set", "/x", "u", "--max-requests", "1"], ["delete", "/x", "u"]):
        ended = ratekit("overrides", *words, "--limit", "post minute")
        assert (ended.code, "--limit 'post minute' is no name of a limit" in ended.err) == (2, True)
        assert "such as 'post minute' for post-60s" in ended.err


def test_overrides_are_copied_by_export_and_import(ratekit, limiter, tmp_path):
    set_rate_limit_override(limiter, endpoint="/a", org_id="x:y", project_id=2, max_requests=5, note="é", set_by="ada")
    set_rate_limit_override(limiter, endpoint="/a", org_id="x:y", project_id=2, limit="hour", expiry=2.5, note="é")
    set_rate_limit_override(limiter, endpoint="/b", subject="u", unlimited=True, override_ttl=3600)
    set_rate_limit_override(limiter, endpoint="/" + "b" * 300, subject="u", max_requests=0)
    before = {(one.endpoint, one.subject): one for one in list_rate_limit_overrides(limiter)}
    file = tmp_path / "overrides.jsonl"
    exported = ratekit("overrides", "export")
    assert (exported.code, exported.err, exported.out.count("\n")) == (0, "", 3)
    file.write_text(exported.out)
    clear_rate_limit_overrides(limiter)
    set_rate_limit_override(limiter, endpoint="/b", subject="u", max_requests=7, limit="day")
    set_rate_limit_override(limiter, endpoint="/c", subject="u", max_requests=7)
    assert ratekit("overrides", "import", str(file)).out == "imported: 3\n"
    after = {(one.endpoint, one.subject): one for one in list_rate_limit_overrides(limiter)}
    assert after.pop(("/c", "u")).max_requests == 7
    assert 3590 < after["/b", "u"].expires_in <= 3600
    assert [replace(one, expires_in=None) for one in after.values()] == [
        replace(before[name], expires_in=None) for name in after
    ]
    assert set(after) == set(before)


def test_import_reads_the_standard_input_and_leaves_out_what_has_ended(url, piped):
    lines = [
        {"endpoint": "/a", "subject": "u", "max_requests": 1},
        {"endpoint": "/b", "subject": "u", "burst": 2, "expires_at": 5},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n\n"
    ended = piped("overrides", "import", "--json", input=text, stdin=None)
    assert (ended.code, ended.json) == (0, {"imported": 1, "ended": 1})
    assert [one["endpoint"] for one in piped("overrides", "list", "--json").json["overrides"]] == ["/a"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "'nonsense' is not JSON"),
        ("[]", "line [] is not a JSON object"),
        ('{"max_requests": 5}', "endpoint and subject are missing"),
        ('{"endpoint": "/a", "subject": "u", "max_requests": -1}', "max_requests -1"),
        ('{"endpoint": "/a", "subject": "u", "max_request": 1}', "field 'max_request' is unknown"),
        ('{"endpoint": "/a", "subject": 5, "max_requests": 1}', "subject 5 is not a text"),
        ('{"endpoint": "/a", "subject": "u", "max_requests": 1, "set_at": "x"}', "set_at 'x' is not a number"),
        ('{"endpoint": "/a", "subject": "u", "limits": {"hour": {"max": 1}}}', "field 'max' of limit 'hour' is unknown"),
        ('{"endpoint": "/a", "subject": "u", "limits": {"hour": 5}}', "limit 'hour' 5 is not a JSON object"),
    ],
)
def test_import_with_a_wrong_line_names_it_and_writes_nothing(line, said, ratekit, limiter, tmp_path):
    file = tmp_path / "overrides.jsonl"
    file.write_text('{"endpoint": "/a", "subject": "u", "max_requests": 1}\n' + line + "\n")
    ended = ratekit("overrides", "import", str(file))
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert f"line 2 of {file} is not an override: {said}" in ended.err
    assert len(list_rate_limit_overrides(limiter)) == 0


def test_unreadable_override_is_not_exported_and_is_named(ratekit, limiter, redis_server):
    with redis_server.client() as client:
        client.hset("ratelimit_override:/a:{u}", "max_requests", "many")
    ended = ratekit("overrides", "export")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "ratekit: warning: the override of u on /a is unreadable, and is not exported\n"


@pytest.fixture
def database(tmp_path, ratekit):
    url = f"sqlite:///{tmp_path / 'ratekit.db'}"
    assert ratekit("db", "upgrade", "--database", url).code == 0
    return url


def test_override_in_a_database_lasts_and_has_a_history(ratekit, limiter, database):
    numbers = ("--max-requests", "9", "--ttl", "1h", "--note", "trial", "--by", "ada")
    told = ratekit("overrides", "set", "/x", "u", *numbers, "--database", database)
    assert told.out.startswith("set: u on /x: max_requests 9")
    assert limiter.peek(POLICY, "u").tiers[0].max_requests == 9
    clear_rate_limit_overrides(limiter)
    assert ratekit("overrides", "copy", "--complete", "--database", database).out == "written: 1, deleted: 0\n"
    assert 0 < get_rate_limit_override(limiter, endpoint="/x", subject="u").expires_in <= 3600
    assert (
        ratekit("overrides", "delete", "/x", "u", "--by", "bob", "--note", "over", "--database", database).out == "deleted\n"
    )
    assert ratekit("overrides", "delete", "/x", "u", "--database", database).out == "there was none\n"
    assert get_rate_limit_override(limiter, endpoint="/x", subject="u") is None
    told = ratekit("overrides", "history", "--subject", "u", "--database", database, "--json").json
    assert [(one["action"], one["changed_by"], one["reason"]) for one in told] == [
        ("delete", "bob", "over"),
        ("set", "ada", "trial"),
    ]
    lines = ratekit("overrides", "history", "--database", database).out.splitlines()
    assert [line.split()[1:5] for line in lines[1:]] == [
        ["delete", "u", "/x", "max_requests=9"],
        ["set", "u", "/x", "max_requests=9"],
    ]


def test_numbers_of_one_limit_are_deleted_from_the_database(ratekit, limiter, database):
    for arguments in (["--max-requests", "9"], ["--limit", "hour", "--max-requests", "70"]):
        ratekit("overrides", "set", "/x", "u", *arguments, "--database", database)
    assert ratekit("overrides", "delete", "/x", "u", "--limit", "hour", "--database", database).out == "deleted\n"
    assert ratekit("overrides", "delete", "/x", "u", "--limit", "hour", "--database", database).out == "there was none\n"
    override = get_rate_limit_override(limiter, endpoint="/x", subject="u")
    assert (override.max_requests, override.limits) == (9, {})


def test_overrides_of_the_database_are_cleared_with_their_copies(ratekit, limiter, database):
    for who in (["--org", "1", "--project", "2"], ["--org", "3", "--project", "4"]):
        ratekit("overrides", "set", "/x", *who, "--max-requests", "9", "--database", database)
    assert ratekit("overrides", "clear", "--org", "1", "--yes", "--database", database).out == "deleted: 1\n"
    assert [override.subject for override in list_rate_limit_overrides(limiter)] == ["3:4"]
    assert ratekit("overrides", "copy", "--complete", "--database", database).out == "written: 1, deleted: 0\n"


def test_client_that_is_named_by_what_it_sends_is_told_as_it_is_counted(ratekit, url):
    told = ratekit("overrides", "set", "/x", "header:X-API-Key:secret", "--max-requests", "9")
    assert (told.code, f"would be 'header:x-api-key:{hashed('secret')}'" in told.err) == (0, True)


def test_history_without_a_database_says_what_to_give(ratekit, url, monkeypatch):
    monkeypatch.delenv("RATEKIT_DATABASE_URL", raising=False)
    told = ratekit("overrides", "history")
    assert (told.code, "no database is given: set RATEKIT_DATABASE_URL" in told.err) == (2, True)
