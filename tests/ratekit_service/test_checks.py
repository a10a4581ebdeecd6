"""Deciding: the published shapes, which plan applies, slots, batches, rules."""

from __future__ import annotations

import asyncio
import datetime
import time

import pytest

from ratekit_service.plans.definitions import PlanError, terms_of
from support import databases
from tests.ratekit_service.conftest import running


async def test_check_answers_the_published_shape(service):
    caller = await service.caller()
    answer = await caller.check(cost=2)
    body = answer.json()
    assert answer.status_code == 200
    assert (body["allowed"], body["remaining"], body["retry_after_ms"], body["limit"]) == (True, 1, 0, 3)
    assert (body["rule"], body["plan_id"], body["degraded"]) == ("pro/60s", caller.plan_id, None)
    assert abs(body["reset_at"] - time.time() - 60) < 5
    assert (answer.headers["x-ratelimit-limit"], answer.headers["x-ratelimit-remaining"]) == ("3", "1")
    assert abs(int(answer.headers["x-ratelimit-reset"]) - body["reset_at"]) <= 1
    assert answer.headers["x-ratekit-config-version"] == str(body["config_version"])
    assert "retry-after" not in answer.headers


async def test_refusal_is_a_429_with_retry_after(service):
    caller = await service.caller()
    assert await caller.statuses(3) == [200] * 3
    answer = await caller.check()
    assert answer.status_code == 429
    assert (answer.json()["allowed"], answer.json()["remaining"]) == (False, 0)
    assert 59_000 < answer.json()["retry_after_ms"] <= 60_000
    assert answer.headers["retry-after"] == "60"
    assert answer.headers["x-ratelimit-remaining"] == "0"


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_window_log", "sliding_window_counter"])
async def test_windows_admit_their_limit(service, algorithm):
    caller = await service.caller(algorithm=algorithm, limit=4, window_seconds=60)
    assert await caller.statuses(6) == [200] * 4 + [429] * 2
    assert await caller.statuses(1, subject="user:43") == [200]
    assert await caller.statuses(1, resource="GET:/others") == [200]


async def test_token_bucket_admits_its_capacity_and_says_when_the_next_token_comes(service):
    caller = await service.caller(algorithm="token_bucket", bucket_capacity=2, refill_rate_per_sec=0.5)
    assert await caller.statuses(2) == [200, 200]
    refused = (await caller.check()).json()
    assert 1000 < refused["retry_after_ms"] <= 2000
    never = (await caller.check(cost=3)).json()
    assert (never["allowed"], never["retry_after_ms"]) == (False, None)


async def test_slots_are_taken_released_and_renewed(service):
    caller = await service.caller(algorithm="concurrency", limit=2, stale_after_seconds=60)
    first, second, third = [(await caller.check()) for _ in range(3)]
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert "slot" not in third.json()
    slot = first.json()["slot"]
    assert (await caller.post("/v1/renew", {"slot": slot})).json() == {"held": True, "degraded": None}
    assert (await caller.post("/v1/release", {"slot": slot})).json() == {"held": False, "degraded": None}
    assert (await caller.post("/v1/renew", {"slot": slot})).json()["held"] is False
    assert (await caller.post("/v1/release", {"slot": slot})).status_code == 200
    assert await caller.statuses(2) == [200, 429]
    assert (await caller.check(cost=2)).json()["field"] == "cost"


async def test_several_limits_are_decided_together(service):
    caller = await service.caller(limits=["2/min", "hour=3/h", "1/day shadow"])
    first, second, third = [await caller.check() for _ in range(3)]
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert "would_refuse" not in first.json()
    assert second.json()["would_refuse"] is True
    assert [limit["name"] for limit in third.json()["limits"]] == ["60s", "hour", "86400s-shadow"]
    assert [limit["used"] for limit in third.json()["limits"]] == [2, 2, 1]
    assert third.json()["rule"] == "pro/60s"


async def test_batch_decides_each_for_itself_in_order(service):
    caller = await service.caller()
    checks = [{"resource": "r", "subject": "a", "cost": 2}, {"resource": "r", "subject": "b"}] * 2
    answer = await caller.post("/v1/check/batch", {"checks": checks})
    assert answer.status_code == 200
    assert [one["allowed"] for one in answer.json()["results"]] == [True, True, False, True]
    assert [one["remaining"] for one in answer.json()["results"]] == [1, 2, 0, 1]


async def test_batch_with_one_check_that_makes_no_sense_decides_nothing(service):
    caller = await service.caller()
    checks = [{"resource": "r", "subject": "a"}, {"resource": "r", "subject": "a", "plan_id": "nobodys"}]
    answer = await caller.post("/v1/check/batch", {"checks": checks})
    assert (answer.status_code, answer.json()["field"]) == (404, "checks[1].plan_id")
    assert (await caller.post("/v1/peek", {"resource": "r", "subject": "a"})).json()["remaining"] == 3


async def test_peek_spends_nothing_charge_spends_in_any_case_refund_gives_back(service):
    caller = await service.caller()
    body = {"resource": "GET:/orders", "subject": "user:42"}
    assert (await caller.post("/v1/peek", body)).json()["remaining"] == 3
    assert (await caller.post("/v1/charge", {**body, "cost": 5})).status_code == 200
    looked = await caller.post("/v1/peek", body)
    assert (looked.status_code, looked.json()["allowed"], "retry-after" in looked.headers) == (200, False, False)
    assert (await caller.post("/v1/refund", {**body, "cost": 4})).status_code == 200
    assert await caller.statuses(3) == [200, 200, 429]


async def test_usage_is_told_with_the_tenants_own_key(service):
    caller = await service.caller(limits=["3/min", "100/h"])
    await caller.check()
    answer = await service.client.get("/v1/usage", headers={"x-api-key": caller.key})
    assert answer.json()["tenant"] == "acme"
    assert [plan["limits"] for plan in answer.json()["plans"]] == [["3/min", "100/h"]]
    query = {"resource": "GET:/orders", "subject": "user:42"}
    for _ in range(2):
        answer = await service.client.get("/v1/usage", params=query, headers={"x-api-key": caller.key})
        assert [(limit["used"], limit["remaining"]) for limit in answer.json()["limits"]] == [(1, 2), (1, 99)]


async def test_plan_is_that_of_the_request_then_the_resource_then_the_key_then_the_tenant(service):
    tenant_id = await service.tenant()
    ids = {name: await service.plan(tenant_id, name) for name in ("asked", "resource", "key", "default")}
    bare = type(await service.caller("other"))(service, tenant_id, "", await service.key(tenant_id))
    answer = await bare.check()
    assert (answer.status_code, answer.json()["field"]) == (422, "plan_id")
    await service.admin("PATCH", f"/tenants/{tenant_id}", {"default_plan_id": ids["default"]})
    assert (await bare.check()).json()["plan_id"] == ids["default"]
    bare.key = await service.key(tenant_id, plan_id=ids["key"])
    assert (await bare.check()).json()["plan_id"] == ids["key"]
    policy = {"tenant_id": tenant_id, "pattern": "GET:/orders/*", "plan_id": ids["resource"]}
    await service.admin("POST", "/policies", policy)
    assert (await bare.check("GET:/orders/1")).json()["plan_id"] == ids["resource"]
    assert (await bare.check("POST:/orders/1")).json()["plan_id"] == ids["key"]
    assert (await bare.check("GET:/orders/1", plan_id=ids["asked"])).json()["plan_id"] == ids["asked"]


async def test_resources_of_a_policy_with_a_counter_are_counted_together(service):
    caller = await service.caller()
    policy = {"tenant_id": caller.tenant_id, "pattern": "/reports/{id}", "plan_id": caller.plan_id, "counter": "reports"}
    await service.admin("POST", "/policies", policy)
    assert [(await caller.check(f"GET:/reports/{number}")).status_code for number in range(4)] == [200] * 3 + [429]
    assert (await caller.check("GET:/reports/1/pages")).status_code == 200


async def test_rules_decide_by_client_key_and_endpoint(service):
    caller = await service.caller()
    rule = {"tenant_id": caller.tenant_id, "algorithm": "fixed_window", "window_secs": 60}
    for client_key, endpoint, most in (("user:42", "/search", 1), ("user:42", "*", 2), ("*", "/search", 3)):
        await service.admin("POST", "/rules", {**rule, "client_key": client_key, "endpoint": endpoint, "max_requests": most})

    async def limit(client_key: str, endpoint: str) -> int:
        answer = await caller.post("/check", {"client_key": client_key, "endpoint": endpoint, "cost": 0})
        return answer.json()["limit"]

    assert await limit("user:42", "/search") == 1
    assert await limit("user:42", "/other") == 2
    assert await limit("user:43", "/search") == 3
    answers = [await caller.post("/check", {"client_key": "user:42", "endpoint": "/search"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    body = answers[1].json()
    assert (body["allowed"], body["remaining"], body["retry_after"]) == (False, 0, 60)
    assert isinstance(body["reset_at"], int)


async def test_endpoints_of_a_rule_for_all_of_them_are_counted_together(service):
    caller = await service.caller()
    rule = {
        "tenant_id": caller.tenant_id,
        "client_key": "*",
        "algorithm": "token_bucket",
        "max_requests": 2,
        "window_secs": 600,
    }
    made = await service.admin("POST", "/rules", rule)
    statuses = [
        (await caller.post("/check", {"client_key": client, "endpoint": endpoint})).status_code
        for client in ("a", "b")
        for endpoint in ("/1", "/2", "/3")
    ]
    assert statuses == [200, 200, 429] * 2
    await service.admin("PATCH", f"/rules/{made['rule_id']}", {"enabled": False})
    assert (await caller.post("/check", {"client_key": "a", "endpoint": "/1"})).json()["rule"] == "pro/60s"


async def test_check_by_rules_without_a_rule_and_without_a_plan_is_a_422(service):
    tenant_id = await service.tenant()
    key = await service.key(tenant_id)
    body = {"client_key": "a", "endpoint": "/b"}
    answer = await service.client.post("/check", json=body, headers={"x-api-key": key})
    assert (answer.status_code, answer.json()["field"]) == (422, "endpoint")


async def test_monitored_plan_passes_what_it_would_refuse(service):
    caller = await service.caller(limits=["1/min"], mode="monitor")
    assert await caller.statuses(3) == [200] * 3
    answer = await caller.check()
    assert (answer.json()["would_refuse"], answer.json()["remaining"]) == (True, 0)
    assert answer.headers["x-ratelimit-remaining"] == "0"


async def test_tenant_whose_mode_is_off_counts_nothing(service):
    caller = await service.caller()
    await service.admin("PATCH", f"/tenants/{caller.tenant_id}", {"mode": "off"})
    assert await caller.statuses(5) == [200] * 5
    answer = await caller.check()
    assert "x-ratelimit-limit" not in answer.headers
    await service.admin("PATCH", f"/tenants/{caller.tenant_id}", {"mode": None})
    assert (await caller.check()).json()["remaining"] == 2


async def test_tenant_chooses_its_headers(service):
    caller = await service.caller()
    await service.admin("PATCH", f"/tenants/{caller.tenant_id}", {"headers": ["draft-11", "ratelimit"]})
    answer = await caller.check()
    assert answer.headers["ratelimit-policy"] == '"minute";q=3;w=60'
    assert answer.headers["ratelimit-limit"] == "3"
    assert "x-ratelimit-limit" not in answer.headers


async def test_tenant_that_asks_too_much_of_the_service_is_told_so(service):
    caller = await service.caller(limits=["1000/min"])
    await service.admin("PATCH", f"/tenants/{caller.tenant_id}", {"service_limit": "3/min"})
    assert await caller.statuses(3) == [200] * 3
    answer = await caller.check()
    assert (answer.status_code, answer.headers["content-type"]) == (429, "application/problem+json")
    assert "asks too much of the service" in answer.json()["detail"]


async def test_changed_plan_counts_at_once_and_counters_go_on(service):
    caller = await service.caller()
    assert await caller.statuses(4) == [200] * 3 + [429]
    await service.admin("PATCH", f"/plans/{caller.plan_id}", {"limit": 5})
    assert await caller.statuses(3) == [200, 200, 429]


async def test_override_is_used_by_the_next_check_and_ends(service):
    caller = await service.caller()
    assert await caller.statuses(4) == [200] * 3 + [429]
    place = {"tenant_id": caller.tenant_id, "resource": "GET:/orders", "subject": "user:42"}
    made = await service.admin("PUT", "/overrides", {**place, "max_requests": 5, "ttl": 3600, "reason": "launch"})
    assert (made["max_requests"], made["reason"], made["in_force"]) == (5, "launch", True)
    assert await caller.statuses(3) == [200, 200, 429]
    again = await service.admin("PUT", "/overrides", {**place, "max_requests": 0})
    assert (again["override_id"], again["valid_until"]) == (made["override_id"], None)
    assert (await caller.check(cost=1)).status_code == 429
    await service.admin("DELETE", f"/overrides/{made['override_id']}", status=204)
    assert (await caller.check(cost=0)).json()["limit"] == 3
    history = await service.admin("GET", "/overrides/history", params={"tenant_id": caller.tenant_id})
    assert [line["action"] for line in history["items"]] == ["delete", "set", "set"]


async def test_override_until_some_time_refuses_everything_with_the_honest_wait(service):
    caller = await service.caller()
    place = {"tenant_id": caller.tenant_id, "resource": "GET:/orders", "subject": "user:42"}
    until = time.time() + 3600
    made = await service.admin("PUT", "/overrides", {**place, "until": until, "reason": "abuse"})
    assert made["until"] == pytest.approx(until, abs=0.001)
    refused = await caller.check()
    assert (refused.status_code, 3590 < int(refused.headers["retry-after"]) <= 3601) == (429, True)
    written = await service.admin("PUT", "/overrides", {**place, "until": "2099-01-01T00:00:00Z", "limit": "60s"})
    assert written["limits"]["60s"]["until"] == 4070908800
    problem = await service.admin("PUT", "/overrides", {**place, "until": 5}, 422)
    assert problem["field"] == "until"
    await service.admin("PUT", "/overrides", {**place, "until": time.time() + 0.2})
    await asyncio.sleep(0.3)
    assert (await caller.check()).status_code == 200


async def test_override_lasts_as_long_as_it_is_told(embedded):
    caller = await embedded.caller()
    place = {"tenant_id": caller.tenant_id, "resource": "GET:/orders", "subject": "user:42"}
    for _ in range(3):  # at three places of a second
        asked = time.time()
        made = await embedded.admin("PUT", "/overrides", {**place, "max_requests": 5, "ttl": 0.5})
        assert datetime.datetime.fromisoformat(made["valid_until"]).timestamp() >= asked + 0.5
        await asyncio.sleep(0.35)
    problem = await embedded.admin("PUT", "/overrides", {**place, "max_requests": 5, "ttl": 0.0001}, 422)
    assert problem["field"] == "ttl"


async def test_override_that_ends_in_a_thousand_years_holds_up_no_other(service):
    caller = await service.caller()
    place = {"tenant_id": caller.tenant_id, "resource": "GET:/orders"}
    for number, subject in enumerate(("first", "second"), 7):
        body = {**place, "subject": subject, "max_requests": number, "valid_until": "9999-12-31T23:59:59Z"}
        assert (await service.admin("PUT", "/overrides", body))["in_force"]
        assert (await caller.check(subject=subject)).json()["limit"] == number
    late = {**place, "subject": "third", "max_requests": 9, "valid_until": "9999-12-31T23:59:59-12:00"}
    assert (await service.admin("PUT", "/overrides", late, 422))["field"] == "valid_until"


async def test_override_of_a_rule_applies_to_the_client_key(service):
    caller = await service.caller()
    rule = {"client_key": "*", "algorithm": "fixed_window", "max_requests": 1, "window_secs": 60}
    made = await service.admin("POST", "/rules", {"tenant_id": caller.tenant_id, **rule})
    body = {"tenant_id": caller.tenant_id, "rule_id": made["rule_id"], "subject": "vip", "max_requests": 9, "ttl": 60}
    await service.admin("PUT", "/overrides", body)
    limits = [(await caller.post("/check", {"client_key": who, "endpoint": "/x"})).json()["limit"] for who in ("vip", "any")]
    assert limits == [9, 1]


@pytest.mark.parametrize("front", [True, False])
async def test_slot_taken_for_want_of_a_rule_can_be_released(tmp_path, front):
    async with running(databases.new_database("sqlite", tmp_path), front=front) as service:
        caller = await service.caller(algorithm="concurrency", limit=1, stale_after_seconds=60)
        asked = {"client_key": "user:42", "endpoint": "/export"}
        slot = (await caller.post("/check", asked)).json()["slot"]
        refused = await caller.post("/check", asked)
        assert (refused.status_code, "slot" in refused.json()) == (429, False)
        await caller.post("/v1/release", {"slot": slot})
        assert (await caller.post("/check", asked)).status_code == 200


@pytest.mark.parametrize("anchor", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"])
async def test_anchor_that_is_no_time_in_the_zone_is_told_so(embedded, anchor):
    caller = await embedded.caller(limits=["9/month Asia/Tokyo"])
    for path in ("/v1/check", "/v1/peek", "/v1/charge", "/v1/refund", "/v1/reserve"):
        answer = await caller.post(path, {"resource": "r", "subject": "s", "anchor": anchor})
        assert (answer.status_code, answer.json()["field"]) == (422, "anchor")


async def test_reset_forgets_what_a_subject_has_used(service):
    caller = await service.caller()
    assert await caller.statuses(4) == [200] * 3 + [429]
    await service.admin("POST", "/reset", {"tenant_id": caller.tenant_id, "resource": "GET:/orders", "subject": "user:42"})
    assert await caller.statuses(1) == [200]


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({}, "algorithm"),
        ({"algorithm": "token_bucket", "bucket_capacity": 5}, "refill_rate_per_sec"),
        ({"algorithm": "token_bucket", "refill_rate_per_sec": 5}, "bucket_capacity"),
        ({"algorithm": "fixed_window", "limit": 5}, "window_seconds"),
        ({"algorithm": "fixed_window", "limit": 5, "window_seconds": 60, "bucket_capacity": 5}, "bucket_capacity"),
        ({"algorithm": "concurrency", "limit": 5}, "stale_after_seconds"),
        ({"algorithm": "leaky", "limit": 5}, "algorithm"),
        ({"limits": []}, "limits"),
        ({"limits": ["5/fortnight"]}, "limits[0]"),
        ({"limits": ["5/min", "9/min"]}, "limits"),
        ({"limits": [{"max_requests": 5}]}, "limits[0].window"),
        ({"limits": [{"max_requests": 5, "window": 60, "colour": "red"}]}, "limits[0].colour"),
        ({"limits": [{"max_requests": 5, "window": 60, "soft": 2.0}]}, "limits[0]"),
        ({"limits": [7]}, "limits[0]"),
        ({"limits": ["5/min"], "limit": 5}, "limit"),
        ({"limits": ["5/min"], "mode": "maybe"}, "mode"),
        ({"limits": ["5/min"], "on_outage": "panic"}, "on_outage"),
    ],
)
def test_plan_that_makes_no_sense_is_refused_by_its_field(definition, field):
    with pytest.raises(PlanError) as raised:
        terms_of("plan", definition)
    assert raised.value.field == field


def test_plan_says_whatever_limits_can():
    terms = terms_of("plan", {"limits": ["100/s burst 200", {"max_requests": 9, "window": 60, "soft": 0.5, "name": "m"}]})
    assert [str(limit) for limit in terms.policy.limits] == ["100/s burst 200", "m=9/min soft 0.5"]


@pytest.mark.parametrize(("rate", "text"), [(20, "20/s"), (0.5, "1/2s"), (2.5, "5/2s"), (1 / 3, "1/3s")])
def test_rate_of_a_bucket_is_kept_exactly(rate, text):
    definition = {"algorithm": "token_bucket", "bucket_capacity": 100, "refill_rate_per_sec": rate}
    (limit,) = terms_of("plan", definition).policy.limits
    assert str(limit) == f"bucket={text} burst 100"
