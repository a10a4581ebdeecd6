"""What a tenant tries who wants more than it was given: others' things, two meanings of one body, races, restarts."""

from __future__ import annotations

import asyncio
import base64

import msgspec
import pytest

from support import databases
from tests.ratekit_service.conftest import WINDOW, running

JSON = {"content-type": "application/json"}


async def test_what_is_anothers_is_not_there(embedded):
    mine, other = await embedded.caller("mine"), await embedded.caller("other")
    slots = await embedded.plan(other.tenant_id, "slots", algorithm="concurrency", limit=1, stale_after_seconds=60)
    slot = (await other.check("export", plan_id=slots)).json()["slot"]
    for path in ("/v1/check", "/v1/peek", "/v1/charge", "/v1/refund"):
        answer = await mine.post(path, {"resource": "r", "subject": "s", "plan_id": other.plan_id})
        assert (answer.status_code, answer.json()["field"]) == (404, "plan_id")
    for path in ("/v1/release", "/v1/renew"):
        answer = await mine.post(path, {"slot": slot})
        assert (answer.status_code, answer.json()["field"]) == (404, "slot")
    assert (await other.check("export", plan_id=slots)).status_code == 429  # it is still held
    checks = [{"resource": "r", "subject": "s"}, {"resource": "r", "subject": "s", "plan_id": other.plan_id}]
    batch = await mine.post("/v1/check/batch", {"checks": checks})
    assert (batch.status_code, batch.json()["field"]) == (404, "checks[1].plan_id")
    assert (await mine.check("r", "s")).json()["remaining"] == 2  # nothing of the batch was spent


async def test_slot_that_was_made_up_for_ones_own_plan_frees_nobody_elses(embedded):
    mine, other = await embedded.caller("mine"), await embedded.caller("other")
    concurrency = {"algorithm": "concurrency", "limit": 1, "stale_after_seconds": 60}
    own, theirs = [await embedded.plan(one.tenant_id, "slots", **concurrency) for one in (mine, other)]
    held = (await other.check("export", "s", plan_id=theirs)).json()["slot"]
    slot_id = msgspec.msgpack.decode(base64.urlsafe_b64decode(held + "=" * (-len(held) % 4)))[0]
    for resource in (f"{other.tenant_id}:export", "export", f"../{other.tenant_id}:export"):
        forged = base64.urlsafe_b64encode(msgspec.msgpack.encode([slot_id, own, resource, "s"])).decode().rstrip("=")
        await mine.post("/v1/release", {"slot": forged})
    assert (await other.check("export", "s", plan_id=theirs)).status_code == 429


async def test_names_that_look_like_anothers_counters_are_ones_own(embedded):
    mine, other = await embedded.caller("mine"), await embedded.caller("other")
    assert await other.statuses(3) == [200] * 3
    names = [f"{other.tenant_id}:GET:/orders", "GET:/orders", "*", "GET:/orders}:{user:42", "GET:/orders:{user:42}:60s"]
    for name in names:
        assert (await mine.check(name)).json()["remaining"] == 2
    for subject in ("user:42}", "{user:42", "user:42%7d", "user%3a42", "user:42\x00", "user:42 ", "USER:42", "*"):
        assert (await mine.check(subject=subject)).json()["remaining"] == 2
    assert (await other.check()).status_code == 429


@pytest.mark.parametrize("front", [True, False])
async def test_field_that_stands_twice_has_one_meaning_in_both_fronts(tmp_path, front):
    async with running(databases.new_database("sqlite", tmp_path), front=front) as service:
        caller = await service.caller(limits=["10/min"])
        body = b'{"resource":"a","resource":"b","subject":"s","cost":1,"cost":3}'
        answer = await service.client.post("/v1/check", content=body, headers={"x-api-key": caller.key, **JSON})
        assert (answer.status_code, answer.json()["remaining"]) == (200, 7)  # the last one counts
        assert (await caller.check("b", "s", cost=0)).json()["remaining"] == 7


@pytest.mark.parametrize(
    "body",
    [
        b'{"resource":"r","subject":"s","cost":1e0}',
        b'{"resource":"r","subject":"s","cost":"1"}',
        b'{"resource":"r","subject":"s","cost":-1}',
        b'{"resource":"r","subject":"s","cost":99999999999999999999}',
        b'{"resource":"r","subject":"s","unlimited":true}',
        b'{"resource":["r"],"subject":"s"}',
        b'{"resource":"r","subject":"\\ud800"}',
        b"[" * 5000,
        b'{"checks":[]}',
        b'\xef\xbb\xbf{"resource":"r","subject":"s"',
        b'{"resource":"r","subject":"s"}{"resource":"r","subject":"s"}',
    ],
)
async def test_body_that_makes_no_sense_is_refused_with_a_problem_and_spends_nothing(embedded, body):
    caller = await embedded.caller(limits=["5/min"])
    answer = await embedded.client.post("/v1/check", content=body, headers={"x-api-key": caller.key, **JSON})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]
    assert (await caller.check("r", "s", cost=0)).json()["remaining"] == 5


async def test_key_that_is_revoked_under_load_passes_nothing_after_the_answer(service):
    caller = await service.caller(limits=["100000/min"])
    is_revoked = False

    async def ask() -> list[tuple[bool, int]]:
        seen = []
        for _ in range(40):
            before = is_revoked
            seen.append((before, (await caller.check()).status_code))
        return seen

    asking = [asyncio.create_task(ask()) for _ in range(4)]
    await asyncio.sleep(0.02)
    await service.admin("DELETE", f"/keys/{caller.key.split('_')[2]}")
    is_revoked = True
    seen = [one for task in asking for one in await task]
    seen.append((True, (await caller.check()).status_code))
    assert {status for after, status in seen if after} == {401}
    assert {status for after, status in seen if not after} <= {200, 401}


async def test_restart_gives_nobody_a_new_window_on_redis(redis_server, tmp_path):
    url = databases.new_database("sqlite", tmp_path)
    async with running(url, redis_server.url) as first:
        caller = await first.caller(**WINDOW)
        assert await caller.statuses(2) == [200] * 2
    async with running(url, redis_server.url) as second:
        caller.running = second
        assert await caller.statuses(2) == [200, 429]


SPELLINGS = ("GET:/orders", "get:/orders", "GET:/orders/", "GET://orders", "Get:///orders//")


async def test_path_has_one_counter_however_it_is_written(service):
    caller = await service.caller()
    await service.admin(
        "POST", "/policies", {"tenant_id": caller.tenant_id, "pattern": "get:/orders", "plan_id": caller.plan_id}
    )
    assert [(await caller.check(one)).status_code for one in SPELLINGS] == [200] * 3 + [429] * 2
    place = {"tenant_id": caller.tenant_id, "subject": "user:42"}
    await service.admin("POST", "/reset", {**place, "resource": "GET:/orders//"})
    made = await service.admin("PUT", "/overrides", {**place, "resource": "get://orders/", "max_requests": 5})
    assert made["resource"] == "GET:/orders"
    assert [(await caller.check(one)).json()["limit"] for one in SPELLINGS] == [5] * 5
    listed = await service.admin("GET", "/overrides", params={"resource": "GET:/orders/"})
    assert [item["override_id"] for item in listed["items"]] == [made["override_id"]]
    again = {"tenant_id": caller.tenant_id, "pattern": "GET:/orders", "plan_id": caller.plan_id}
    await service.admin("POST", "/policies", again, 409)


async def test_pattern_of_a_method_is_found_in_any_case(embedded):
    caller = await embedded.caller()
    strict = await embedded.plan(caller.tenant_id, "strict", limits=["1/min"])
    await embedded.admin("POST", "/policies", {"tenant_id": caller.tenant_id, "pattern": "GET:*", "plan_id": strict})
    assert [(await caller.check(one)).json()["limit"] for one in ("GET:/a", "get:/b", "POST:/a")] == [1, 1, 3]


async def test_rule_of_an_endpoint_is_that_of_every_spelling(embedded):
    caller = await embedded.caller()
    rule = {"tenant_id": caller.tenant_id, "client_key": "*", "algorithm": "fixed_window", "window_secs": 60}
    kept = await embedded.admin("POST", "/rules", {**rule, "endpoint": "/search/", "max_requests": 2})
    asked = [{"client_key": "user:42", "endpoint": one} for one in ("/search", "/search/", "//search")]
    assert [(await caller.post("/check", body)).status_code for body in asked] == [200, 200, 429]
    await embedded.admin("POST", "/rules", {**rule, "endpoint": "/search", "max_requests": 9}, 409)
    assert (await embedded.admin("GET", "/rules", params={"endpoint": "//search"}))["items"] == [kept]


@pytest.mark.parametrize(
    "resource", ["s3://bucket//key/", "https://host/a/", "report/", "a//b", "PURGE:/a/", ":/a/", "export"]
)
async def test_resource_that_is_no_path_is_taken_to_the_letter(embedded, resource):
    caller = await embedded.caller()
    assert (await caller.check(resource)).json()["remaining"] == 2
    assert (await caller.check(resource.replace("//", "/").rstrip("/") + "!")).json()["remaining"] == 2
    assert (await caller.check(resource.rstrip("/"))).json()["remaining"] == (2 if resource.endswith("/") else 1)
