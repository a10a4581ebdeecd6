"""Documents: what they accept, what they refuse and in which words, and that they survive being written and read."""

from __future__ import annotations

import copy
import json
import random

import jsonschema
import pytest
from hypothesis import given, settings

from ratekit import Limit
from ratekit.core.errors import DocumentError
from ratekit.rules.document import Document
from ratekit.rules.formats import parse, write
from ratekit.rules.schema import json_schema
from support.rule_documents import ROWS, SERVICE, documents

SCHEMA = jsonschema.Draft202012Validator(json_schema())


def problems(values, **options) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        Document.parse(values, **options)
    return list(caught.value.problems)


def of_rule(**fields) -> list[str]:
    return problems({"rules": [{"limits": "1/s"}, {"limits": "5/s"} | fields]})


def test_published_service_document_is_accepted_as_it_is():
    document = Document.parse(SERVICE)
    (rule,) = document.rules
    assert document.service == "service-unique-id"
    assert [(limit.name, limit.max_requests, limit.window) for limit in rule.limits.own] == [
        ("rps", 20, 1), ("rpm", 1000, 60), ("rph", 50000, 3600), ("rpd", 100000, 86400)
    ]  # fmt: skip
    assert [limit.name for limit in rule.custom["tenant:client-corp:lang:en"].own] == ["rpm", "rph", "rpd"]


def test_star_in_a_key_of_the_service_form_is_a_star():
    document = Document.parse({"custom_rate_limits": {"a*": {"rps": 1}}})
    assert list(document.rules[0].custom) == ["a\\*"]


def test_published_rows_are_accepted_as_they_are():
    search, general = Document.parse(ROWS).rules
    assert search.match.endpoint == ("/api/v1/search",)
    assert search.limits.own == (Limit(10, 60),)
    assert search.custom["user:42"].own == (Limit(100, 60, burst=200),)
    assert search.overrides["user:9"].limits.own == (Limit(500, 60),)
    assert general.match.endpoint == ()
    assert general.custom.keys() == {"user:42"}, "a row that is not enabled is none"


def test_document_of_the_own_form_in_a_database_is_named_by_its_id():
    assert Document.parse({"_id": "chat", "rules": []}).service == "chat"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"limts": 1}, "rules[1].limts: unknown field; did you mean 'limits'?"),
        ({"limits": "20/x"}, "rules[1].limits: rate '20/x' is not a limit: "),
        ({"limits": ["1/s", "20/x"]}, "rules[1].limits[1]: rate '20/x' is not a limit: "),
        ({"limits": ["1/s", {"max_requests": -1, "window": 1}]}, "rules[1].limits[1].max_requests: -1 is wrong: "),
        ({"limits": {"rps": "5"}}, "rules[1].limits.rps: '5' is wrong: input should be a valid integer"),
        ({"limits": {"rps": 5, "rpx": 1}}, "rules[1].limits: unknown field 'rpx'; it has rps, rpm, rph, rpd"),
        ({"limits": []}, "rules[1].limits: there are 0 limits: "),
        ({"limits": ["1/s", "2/s"]}, "rules[1].limits: two limits are called '1s': "),
        ({"limits": "plan"}, "rules[1].limits: 'plan' asks which plan a request has, and the document has no plans"),
        ({"limits": {"plan": "gold"}}, "rules[1].limits: 'gold' is no plan of the document; it has none"),
        ({"limits": True}, "rules[1].limits: True is neither a rate "),
        ({"custom": {"user:1": "x"}}, "rules[1].custom['user:1']: rate 'x' is not a limit: "),
        ({"by": "tea:leaves"}, "rules[1].by: 'tea:leaves' names nobody: "),
        ({"by": ["ip", {"a b": "ip"}]}, "rules[1].by[1]: the label 'a b' is not a word "),
        ({"by": "path:x"}, "rules[1]: 'path:x' is no parameter of one segment of the path None"),
        ({"cost": -1}, "rules[1].cost: -1 is not between 0 "),
        ({"match": {"path": "x"}}, "rules[1].match.path: pattern 'x' is not a path: "),
        ({"match": {"method": "PSOT"}}, "rules[1].match.method[0]: the field names the unknown method 'PSOT': "),
        ({"match": {"headers": {"a": "1", "A": "2"}}}, "rules[1].match.headers: the header 'a' stands twice"),
        ({"mode": "maybe"}, "rules[1].mode: 'maybe' is wrong: "),
        ({"valid_until": "tomorrow"}, "rules[1].valid_until: 'tomorrow' is not a time: "),
        ({"valid_from": "2027-01-01", "valid_until": "2026-01-01"}, "rules[1]: valid_until 2026-01-01 "),
        ({"enabled": "yes"}, "rules[1].enabled: 'yes' is wrong: "),
        ({"limits": {}}, "rules[1].limits: there are no limits: give rps, rpm, rph, rpd, or max_requests and window, "),
        ({"by": "header:X Tenant"}, "rules[1].by: 'header:X Tenant' is not a header: "),
        ({"by": {"a": "function:a:b"}}, "rules[1].by: a function names somebody alone: "),
        ({"cost": "5"}, "rules[1].cost: '5' is not a cost: it is a whole number, or where "),
        ({"match": {"host": "a.*.com"}}, "rules[1].match.host[0]: 'a.*.com' is not a host: write it like "),
        ({"match": {"host": "a.com:80"}}, "rules[1].match.host[0]: 'a.com:80' is not a host: write it like "),
        ({"match": {"method": []}}, "rules[1].match.method: it is empty: "),
        ({"match": {"path": "/a?b"}}, "rules[1].match.path: '/a?b' has '?', and matches no request: "),
        ({"match": {"path": "/%61"}}, "rules[1].match.path: '/%61' has '%61', and matches no request: "),
        ({"match": {"path": "/a/../b"}}, "rules[1].match.path: '/a/../b' has '..', and matches no request: "),
        ({"custom": {"": "1/s"}}, "rules[1].custom: the key '' is wrong: "),
        ({"valid_until": "9999-12-31T23:59:59-14:00"}, "rules[1].valid_until: '9999-12-31T23:59:59-14:00' is not between "),
    ],
)  # fmt: skip
def test_fault_is_told_with_its_place_and_the_value(fields, sentence):
    assert any(problem.startswith(sentence) for problem in of_rule(**fields)), of_rule(**fields)


@pytest.mark.parametrize("match", [{"host": "a.*.com"}, {"method": "PSOT"}])
def test_item_that_is_wrong_is_one_fault(match):
    assert len(of_rule(match=match)) == 1


def test_number_without_a_fraction_is_a_whole_number():
    """As the shell of MongoDB writes them, and 1e3 in YAML."""
    of_floats = Document.parse({"rules": [{"limits": {"rps": 20.0, "rpm": 1e3}}]})
    assert of_floats == Document.parse({"rules": [{"limits": {"rps": 20, "rpm": 1000}}]})


def test_all_faults_are_told_at_once():
    found = problems({"rules": [{"limits": "x"}, {"limits": "1/s"}, {"limits": "y"}], "plan": 1})
    assert [problem.partition(":")[0] for problem in found] == ["rules[0].limits", "rules[2].limits", "plan"]


def test_two_rules_of_one_name_are_refused():
    rules = [{"name": "a", "limits": "1/s"}, {"name": "a", "limits": "1/s"}]
    assert problems({"rules": rules}) == ["rules[1].name: 'a' is the name of rules[0] too"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"general_rate_limit": {"rpx": 1}}, "general_rate_limit: unknown field 'rpx'"),
        ({"custom_rate_limits": {"u:1": {"rps": -1}}}, "custom_rate_limits['u:1'].rps: -1 is wrong"),
        ({"general_rate_limit": {"rps": 1}, "rul": 1}, "rul: unknown field"),
        ({"rate_limit_rules": [{"rule_id": 1}]}, "rate_limit_rules[0].client_key: missing"),
        ({"rate_limit_rules": ROWS["rate_limit_rules"] * 2}, "rate_limit_rules[4]: ('user:42', '/api/v1/search') is"),
        ({"rate_limit_overrides": ROWS["rate_limit_overrides"]}, "rate_limit_overrides[0].rule_id: 3 is no rule_id"),
        ([], "the document is [], not an object"),
    ],
)
def test_fault_of_another_form_is_told_with_its_own_place(values, sentence):
    assert problems(values)[0].startswith(sentence)


def test_function_is_refused_unless_it_is_allowed_by_name():
    values = {"rules": [{"limits": "1/s", "by": ["ip", "function:shop.keys:key_of"]}]}
    (problem,) = problems(values, functions=())
    assert problem.startswith("rules[0].by: the function 'shop.keys:key_of' is not allowed")
    assert Document.parse(values, functions=["shop.keys:key_of"]) == Document.parse(values)


@settings(max_examples=200)
@given(values=documents)
def test_generated_document_survives_being_written_and_read(values):
    document = Document.parse(values)
    written = document.values()
    assert Document.parse(json.loads(json.dumps(written))) == document
    assert Document.parse(parse(write(written, "json"), "json")) == document
    assert Document.parse(parse(write(written, "yaml"), "yaml")) == document


@settings(max_examples=200)
@given(values=documents)
def test_schema_accepts_what_the_model_accepts(values):
    document = Document.parse(values)
    SCHEMA.validate(values)
    SCHEMA.validate(document.values())


def test_schema_accepts_the_published_forms():
    SCHEMA.validate(SERVICE)
    SCHEMA.validate(ROWS)


def _places(value, path=()):
    """Yield the path of every object and every number of a document."""
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*path, index))


OPEN = {"cost", "estimate", "custom", "headers", "overrides", "plans", "by"}  # the keys of these are the author's own


@settings(max_examples=100)
@given(values=documents)
def test_schema_and_model_refuse_unknown_fields(values):
    rng = random.Random(json.dumps(values, sort_keys=True))
    places = [place for place in _places(values) if not place or place[-1] not in OPEN]
    place = rng.choice(places)
    broken = copy.deepcopy(values)
    target = broken
    for part in place:
        target = target[part]
    if "by" in place:
        return
    target["unknown"] = 1
    assert not SCHEMA.is_valid(broken), place
    with pytest.raises(DocumentError):
        Document.parse(broken)


@pytest.mark.parametrize(
    "fields",
    [
        {"limits": 5}, {"limits": {"rps": -1}}, {"limits": {"rps": "5"}}, {"limits": {"max_requests": 1}},
        {"limits": {"max_requests": 10**13, "window": 1}}, {"limits": {"max_requests": 1, "window": 1, "soft": 2}},
        {"limits": {"max_requests": 1, "window": 1, "algorithm": "x"}}, {"limits": []}, {"by": 5}, {"by": "tea:x"},
        {"by": []},
        {"cost": -1}, {"cost": 1.5}, {"enabled": 1}, {"mode": "maybe"}, {"on_outage": True}, {"match": []},
        {"match": {"path": "a"}}, {"match": {"method": []}}, {"match": {"host": 5}}, {"custom": []}, {"name": ""},
        {"valid_until": 5}, {"overrides": {"a": {"limits": "1/s"}}},
    ],
)  # fmt: skip
def test_schema_and_model_refuse_wrong_types_and_ranges(fields):
    values = {"rules": [{"limits": "1/s"} | fields]}
    assert not SCHEMA.is_valid(values)
    problems(values)


def test_plan_has_limits_of_its_own():
    (found,) = problems({"plans": {"a": "plan", "b": "1/s"}, "rules": []})
    assert found == "plans.a: a plan has limits of its own, not those that plan_of names"


def test_limits_by_plan_are_written_as_they_were_read():
    values = {"plans": {"free": ["1/min"]}, "rules": [{"limits": "plan", "custom": {"a": "plan"}}]}
    assert Document.parse(values).values() == values
