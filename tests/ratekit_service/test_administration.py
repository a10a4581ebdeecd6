"""Administration: create, read, change, delete; lists in pages; tenants apart; nothing half written."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from ratekit.database import schema
from ratekit_service.administration import Administrator
from ratekit_service.policies.resources import ResourceIndex, ResourcePolicy
from ratekit_service.problems import Problem

KINDS = ("tenants", "plans", "keys", "policies", "rules", "overrides")


async def test_everything_is_created_read_changed_and_deleted(service):
    caller = await service.caller()
    tenant, plan = caller.tenant_id, caller.plan_id
    rule = {"client_key": "user:1", "algorithm": "token_bucket", "max_requests": 5, "window_secs": 60, "burst_size": 10}
    policy = {"pattern": "GET:/orders/{id}", "plan_id": plan, "counter": "orders"}
    for kind, body, change in (
        ("policies", policy, {"pattern": "/orders/*"}),
        ("rules", rule, {"max_requests": 7}),
        ("plans", {"name": "free", "limits": ["5/min"]}, {"limits": ["6/min"], "name": "frei"}),
        ("keys", {"name": "second", "scopes": ["read"]}, {"scopes": ["check", "read"], "name": "zweiter"}),
    ):
        made = await service.admin("POST", f"/{kind}", {"tenant_id": tenant, **body}, 201)
        key = made.get("id") or made["rule_id"]
        read = await service.admin("GET", f"/{kind}/{key}")
        assert read == {name: value for name, value in made.items() if name not in ("key", "key_hash")}
        changed = await service.admin("PATCH", f"/{kind}/{key}", change)
        assert {name: changed[name] for name in change} == change
        await service.admin("DELETE", f"/{kind}/{key}", status=204)
        if kind != "keys":  # a revoked key is kept
            await service.admin("GET", f"/{kind}/{key}", status=404)
    await service.admin("DELETE", f"/tenants/{tenant}", status=204)
    assert (await caller.check()).status_code == 401


async def test_lists_come_in_pages_and_by_filter(service):
    tenants = [await service.tenant(f"t{number}") for number in range(5)]
    seen, after = [], ""
    for _ in range(3):
        page = await service.admin("GET", "/tenants", params={"limit": 2, "after": after})
        seen += [item["id"] for item in page["items"]]
        after = page["next"]
    assert sorted(seen) == sorted(tenants)
    assert after is None
    found = await service.admin("GET", "/tenants", params={"name": "t3"})
    assert [item["name"] for item in found["items"]] == ["t3"]
    found = await service.admin("GET", "/tenants", params={"contains": "T"})
    assert len(found["items"]) == 5
    assert (await service.admin("GET", "/tenants", params={"contains": "%"}))["items"] == []
    plans = [await service.plan(tenant) for tenant in tenants[:2]]
    found = await service.admin("GET", "/plans", params={"contains": "RO", "tenant_id": tenants[1]})
    assert [item["id"] for item in found["items"]] == [plans[1]]
    found = await service.admin("GET", "/plans", params={"tenant_id": tenants[0]})
    assert [item["id"] for item in found["items"]] == [plans[0]]


async def test_list_is_in_the_order_of_creation_and_goes_on_after_a_row_that_is_gone(service):
    tenants = [await service.tenant(f"t{number}") for number in range(4)]
    began = datetime(2026, 11, 18, tzinfo=UTC)
    for number, tenant_id in enumerate(tenants):  # they were made in one second
        change = update(schema.tenants).where(schema.tenants.c.id == tenant_id)
        change = change.values(created_at=began + timedelta(seconds=number))
        await service.service.database.write_quietly(lambda connection, change=change: connection.execute(change))
    first = await service.admin("GET", "/tenants", params={"limit": 2})
    assert [item["id"] for item in first["items"]] == tenants[:2]
    await service.admin("DELETE", f"/tenants/{tenants[1]}", status=204)
    later = await service.tenant("new")
    rest = await service.admin("GET", "/tenants", params={"after": first["next"]})
    assert [item["id"] for item in rest["items"]] == [*tenants[2:], later]
    problem = await service.admin("GET", "/tenants", status=422, params={"after": "ten_x"})
    assert problem["field"] == "after"


@pytest.mark.parametrize(
    ("values", "field"),
    [({"name": "n" * 300}, "name"), ({"id": "a\0b"}, "id"), ({"default_plan_id": "\ud800"}, "default_plan_id")],
)
async def test_value_that_no_column_can_hold_names_the_field(service, values, field):
    admin = Administrator(service.service, "test")
    with pytest.raises(Problem) as raised:
        await admin.write(lambda write: write.insert(schema.tenants, "tenant", {"id": "ten_1", "name": "n"} | values))
    assert raised.value.status == 422
    told = json.loads(raised.value.body)
    assert told["field"] == field
    assert told["detail"].startswith(f"{field} ")


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
async def test_number_that_no_column_can_hold_names_the_field(service, number):
    tenant_id = await service.tenant()
    rule = {"tenant_id": tenant_id, "client_key": "*", "endpoint": "*", "algorithm": "token_bucket", "window_secs": 60}
    admin = Administrator(service.service, "test")
    with pytest.raises(Problem) as raised:
        await admin.write(lambda write: write.insert(schema.rules, "rule", rule | {"max_requests": number}))
    assert json.loads(raised.value.body)["field"] == "max_requests"


async def test_names_are_taken_once(service):
    tenant_id = await service.tenant()
    await service.admin("POST", "/tenants", {"name": "acme"}, 409)
    await service.plan(tenant_id)
    before = await service.admin("GET", "/audit")
    await service.admin("POST", "/plans", {"tenant_id": tenant_id, "name": "pro", "limits": ["1/s"]}, 409)
    assert await service.admin("GET", "/audit") == before


async def test_plan_that_something_points_to_is_not_deleted(service):
    caller = await service.caller()
    problem = await service.admin("DELETE", f"/plans/{caller.plan_id}", status=409)
    assert "points to this plan" in problem["detail"]
    assert await caller.statuses(1) == [200]


async def test_what_is_another_tenants_is_a_404(service):
    mine, theirs = await service.caller("mine"), await service.caller("theirs")
    assert (await mine.check(plan_id=theirs.plan_id)).status_code == 404
    body = {"tenant_id": mine.tenant_id, "name": "k", "plan_id": theirs.plan_id}
    assert (await service.admin("POST", "/keys", body, 404))["field"] == "plan_id"
    body = {"tenant_id": mine.tenant_id, "pattern": "*", "plan_id": theirs.plan_id}
    await service.admin("POST", "/policies", body, 404)
    await service.admin("PATCH", f"/tenants/{mine.tenant_id}", {"default_plan_id": theirs.plan_id}, 404)
    rule = {"client_key": "*", "algorithm": "fixed_window", "max_requests": 1, "window_secs": 60}
    made = await service.admin("POST", "/rules", {"tenant_id": theirs.tenant_id, **rule})
    body = {"tenant_id": mine.tenant_id, "rule_id": made["rule_id"], "subject": "a", "max_requests": 1}
    await service.admin("PUT", "/overrides", body, 404)


async def test_counters_of_tenants_are_apart(service):
    mine, theirs = await service.caller("mine"), await service.caller("theirs")
    assert await mine.statuses(4) == [200] * 3 + [429]
    assert await theirs.statuses(4) == [200] * 3 + [429]


async def test_slot_of_another_tenant_cannot_be_released(service):
    slots = {"algorithm": "concurrency", "limit": 1, "stale_after_seconds": 60}
    mine, theirs = await service.caller("mine", **slots), await service.caller("theirs", **slots)
    slot = (await theirs.check()).json()["slot"]
    assert (await mine.post("/v1/release", {"slot": slot})).status_code == 404
    assert await theirs.statuses(1) == [429]


@pytest.mark.parametrize("slot", ["x", "AAAA", "lNkg", "💥", "e30"])
async def test_slot_that_nobody_has_got_is_a_404(embedded, slot):
    caller = await embedded.caller()
    assert (await caller.post("/v1/release", {"slot": slot})).status_code == 404


async def test_every_write_raises_the_version_and_is_audited_without_secrets(service):
    caller = await service.caller()
    await service.admin("DELETE", f"/keys/{caller.key.split('_')[2]}", status=204)
    lines = (await service.admin("GET", "/audit", params={"tenant_id": caller.tenant_id}))["items"]
    assert [(line["action"], line["kind"]) for line in lines] == [
        ("update", "key"), ("create", "key"), ("create", "plan"), ("create", "tenant")
    ]  # fmt: skip
    assert caller.key not in str(lines)
    assert "key_hash" not in str(lines)
    version = service.service.refresher.configuration.version
    await service.tenant("other")
    assert service.service.refresher.configuration.version == version + 1


async def test_actor_is_in_the_audit_log(embedded):
    headers = {"authorization": f"Bearer {embedded.service.settings.admin_token}", "x-ratekit-actor": "ann@example.com"}
    await embedded.client.post("/v1/admin/tenants", json={"name": "acme"}, headers=headers)
    (line,) = (await embedded.admin("GET", "/audit"))["items"]
    assert line["actor"] == "ann@example.com"


async def test_violations_are_listed(service):
    caller = await service.caller()
    assert await caller.statuses(5) == [200] * 3 + [429] * 2
    service.service.violations.flush()
    page = await service.admin("GET", "/violations", params={"tenant_id": caller.tenant_id, "client_key": "user:42"})
    assert [(item["endpoint"], item["limit_value"], item["limit_name"]) for item in page["items"]] == [
        ("GET:/orders", 3, "60s")
    ] * 2
    assert (await service.admin("GET", "/violations", params={"client_key": "nobody"}))["items"] == []


async def test_deleted_tenant_leaves_nothing_behind(service):
    caller = await service.caller()
    place = {"tenant_id": caller.tenant_id, "resource": "r", "subject": "s", "max_requests": 9}
    await service.admin("PUT", "/overrides", place)
    await service.admin("DELETE", f"/tenants/{caller.tenant_id}", status=204)
    for kind in KINDS:
        assert (await service.admin("GET", f"/{kind}"))["items"] == []
    configuration = service.service.refresher.configuration
    assert (configuration.keys, configuration.plans, configuration.tenants) == ({}, {}, {})


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tenants", {"name": ""}, "name"),
        ("/tenants", {"name": "a\x00b"}, "name"),
        ("/tenants", {"name": "x" * 300}, "name"),
        ("/tenants", {"nam": "acme"}, "name"),
        ("/tenants", {"name": "acme", "colour": "red"}, "colour"),
        ("/tenants", {"name": "acme", "headers": ["none", "pink"]}, "headers[1]"),
        ("/tenants", {"name": "acme", "service_limit": "lots"}, "service_limit"),
        ("/tenants", {"name": "acme", "service_limit": "90000 tokens/min"}, "service_limit"),
        ("/plans", {"tenant_id": "ten_x", "name": "p", "limits": ["1/s"]}, "tenant_id"),
        ("/plans", {"tenant_id": "?", "name": "p", "limits": ["1/s"]}, "tenant_id"),
        ("/keys", {"tenant_id": "ten_x", "name": "p"}, "tenant_id"),
        ("/keys", {"tenant_id": "ten_x", "name": "p", "scopes": ["rule"]}, "scopes[0]"),
        ("/keys", {"tenant_id": "ten_x", "name": "p", "expires_at": "soon"}, "expires_at"),
        ("/keys", {"tenant_id": "ten_x", "name": "p", "expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
        ("/rules", {"tenant_id": "ten_x", "client_key": "a", "algorithm": "magic"}, "algorithm"),
        ("/reset", {"tenant_id": "ten_x", "resource": "a", "subject": "b"}, "tenant_id"),
    ],
)
async def test_bad_input_names_the_field(embedded, path, body, field):
    answer = await embedded.client.post(
        f"/v1/admin{path}", json=body, headers={"authorization": f"Bearer {embedded.service.settings.admin_token}"}
    )
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["field"] == field


@pytest.mark.parametrize(
    ("resource", "found"),
    [
        ("GET:/orders", "GET:/orders"),
        ("get:/orders", "GET:/orders"),
        ("GET:/orders/", "GET:/orders"),
        ("POST:/orders", "/orders"),
        ("GET:/orders/1", "/orders/{id}"),
        ("GET:/orders/1/lines", "/orders/*"),
        ("report-7", "report-*"),
        ("anything", "*"),
        ("GET:/unknown", "*"),
    ],
)
def test_resource_finds_its_policy(resource, found):
    patterns = ["*", "/orders/*", "/orders/{id}", "/orders", "GET:/orders", "report-*"]
    index = ResourceIndex(ResourcePolicy(str(at), "t", pattern, "p", None) for at, pattern in enumerate(patterns))
    policy = index.find(resource)
    assert policy is not None
    assert policy.pattern == found
