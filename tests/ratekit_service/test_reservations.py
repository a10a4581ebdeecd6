"""Reserve and commit over HTTP: every case of docs/quotas.md, costs by unit, calendars, shares."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from ratekit_service.checks.slots import Slot, text_of
from support import databases, servers
from tests.ratekit_service.conftest import running

LLM = {"limits": ["60/min", "1000 tokens/min"]}
PLACE = {"resource": "POST:/chat", "subject": "org:7"}
TOKENS = {"tokens": 800}


async def reserved(caller, estimate=TOKENS, **others):
    return await caller.post("/v1/reserve", {**PLACE, "estimate": estimate, **others})


async def committed(caller, reservation, actual, **others):
    answer = await caller.post("/v1/commit", {"id": reservation, "actual": actual, **others})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def used(caller, **others):
    """What each unit has used."""
    answer = await caller.post("/v1/peek", {**PLACE, "cost": {"tokens": 0, "requests": 0}, **others})
    assert answer.status_code == 200, answer.text
    return {limit["name"]: limit["used"] for limit in answer.json()["limits"]}


async def test_reserve_spends_the_estimate_of_every_unit_or_nothing(service):
    caller = await service.caller(**LLM)
    answer = await reserved(caller)
    body = answer.json()
    assert (answer.status_code, body["allowed"], body["estimate"]) == (200, True, {"requests": 1, "tokens": 800})
    assert [(one["unit"], one["used"]) for one in body["limits"]] == [("requests", 1), ("tokens", 800)]
    refused = await reserved(caller)
    assert (refused.status_code, refused.json()["rule"]) == (429, "pro/tokens-60s")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert "id" not in refused.json()
    assert await used(caller) == {"60s": 1, "tokens-60s": 800}


async def test_what_was_not_needed_returns(service):
    caller = await service.caller(**LLM)
    reservation = (await reserved(caller)).json()["id"]
    body = await committed(caller, reservation, {"tokens": 523})
    assert [(one["unit"], one["used"]) for one in body["limits"]] == [("requests", 1), ("tokens", 523)]


async def test_what_was_not_needed_does_not_return_to_another_window(embedded, ratekit_clock):
    caller = await embedded.caller(**LLM)
    reservation = (await reserved(caller)).json()["id"]
    ratekit_clock.advance(61)
    assert (await caller.check(**PLACE, cost={"tokens": 100})).status_code == 200
    await committed(caller, reservation, {"tokens": 1})
    assert await used(caller) == {"60s": 1, "tokens-60s": 100}


async def test_excess_is_charged_whatever_the_maximum(service):
    caller = await service.caller(**LLM)
    reservation = (await reserved(caller)).json()["id"]
    await committed(caller, reservation, {"tokens": 1500})
    assert await used(caller) == {"60s": 1, "tokens-60s": 1500}
    assert (await caller.check(**PLACE, cost={"tokens": 1})).status_code == 429


async def test_commit_sent_twice_counts_once(service):
    caller = await service.caller(**LLM)
    reservation = (await reserved(caller)).json()["id"]
    first = await committed(caller, reservation, {"tokens": 1500})
    again = await committed(caller, reservation, {"tokens": 1})
    assert ("repeated" in first, again["repeated"]) == (False, True)
    assert await used(caller) == {"60s": 1, "tokens-60s": 1500}


async def test_reserve_sent_again_spends_once(service):
    caller = await service.caller(**LLM)
    first, again = [(await reserved(caller, id="retried1")).json() for _ in range(2)]
    assert ("repeated" in first, again["repeated"], first["id"] == again["id"]) == (False, True, True)
    assert await used(caller) == {"60s": 1, "tokens-60s": 800}


async def test_commit_that_overtakes_its_reserve_charges_once(service):
    caller = await service.caller(**LLM)
    await committed(caller, "mine1", {"tokens": 300}, **PLACE)
    late = (await reserved(caller, id="mine1")).json()
    assert late["repeated"] is True
    assert await used(caller) == {"60s": 1, "tokens-60s": 300}


async def test_reservation_whose_answer_was_lost_is_settled_by_its_own_id(service):
    caller = await service.caller(**LLM)
    await reserved(caller, id="lost1")
    await committed(caller, "lost1", {"tokens": 10}, **PLACE)
    assert await used(caller) == {"60s": 1, "tokens-60s": 10}


async def test_estimate_of_a_caller_that_died_stays_until_its_window_ends(embedded, ratekit_clock):
    caller = await embedded.caller(**LLM)
    await reserved(caller)
    ratekit_clock.advance(59)
    assert (await used(caller))["tokens-60s"] == 800
    ratekit_clock.advance(2)
    assert (await used(caller))["tokens-60s"] == 0


async def test_reservation_settled_after_its_hold_returns_nothing_and_charges_the_excess(embedded, ratekit_clock):
    caller = await embedded.caller(limits=["60/h", "1000 tokens/h"])
    early, late = [(await reserved(caller, {"tokens": 300}, hold=5)).json()["id"] for _ in range(2)]
    ratekit_clock.advance(11)
    await committed(caller, early, {"tokens": 1})
    assert (await used(caller))["tokens-3600s"] == 600
    await committed(caller, late, {"tokens": 400})
    assert (await used(caller))["tokens-3600s"] == 700


async def test_unit_that_a_commit_does_not_name_costs_what_was_reserved(service):
    caller = await service.caller(**LLM)
    reservation = (await reserved(caller, {"tokens": 5, "requests": 3})).json()["id"]
    await committed(caller, reservation, {})
    assert await used(caller) == {"60s": 3, "tokens-60s": 5}


async def test_estimate_that_can_never_fit_is_refused_or_clamped(service):
    caller = await service.caller(**LLM)
    refused = (await reserved(caller, {"tokens": 5000})).json()
    assert (refused["allowed"], refused["retry_after_ms"]) == (False, None)
    clamped = (await reserved(caller, {"tokens": 5000}, clamp=True)).json()
    assert clamped["estimate"] == {"requests": 1, "tokens": 1000}
    await committed(caller, clamped["id"], {"tokens": 10})
    assert await used(caller) == {"60s": 1, "tokens-60s": 10}


async def test_reservation_holds_the_slot_of_a_concurrency_limit_until_it_is_settled(service):
    caller = await service.caller(limits=[*LLM["limits"], {"max_requests": 2, "window": 300, "algorithm": "concurrency"}])
    first, second, third = [await reserved(caller, {"tokens": 10}) for _ in range(3)]
    assert [one.status_code for one in (first, second, third)] == [200, 200, 429]
    assert third.json()["rule"] == "pro/300s"
    reservation = first.json()["id"]
    assert (await caller.post("/v1/renew", {"slot": reservation})).json()["held"] is True
    await committed(caller, reservation, {"tokens": 1})
    assert (await caller.post("/v1/renew", {"slot": reservation})).json()["held"] is False
    assert (await reserved(caller, {"tokens": 10})).status_code == 200
    assert await used(caller) == {"60s": 3, "tokens-60s": 21, "300s": 2}


async def test_check_by_a_plan_with_units_and_slots_spends_both_and_is_released(service):
    caller = await service.caller(limits=["100 tokens/min", "slots=1/min@concurrency"])
    answer = await caller.check(**PLACE, cost={"tokens": 60})
    slot = answer.json()["slot"]
    assert (await caller.check(**PLACE, cost={"tokens": 1})).status_code == 429
    await caller.post("/v1/release", {"slot": slot})
    assert (await caller.check(**PLACE, cost={"tokens": 40})).status_code == 200
    assert (await caller.check(**PLACE, cost={"tokens": 1})).json()["rule"] in ("pro/tokens-60s", "pro/slots")


async def test_override_that_lifts_a_limit_and_shadows_are_settled_like_others(service):
    caller = await service.caller(limits=["1000 tokens/min", "shadow=500 tokens/min shadow"])
    place = {"tenant_id": caller.tenant_id, "resource": PLACE["resource"], "subject": "vip"}
    await service.admin("PUT", "/overrides", {**place, "unlimited": True})
    vip = {"resource": PLACE["resource"], "subject": "vip", "estimate": {"tokens": 5000}}
    lifted = (await caller.post("/v1/reserve", vip)).json()
    assert (await committed(caller, lifted["id"], {"tokens": 9000}))["allowed"] is True
    reservation = (await reserved(caller, {"tokens": 400})).json()["id"]
    await committed(caller, reservation, {"tokens": 100})
    answer = await caller.post("/v1/peek", {**PLACE, "cost": {"tokens": 0}})
    assert [(one["name"], one["used"]) for one in answer.json()["limits"]] == [("tokens-60s", 100), ("shadow", 100)]


@pytest.mark.parametrize("mode", ["monitor", "off"])
async def test_reservation_that_was_not_counted_settles_nothing(service, mode):
    caller = await service.caller(limits=["1000 tokens/min"], mode=mode)
    answer = await reserved(caller, {"tokens": 5000})
    assert (answer.status_code, answer.json()["estimate"]) == (200, {"tokens": 0})
    await committed(caller, answer.json()["id"], {"tokens": 700})
    await service.admin("PATCH", f"/plans/{caller.plan_id}", {"mode": "on"})
    await committed(caller, answer.json()["id"], {"tokens": 700})
    answer = await caller.post("/v1/peek", {**PLACE, "cost": {"tokens": 0}})
    assert answer.json()["limits"][0]["used"] == 0


@pytest.mark.parametrize("on_outage", ["open", "closed", "local"])
async def test_store_away_while_reserving_charges_once_it_is_back(tmp_path, on_outage):
    redis = servers.start_server(servers.wheel_server())
    try:
        async with running(databases.new_database("sqlite", tmp_path), redis.url, deadline=0.2) as service:
            caller = await service.caller(**LLM, on_outage=on_outage)
            servers.stop_server(redis)
            answer = await reserved(caller)
            if on_outage == "closed":
                assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
                return
            body = answer.json()
            assert (answer.status_code, body["estimate"]) == (200, {"requests": 0, "tokens": 0})
            assert body["degraded"]
            redis = servers.start_server(servers.wheel_server(), port=redis.port)
            await _until_decided(caller)
            await committed(caller, body["id"], {"tokens": 523})
            again = await committed(caller, body["id"], {"tokens": 523})
            assert (again["repeated"], (await used(caller))["tokens-60s"]) == (True, 523)
    finally:
        servers.stop_server(redis)


async def _until_decided(caller) -> None:
    for _ in range(500):
        answer = await caller.post("/v1/peek", {**PLACE, "cost": {"tokens": 0}})
        if answer.status_code == 200 and answer.json()["degraded"] is None:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the store does not come back")


async def test_any_instance_settles_what_another_has_reserved(tmp_path, redis_server):
    url = databases.new_database("sqlite", tmp_path)
    async with running(url, redis_server.url) as first, running(url, redis_server.url) as second:
        caller = await first.caller(**LLM)
        await second.service.refresher.refresh()
        other = type(caller)(second, caller.tenant_id, caller.plan_id, caller.key)
        reservation = (await reserved(caller)).json()["id"]
        await committed(other, reservation, {"tokens": 1})
        assert await used(caller) == {"60s": 1, "tokens-60s": 1}


@pytest.mark.parametrize(
    "limits", [["60/min"], ["60/min", "5000 tokens/min"], ["9/s", "60/min", "1000 tokens/min", "bytes=9 bytes/min"]]
)
async def test_plan_that_changes_before_the_commit_is_no_error(service, limits):
    caller = await service.caller(**LLM)
    reservation = (await reserved(caller)).json()["id"]
    await service.admin("PATCH", f"/plans/{caller.plan_id}", {"limits": limits})
    answer = await caller.post("/v1/commit", {"id": reservation, "actual": {}})
    assert answer.status_code == 200


async def test_nobody_settles_what_is_another_tenants_or_no_reservation(service):
    caller, other = await service.caller(**LLM), await service.caller("other", **LLM)
    slots = await service.caller("slots", algorithm="concurrency", limit=2, stale_after_seconds=60)
    reservation = (await reserved(caller)).json()["id"]
    slot = (await slots.check()).json()["slot"]
    huge = text_of(Slot("abc", caller.plan_id, "r", "s", 10**15, {"tokens": 1}, True))
    odd = text_of(Slot("a:b", caller.plan_id, "r", "s", 1000, {"tokens": 1}, True))
    for one, text in ((other, reservation), (slots, slot), (caller, "nonsense"), (caller, huge), (caller, odd)):
        answer = await one.post("/v1/commit", {"id": text, "actual": {"tokens": 1}})
        assert (answer.status_code, answer.json()["field"]) == (404, "id")
    assert (await used(caller))["tokens-60s"] == 800


async def test_id_of_the_longest_names_settles(service):
    caller = await service.caller(**LLM)
    place = {"resource": "\N{ROCKET}" * 256, "subject": "\N{PARTY POPPER}" * 256}
    answer = await caller.post("/v1/reserve", {**place, "estimate": TOKENS})
    await committed(caller, answer.json()["id"], {"tokens": 1})
    slots = await service.caller("slots", algorithm="concurrency", limit=2, stale_after_seconds=60)
    slot = (await slots.check(**place)).json()["slot"]
    assert (await slots.post("/v1/release", {"slot": slot})).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "field", "words"),
    [
        ("/v1/check", PLACE, "cost", "says no unit"),
        ("/v1/check", {**PLACE, "cost": 5}, "cost", "says no unit"),
        ("/v1/check", {**PLACE, "cost": {"bytes": 5}}, "cost", "unit 'bytes'"),
        ("/v1/check", {**PLACE, "cost": {"tokens": -1}}, "cost", "whole number between 0 and"),
        ("/v1/check", {**PLACE, "cost": {"tokens": 1.5}}, "cost", "whole number between 0 and"),
        ("/v1/check", {**PLACE, "cost": {"tokens": 1}, "share": 1.5}, "share", "share 1.5 is more than 1"),
        ("/v1/check", {**PLACE, "cost": {"tokens": 1}, "anchor": 31}, "anchor", "no limit has a calendar"),
        ("/v1/check", {**PLACE, "cost": {"tokens": 1}, "anchor": 32}, "anchor", "the day of a month"),
        ("/v1/check/batch", {"checks": [PLACE]}, "checks[0].cost", "says no unit"),
        ("/v1/peek", PLACE, "cost", "says no unit"),
        ("/v1/charge", {**PLACE, "cost": {"tokens": 1}, "share": 0.5}, "share", "is not judged"),
        ("/v1/refund", PLACE, "cost", "says no unit"),
        ("/check", {"client_key": "a", "endpoint": "/x", "cost": 1}, "cost", "says no unit"),
        ("/v1/reserve", PLACE, "estimate", "estimate 1 says no unit"),
        ("/v1/reserve", {**PLACE, "estimate": {"bytes": 5}}, "estimate", "unit 'bytes' of estimate"),
        ("/v1/reserve", {**PLACE, "estimate": TOKENS, "id": "a b"}, "id", "letters and digits"),
        ("/v1/reserve", {**PLACE, "estimate": TOKENS, "hold": 0}, "hold", "hold 0 is not more than 0"),
        ("/v1/commit", {"id": "a", "actual": {"tokens": -1}}, "actual", "whole number between 0 and"),
        ("/v1/commit", {"id": "a", "actual": {"tokens": 1}, "subject": "b"}, "resource", "belong together"),
        ("/v1/commit", {**PLACE, "id": "a", "actual": 5}, "actual", "actual 5 says no unit"),
        ("/v1/commit", {**PLACE, "id": "a", "actual": {"tokens": 1}, "known": 3}, "known", "known 3 says no unit"),
    ],
)
async def test_request_that_makes_no_sense_is_named_by_its_field(embedded, path, body, field, words):
    caller = await embedded.caller(**LLM)
    answer = await caller.post(path, body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert words in answer.json()["detail"]


async def test_costs_by_unit_are_charged_refunded_and_batched(service):
    caller = await service.caller(**LLM)
    await caller.post("/v1/charge", {**PLACE, "cost": {"tokens": 900, "requests": 0}})
    await caller.post("/v1/refund", {**PLACE, "cost": {"tokens": 100, "requests": 0}})
    checks = [{**PLACE, "cost": {"tokens": number}} for number in (150, 100, 50)]
    answer = await caller.post("/v1/check/batch", {"checks": checks})
    assert [one["allowed"] for one in answer.json()["results"]] == [True, False, True]
    assert await used(caller) == {"60s": 2, "tokens-60s": 1000}


async def test_headers_and_usage_show_every_unit(service):
    caller = await service.caller(**LLM)
    await service.admin("PATCH", f"/tenants/{caller.tenant_id}", {"headers": ["draft-11"]})
    answer = await caller.check(**PLACE, cost=TOKENS)
    assert answer.headers["ratelimit-policy"] == '"minute";q=60;w=60, "tokens minute";q=1000;qu="tokens";w=60'
    assert answer.headers["ratelimit"] == '"tokens minute";r=200;t=60, "minute";r=59;t=60'
    usage = await service.client.get("/v1/usage", params=PLACE, headers={"x-api-key": caller.key})
    assert [(one["unit"], one["used"]) for one in usage.json()["limits"]] == [("requests", 1), ("tokens", 800)]
    assert usage.json()["plans"][0]["limits"] == ["60/min", "1000 tokens/min"]
    assert usage.json()["plans"][0]["units"] == ["requests", "tokens"]


async def test_share_keeps_room_for_others(service):
    caller = await service.caller(limits=["10/min"])
    statuses = [(await caller.check(**PLACE, share=0.5)).status_code for _ in range(6)]
    assert statuses == [200] * 5 + [429]
    assert (await caller.post("/v1/peek", {**PLACE, "share": 0.5})).json()["allowed"] is False
    assert (await reserved(caller, 1, share=0.5)).status_code == 429
    checks = {"checks": [{**PLACE, "share": 0.5}, PLACE]}
    answer = await caller.post("/v1/check/batch", checks)
    assert [one["allowed"] for one in answer.json()["results"]] == [False, True]


async def test_calendar_of_a_plan_ends_at_midnight_of_its_time_zone(embedded, ratekit_clock):
    ratekit_clock.set(datetime.datetime(2026, 3, 28, 12, tzinfo=datetime.UTC).timestamp())
    limits = ["2/day Europe/Berlin", {"max_requests": 9, "window": "month America/Sao_Paulo anchor 31", "name": "billing"}]
    caller = await embedded.caller(limits=limits)
    assert await caller.statuses(3) == [200, 200, 429]
    refused = (await caller.check()).json()
    ends = datetime.datetime(2026, 3, 28, 23, tzinfo=datetime.UTC).timestamp()
    assert refused["reset_at"] == ends
    billing = datetime.datetime(2026, 3, 31, 3, tzinfo=datetime.UTC).timestamp()
    assert refused["limits"][1]["reset_at"] == billing
    ratekit_clock.set(ends + 1)
    assert await caller.statuses(3) == [200, 200, 429]
    day_of_23_hours = datetime.datetime(2026, 3, 29, 22, tzinfo=datetime.UTC).timestamp()
    assert (await caller.check()).json()["reset_at"] == day_of_23_hours


@pytest.mark.parametrize("anchor", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
@pytest.mark.parametrize("path", ["/v1/check", "/v1/reserve"])
async def test_anchor_that_its_time_zone_does_not_have_is_a_mistake_of_the_caller(embedded, path, anchor):
    caller = await embedded.caller(limits=["10/month Asia/Tokyo", "100/year America/New_York"])
    answer = await caller.post(path, {**PLACE, "anchor": anchor})
    assert (answer.status_code, answer.json()["field"]) == (422, "anchor")
    assert "is in no year between 1 and 9999" in answer.json()["detail"]


async def test_anchor_of_a_request_says_from_when_its_periods_are_counted(embedded, ratekit_clock):
    ratekit_clock.set(datetime.datetime(2026, 2, 10, tzinfo=datetime.UTC).timestamp())
    caller = await embedded.caller(limits=["5/month"])
    ends = [(await caller.check(subject=f"org:{anchor}", anchor=anchor)).json()["reset_at"] for anchor in (31, "2024-01-15")]
    times = [datetime.datetime.fromtimestamp(end, datetime.UTC).strftime("%m-%d") for end in ends]
    assert times == ["02-28", "02-15"]
    held = await reserved(caller, 3, anchor="2024-01-15T09:00:00Z")
    await committed(caller, held.json()["id"], 1)
    answer = await caller.post("/v1/peek", {**PLACE, "anchor": "2024-01-15T09:00:00Z"})
    assert answer.json()["remaining"] == 4


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("5/day Europe/Nowhere", "Europe/Nowhere"),
        ("5/month anchor 32", "anchor 32"),
        ({"max_requests": 5, "window": "fortnight"}, "window 'fortnight'"),
        ({"max_requests": 5, "window": "15min shadow"}, "says shadow"),
        ({"max_requests": 5, "window": 60, "unit": "To Kens"}, "unit 'To Kens'"),
    ],
)
async def test_plan_with_a_calendar_or_unit_that_makes_no_sense_is_refused(embedded, limit, words):
    tenant_id = await embedded.tenant()
    body = {"tenant_id": tenant_id, "name": "odd", "limits": [limit]}
    problem = await embedded.admin("POST", "/plans", body, 422)
    assert (problem["field"], words in problem["detail"]) == ("limits[0]", True), problem
