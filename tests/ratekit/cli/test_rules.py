"""The commands rules …: for CI, for reviews, and for who wants to know what a request would meet."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import jsonschema
import pytest

from ratekit.rules.diff import changes
from ratekit.rules.document import Document
from support.rule_documents import ROWS, SERVICE

OLD = """
plans: {pro: 100/s}
rules:
- name: chat
  match: {method: POST, path: "/v1/{tenant}/chat"}
  by: {tenant: path:tenant, model: json:model}
  limits: {rps: 20, rpm: 1000}
  custom: {"tenant:acme:model:a": 5/s, "tenant:old:*": {plan: pro}}
- {name: gone, match: {path: /gone}, limits: 1/s}
- {name: same, match: {path: /same}, limits: 1/s}
"""
NEW = """
rules:
- name: chat
  match: {method: POST, path: "/v1/{tenant}/chat"}
  by: {tenant: path:tenant, model: json:model}
  limits: {rps: 20, rpm: 500}
  custom: {"tenant:acme:model:a": 9/s, "tenant:new:model:b": 1/s}
- {name: fresh, match: {path: /fresh}, limits: 1/s}
- {name: same, match: {path: /same}, limits: 1/s}
"""


@pytest.fixture
def files(tmp_path):
    old, new, bad = (tmp_path / name for name in ("old.yaml", "new.yaml", "bad.yaml"))
    old.write_text(OLD)
    new.write_text(NEW)
    bad.write_text("rules: [{limits: 1/s}, {limits: many, nmae: x}]")
    return str(old), str(new), str(bad)


def test_validate_tells_every_fault_and_has_an_exit_code_for_ci(ratekit, files):
    old, new, bad = files
    assert (ratekit("rules", "validate", old, new).code, ratekit("rules", "validate", old, bad).code) == (0, 1)
    lines = ratekit("rules", "validate", old, bad).out.splitlines()
    assert lines[0].startswith(f"{bad}: rules[1].limits: rate 'many' is not a limit")
    assert lines[1] == f"{bad}: rules[1].nmae: unknown field; did you mean 'name'?"
    assert lines[2] == f"{old}: ok"
    assert len(ratekit("rules", "validate", bad, "--json").json[bad]) == 2
    assert ratekit("rules", "validate", "no-such.yaml").code == 1


def test_validate_tells_of_a_unit_that_nothing_is_spent_of(ratekit, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{limits: [9/s, 900 tokens/min], by: 'function:no.such:module'}]")
    assert "rules[0]: limits: cost 1 says no unit" in ratekit("rules", "validate", str(path)).out
    assert ratekit("rules", "push", str(path), str(tmp_path / "other.json")).code == 2


def test_show_has_version_origin_and_each_rule(ratekit, files):
    told = ratekit("rules", "show", files[0])
    lines = told.out.splitlines()
    assert lines[0] == f"origin   {files[0]}"
    assert lines[2] == "rules    3, apply first"
    assert lines[5].split()[:3] == ["chat", "POST", "/v1/{tenant}/chat"]
    assert ratekit("rules", "show", files[0], "--json").json["document"]["plans"] == {"pro": ["100/s"]}


def test_doctor_shows_the_rules_in_force(ratekit, files, url):
    told = ratekit("doctor", "--rules", files[0], "--json")
    assert told.code == 0
    assert told.json[-1]["what"] == "rules"
    assert told.json[-1]["message"].startswith(f"3 in force from {files[0]}, version ")
    for where, why in ((files[2], "is refused: rules[1].limits"), ("redis://127.0.0.1:1/0", "does not answer")):
        told = ratekit("doctor", "--rules", where, "--json")
        assert (told.code, told.json[-1]["severity"], why in told.json[-1]["message"]) == (3, "problem", True)


def test_show_says_when_a_rule_counts(ratekit, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(
        "rules: [{name: a, limits: 1/s, valid_until: 2020-01-01}, {name: b, limits: 1/s, valid_from: 2990-01-01}, "
        "{name: c, limits: 1/s, mode: monitor, valid_until: 2990-01-01}, {name: d, limits: 1/s, enabled: false}]"
    )
    lines = ratekit("rules", "show", str(path)).out.splitlines()[5:]
    assert [line.split(" 0 ")[1].strip() for line in lines] == [
        "over since 2020-01-01T00:00:00+00:00",
        "on from 2990-01-01T00:00:00+00:00",
        "monitor until 2990-01-01T00:00:00+00:00",
        "disabled",
    ]


def test_diff_says_who_gets_more_and_who_less(ratekit, files):
    found = {(row["rule"], row["key"]): row for row in ratekit("rules", "diff", *files[:2], "--json").json}
    assert {where: row["kind"] for where, row in found.items()} == {
        ("chat", "tenant:acme:model:a"): "more",
        ("chat", "tenant:old:*"): "less",
        ("chat", "tenant:new:model:b"): "less",
        ("chat", "everybody else"): "less",
        ("fresh", "everybody else"): "less",
        ("gone", "everybody else"): "more",
    }
    assert found["chat", "tenant:acme:model:a"]["before"] == "5/s"
    assert found["gone", "everybody else"]["after"] == "unlimited"
    assert ratekit("rules", "diff", files[0], files[0]).out == "no limit changes\n"


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("3/min", ["100/s", "50000/day"], "more"),
        ("5/min", "50/h", "otherwise"),
        ("100/min", "100/min burst 200", "more"),
        (["10/s", "100/min"], "10/s", "more"),
        ("10/s", ["10/s", "90000 tokens/min"], "less"),
        ("10/s", ["10/s", "1/s shadow"], "otherwise"),
        ("unlimited", "10/s", "less"),
    ],
)
def test_diff_compares_what_limits_admit_in_any_time(before, after, kind):
    cost = {"requests": 1, "tokens": 1} if "tokens" in str(after) else 1
    old, new = (
        Document.parse({"rules": [{"limits": limits, "cost": cost if limits is after else 1}]}) for limits in (before, after)
    )
    assert [change.kind for change in changes(old, new) if change.key != "(cost)"] == [kind]


def test_diff_shows_what_else_a_rule_says():
    old = {"rules": [{"name": "a", "limits": "5/s", "by": "ip"}, {"name": "b", "limits": "5/s", "mode": "monitor"}]}
    new = {
        "apply": "first",
        "rules": [
            {"name": "b", "limits": "5/s"},
            {"name": "a", "limits": "5/s", "by": "header:X-Key", "mode": "off", "valid_until": "2030-01-01T00:00:00Z"},
        ],
    }
    found = changes(Document.parse(old), Document.parse(new))
    assert [tuple(change) for change in found] == [
        ("otherwise", "every rule", "(order)", "a is number 1", "b is"),
        ("less", "b", "(mode)", "monitor", "on"),
        ("otherwise", "a", "(by)", "ip", "header:X-Key"),
        ("more", "a", "(mode)", "on", "off"),
        ("otherwise", "a", "(valid_until)", "-", "2030-01-01 00:00:00+00:00"),
    ]


def test_push_and_pull_copy_a_document(ratekit, files, redis_server, tmp_path):
    url = f"{redis_server.url}/0?rules=chat"
    assert ratekit("rules", "push", files[0], url).code == 0
    pulled = tmp_path / "pulled.yaml"
    pulled.write_text(ratekit("rules", "pull", url).out)
    assert ratekit("rules", "diff", files[0], str(pulled)).out == "no limit changes\n"
    assert ratekit("rules", "push", files[2], url).code == 2, "a document that makes no sense is not written"
    assert ratekit("rules", "diff", files[0], url).out == "no limit changes\n"
    assert ratekit("rules", "show", "redis://127.0.0.1:1/0").code == 3


@pytest.mark.parametrize("document", [SERVICE, ROWS], ids=["service", "rows"])
def test_push_keeps_the_form_of_a_document(ratekit, document, tmp_path):
    given, kept = tmp_path / "given.json", tmp_path / "kept.json"
    given.write_text(json.dumps(document, default=str))
    assert ratekit("rules", "push", str(given), str(kept)).code == 0
    assert json.loads(kept.read_text()) == json.loads(given.read_text())


def test_test_says_which_limits_a_key_has(ratekit, tmp_path):
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(SERVICE))
    (told,) = ratekit("rules", "test", str(path), "--key", "tenant:client-corp:lang:en", "--json").json
    assert told["limits"] == ["rpm=500/min", "rph=20000/h", "rpd=250000/d"]
    assert ratekit("rules", "test", str(path)).code == 2
    assert "give --request or --key" in ratekit("rules", "test", str(path)).err


def test_plans_that_an_application_names_are_shown_tested_and_compared(ratekit, tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    rule = {"name": "chat", "match": {"path": "/chat"}, "limits": "plan"}
    old.write_text(json.dumps({"plans": {"free": "1/min", "pro": "9/min"}, "rules": [rule]}))
    new.write_text(json.dumps({"plans": {"free": "2/min", "pro": "9/min"}, "rules": [rule]}))
    assert ratekit("rules", "validate", str(old)).code == 0
    asked = ["rules", "test", str(old), "--request", "/chat"]
    (told,) = ratekit(*asked, "--plan", "free", "--json").json
    assert told["limits"] == ["1/min"]
    assert "say which one by --plan" in ratekit(*asked).err
    (change,) = ratekit("rules", "diff", str(old), str(new), "--json").json
    assert (change["kind"], change["rule"], change["key"]) == ("more", "chat", "everybody else on the plan free")
    explained = ratekit("explain", "/chat", "u", "--rules", str(old), "--store", "redis://127.0.0.1:9")
    assert "the limits of the plan that plan_of of the application names" in explained.err


def test_test_says_why_the_address_is_counted(ratekit, files):
    (told,) = ratekit("rules", "test", files[0], "--request", "POST /v1/acme/chat", "--json").json
    assert told["key"] == "ip:192.0.2.1"
    assert told["note"] == "the request does not say tenant=path:tenant + model=json:model: its address is counted"


def test_test_says_which_rule_key_and_limits_a_request_has(ratekit, files):
    asked = ["rules", "test", files[0], "--request", "POST /v1/acme/chat", "--body", '{"model": "a"}']
    (told,) = ratekit(*asked, "--json").json
    assert (told["rule"], told["key"], told["limits"], told["mode"]) == (
        "chat",
        "tenant:acme:model:a",
        ["post-1s=5/s"],
        "on",
    )
    assert told["subject"] != told["key"], "what clients send is hashed"
    (other,) = ratekit("rules", "test", files[0], "--request", "POST /v1/acme/chat", "--json").json
    assert (other["key"], other["limits"]) == ("ip:192.0.2.1", ["post-rps=20/s", "post-rpm=1000/min"])
    free = ratekit("rules", "test", files[0], "--request", "/free", "--header", "X-A: b")
    assert (free.code, free.out) == (1, "allowed: no rule limits it\n")
    assert ratekit("rules", "test", files[0], "--request", "/free", "--header", "bad").code == 2


def test_schema_is_that_of_the_model(ratekit):
    jsonschema.Draft202012Validator(json.loads(ratekit("rules", "schema").out)).validate(SERVICE)


def test_explain_takes_the_limits_of_a_document(ratekit, files, url):
    told = ratekit("explain", "POST /v1/acme/chat", "tenant:acme:model:a", "--rules", files[0], "--json").json
    assert told["limits"][0]["max_requests"] == 5
    assert told["rule"].startswith("chat, version ")
    assert files[0] in told["rule"]
    assert told["rule"].endswith(" s ago, without last_updated")


def test_explain_says_how_old_a_document_is(ratekit, tmp_path, url):
    path = tmp_path / "rules.json"
    updated = datetime.now(UTC) - timedelta(hours=30)
    path.write_text(json.dumps({"last_updated": updated.isoformat(), "rules": [{"limits": "5/s"}]}))
    told = ratekit("explain", "/x", "user:1", "--rules", str(path), "--json").json["rule"]
    assert ", updated 1 day, 6:00:" in told
