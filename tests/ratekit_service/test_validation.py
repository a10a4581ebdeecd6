"""Requests that make no sense are told so in sentences that name the field, the value, and what belongs there."""

from __future__ import annotations

import pytest
from sqlalchemy import insert

from ratekit.database import schema
from support import databases
from tests.ratekit_service.conftest import running

ADMIN = {"authorization": "Bearer a-token-for-administration"}
BODIES = {
    "": ("", "the body is empty: send a JSON object"),
    "{": ("", "the body is not JSON: Expecting property name enclosed in double quotes, at character 1"),
    "[]": ("", "the body is not a JSON object"),
    '{"resource":"x"}': ("subject", "subject is missing"),
    '{"resource":"x","subject":""}': ("subject", "subject is empty"),
    '{"resource":"x","subject":7}': ("subject", "subject is not a text"),
    f'{{"resource":"x","subject":"{"a" * 257}"}}': ("subject", "subject has more than 256 characters"),
    '{"resource":"x","subject":"a","foo":1}': ("foo", "foo is no field of this request"),
}
TENANTS = {
    '{"name":"   "}': ("name", "name has nothing but blanks"),
    '{"name":"a\\u0000b"}': ("name", "name has characters that cannot be printed"),
    '{"name":"x","mode":"maybe"}': ("mode", "mode 'maybe' is unknown: it is 'on', 'off' or 'monitor'"),
    '{"name":"x","headers":[]}': ("headers", "headers is an empty list"),
}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("body", BODIES)
async def test_body_that_makes_no_sense_is_a_sentence(embedded, body):
    caller = await embedded.caller()
    headers = JSON | {"x-api-key": caller.key}
    answer = await embedded.client.post("/v1/check", content=body, headers=headers)
    assert (answer.status_code, answer.json()["field"], answer.json()["detail"]) == (422, *BODIES[body])


@pytest.mark.parametrize("body", TENANTS)
async def test_value_that_administration_refuses_is_named(embedded, body):
    answer = await embedded.client.post("/v1/admin/tenants", content=body, headers=JSON | ADMIN)
    assert (answer.status_code, answer.json()["field"], answer.json()["detail"]) == (422, *TENANTS[body])


@pytest.mark.parametrize("path", ["/v1/check", "/v1/admin/tenants"])
async def test_body_of_another_type_is_told_which_type_it_needs(embedded, path):
    caller = await embedded.caller()
    headers = ADMIN | {"x-api-key": caller.key, "content-type": "application/x-www-form-urlencoded"}
    answer = await embedded.client.post(path, content='{"resource":"x","subject":"a"}', headers=headers)
    expected = "the body is not sent as JSON: its content-type is application/x-www-form-urlencoded, not application/json"
    assert (answer.status_code, answer.json()["detail"]) == (422, expected)


@pytest.mark.parametrize(
    ("path", "method", "methods"),
    [
        ("/v1/admin/overrides", "POST", "GET, PUT"),
        ("/v1/admin/plans/x", "PUT", "GET, PATCH, DELETE"),
        ("/v1/check", "GET", "POST"),
    ],
)
async def test_method_that_a_path_has_not_is_told_those_it_has(embedded, path, method, methods):
    answer = await embedded.client.request(method, path, headers=ADMIN)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)
    assert answer.json()["detail"] == f"{method} is no method of this path, which has {methods}"


async def test_filter_that_a_list_has_not_is_refused(embedded):
    problem = await embedded.admin("GET", "/violations?subject=user:42", status=422)
    assert problem["field"] == "subject"
    assert problem["detail"].startswith("subject is no parameter of this path, which has tenant_id, client_key, endpoint")
    caller = await embedded.caller()
    answer = await embedded.client.get("/v1/usage?user=42", headers={"x-api-key": caller.key})
    assert answer.json()["detail"] == "user is no parameter of this path, which has resource, subject, plan_id"


async def test_taken_name_is_told_by_itself(service):
    tenant = await service.tenant("acme")
    problem = await service.admin("POST", "/tenants", {"name": "acme"}, 409)
    assert (problem["field"], problem["detail"]) == ("name", "there is a tenant with the name 'acme' already")
    await service.plan(tenant, "pro")
    other = await service.plan(tenant, "free")
    problem = await service.admin("PATCH", f"/plans/{other}", {"name": "pro"}, 409)
    assert problem["detail"] == "there is a plan with the name 'pro' already"
    await service.admin("PATCH", f"/plans/{other}", {"name": "free", "limits": ["7/min"]})
    await service.plan(await service.tenant("other"), "pro")


@pytest.mark.parametrize(
    ("until", "sentence"),
    [
        ("soon", "until is no time: write it like 2026-12-31T18:00:00Z"),
        ("2099-01-01T00:00:00", "until has no time zone: write it like 2026-12-31T18:00:00Z"),
        ("2020-01-01T00:00:00Z", "until 2020-01-01T00:00:00+00:00 is over"),
        (5, "until 1970-01-01T00:00:05+00:00 is over"),
        (-5, "until -5 is not more than 0.0"),
        (1e12, "until 1000000000000.0 is more than 253402300799.0"),
        ([], "until is not a number"),
        (True, "until is not a number"),
    ],
)
async def test_end_of_an_override_that_makes_no_sense_is_one_sentence(embedded, until, sentence):
    place = {"tenant_id": await embedded.tenant(), "resource": "x", "subject": "a"}
    problem = await embedded.admin("PUT", "/overrides", {**place, "until": until}, 422)
    assert problem["detail"] == sentence
    assert [one["field"] for one in problem.get("errors", [problem])] == ["until"]


async def test_key_that_has_ended_is_neither_made_nor_rotated(service):
    tenant = await service.tenant()
    body = {"tenant_id": tenant, "name": "k"}
    problem = await service.admin("POST", "/keys", {**body, "expires_at": "2020-01-01T00:00:00Z"}, 422)
    assert (problem["field"], problem["detail"]) == ("expires_at", "expires_at 2020-01-01T00:00:00+00:00 is over")
    made = await service.admin("POST", "/keys", body)
    await service.admin("PATCH", f"/keys/{made['id']}", {"expires_at": "2020-01-01T00:00:00Z"})
    problem = await service.admin("POST", f"/keys/{made['id']}/rotate", {}, 409)
    assert problem["detail"] == "this key has expired: make a new one"


async def test_key_is_rotated_without_a_body_and_the_old_one_works_for_a_day(service):
    tenant = await service.tenant()
    made = await service.admin("POST", "/keys", {"tenant_id": tenant, "name": "k"})
    rotated = await service.admin("POST", f"/keys/{made['id']}/rotate", status=201)
    old = await service.admin("GET", f"/keys/{made['id']}")
    assert old["replaced_by"] == rotated["id"]
    assert old["expires_at"] > old["updated_at"]


async def test_override_of_a_limit_that_no_plan_has_is_refused(service):
    caller = await service.caller(limits=["fast=5/s", "100/h"])
    body = {"tenant_id": caller.tenant_id, "resource": "x", "subject": "a", "max_requests": 1}
    problem = await service.admin("PUT", "/overrides", {**body, "limit": "slow"}, 422)
    assert (problem["field"], problem["detail"]) == (
        "limit",
        "limit 'slow' is in no plan of the tenant, whose limits are 3600s, fast",
    )
    assert (await service.admin("PUT", "/overrides", {**body, "limit": "3600s"}))["limits"]["3600s"]["max_requests"] == 1
    problem = await service.admin("PUT", "/overrides", {**body, "max_requests": None}, 422)
    assert problem["detail"] == "the override has no numbers: give max_requests, expiry, burst, until or unlimited"


async def test_usage_of_an_exhausted_subject_is_not_allowed(embedded):
    caller = await embedded.caller()
    headers, query = {"x-api-key": caller.key}, {"resource": "GET:/orders", "subject": "user:42"}
    seen = []
    for _ in range(4):
        limit = (await embedded.client.get("/v1/usage", params=query, headers=headers)).json()["limits"][0]
        seen.append((limit["used"], limit["remaining"], limit["allowed"]))
        await caller.check()
    assert seen == [(0, 3, True), (1, 2, True), (2, 1, True), (3, 0, False)]


@pytest.mark.parametrize("path", ["/v1/check/", "/v1/usage/", "/v1/admin/tenants/", "/v1/health/"])
async def test_path_with_a_slash_at_its_end_is_not_redirected_with_its_key(embedded, path):
    answer = await embedded.client.post(path, json={}, headers={"host": "elsewhere", "x-api-key": "key"})
    assert (answer.status_code, answer.headers.get("location")) == (404, None)


@pytest.mark.parametrize("path", ["/v1/health", "/v1/ready", "/metrics"])
async def test_status_can_be_asked_for_without_a_body(embedded, path):
    answers = [await embedded.client.request(method, path) for method in ("GET", "HEAD")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len({answer.headers["content-type"] for answer in answers}) == 1


@pytest.mark.parametrize("front", [True, False])
async def test_sentence_about_a_field_names_it_once(tmp_path, front):
    sentences = {
        '"cost": 1.5': "cost is neither a whole number between 0 and",
        '"cost": {"\\ud800": 1}': "cost has a unit whose name is not a text of 1 to 64 characters",
        '"anchor": "\\ud800"': "anchor is neither the day of a month, nor a date or a time in ISO 8601",
        '"anchor": 99': "anchor is neither the day of a month, nor a date or a time in ISO 8601",
    }
    async with running(databases.new_database("sqlite", tmp_path), front=front) as service:
        caller = await service.caller()
        headers = {"x-api-key": caller.key, "content-type": "application/json"}
        for given, sentence in sentences.items():
            body = f'{{"resource": "r", "subject": "s", {given}}}'
            problem = (await service.client.post("/v1/check", content=body, headers=headers)).json()
            assert (problem["status"], problem["field"]) == (422, given.split('"')[1])
            assert problem["detail"].startswith(sentence)


@pytest.mark.parametrize("body", [b"[" * 9000, b'{"cost": ' + b"9" * 5000 + b"}", b'{"resource": "\xff"}'])
async def test_body_that_cannot_be_read_is_told_in_our_words(embedded, body):
    caller = await embedded.caller()
    headers = {"x-api-key": caller.key, "content-type": "application/json"}
    answer = await embedded.client.post("/v1/check", content=body, headers=headers)
    assert (answer.status_code, answer.json()["detail"].partition(":")[0]) == (400, "the body cannot be read")


async def test_what_is_taken_names_the_field(embedded):
    caller = await embedded.caller()
    policy = {"tenant_id": caller.tenant_id, "pattern": "/orders", "plan_id": caller.plan_id}
    rule = {"tenant_id": caller.tenant_id, "client_key": "*", "endpoint": "/x", "algorithm": "fixed_window"}
    rule |= {"max_requests": 1, "window_secs": 1}
    made = await embedded.admin("POST", "/policies", {**policy, "pattern": "/other"})
    for path, body, field in (("/policies", policy, "pattern"), ("/rules", rule, "endpoint")):
        await embedded.admin("POST", path, body, 201)
        assert (await embedded.admin("POST", path, body, 409))["field"] == field
    change = {"pattern": "/orders"}
    assert (await embedded.admin("PATCH", f"/policies/{made['id']}", change, 409))["field"] == "pattern"
    await embedded.admin("PATCH", f"/policies/{made['id']}", {"pattern": "/other"}, 200)


async def test_name_of_a_limit_is_a_text(embedded):
    tenant_id = await embedded.tenant()
    for name in ([], {}, 0, False):
        body = {"tenant_id": tenant_id, "name": "p", "limits": [{"max_requests": 1, "window": 1, "name": name}]}
        assert (await embedded.admin("POST", "/plans", body, 422))["field"] == "limits[0].name"


async def test_rows_that_others_have_written_do_not_hide_the_rest(embedded):
    caller = await embedded.caller()
    rule = {"tenant_id": caller.tenant_id, "client_key": "*", "endpoint": "/x", "algorithm": "fixed_window"}
    rule_id = (await embedded.admin("POST", "/rules", {**rule, "max_requests": 1, "window_secs": 1}))["rule_id"]
    odd = {"id": "plan_odd", "tenant_id": caller.tenant_id, "name": "odd", "definition": [1], "version": 99}
    of_rule = {"tenant_id": caller.tenant_id, "client_key": "u", "rule_id": rule_id, "max_requests": 5, "fields": "text"}
    with embedded.service.database.engine.begin() as connection:
        connection.execute(insert(schema.plans).values(**odd))
        connection.execute(insert(schema.overrides).values(**of_rule))
    plans = (await embedded.admin("GET", "/plans"))["items"]
    assert {plan["algorithm"] for plan in plans} == {"fixed_window", "refused: definition [1] is not an object"}
    for params in ({}, {"resource": "/x"}):
        (found,) = (await embedded.admin("GET", "/overrides", params=params))["items"]
        assert (found["resource"], found["max_requests"]) == ("/x", 5)
    assert (await embedded.admin("GET", "/overrides", params={"resource": "*"}))["items"] == []
