"""API keys: their form, who is let in, rotation, and that secrets are shown once."""

from __future__ import annotations

import datetime
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit_service.keys import secrets
from ratekit_service.keys.authentication import Authentication, Failures
from ratekit_service.problems import Problem
from tests.ratekit_service.conftest import running


def test_key_has_an_id_a_secret_and_a_checksum():
    made = secrets.make_key("live")
    assert len(made.text) == 59
    assert made.text.startswith(f"rk_live_{made.id}_")
    assert secrets.id_of(made.text) == made.id
    assert secrets.is_same(made.text, bytes.fromhex(made.salt), bytes.fromhex(made.key_hash))
    assert made.text not in (made.salt, made.key_hash)


def test_keys_differ():
    assert len({secrets.make_key("live").text for _ in range(200)}) == 200


def test_every_mistyped_key_ends_at_the_checksum():
    text = secrets.make_key("test").text
    for at in range(len(text)):
        wrong = text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :]
        assert secrets.id_of(wrong) is None


@given(st.text(max_size=80))
def test_no_text_makes_the_check_raise(text):
    assert secrets.id_of(text) is None


def test_pepper_is_needed_to_compare():
    made = secrets.make_key("live", "pepper")
    salt, kept = bytes.fromhex(made.salt), bytes.fromhex(made.key_hash)
    assert secrets.is_same(made.text, salt, kept, "pepper")
    assert not secrets.is_same(made.text, salt, kept)


async def test_no_key_and_every_wrong_one_is_the_same_401(service):
    caller = await service.caller()
    other = await service.caller("other")
    await service.admin("DELETE", f"/keys/{other.key.split('_')[2]}", status=204)
    bodies = []
    for key in (None, "", "nonsense", caller.key[:-1], secrets.make_key("live").text, other.key, "é" * 59):
        headers = {} if key is None else {"x-api-key": key.encode()}
        answer = await service.client.post("/v1/check", json={"resource": "r", "subject": "s"}, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("ApiKey")
        bodies.append(answer.json())
    assert all(body == bodies[0] for body in bodies)


async def test_no_key_is_wrong_before_the_configuration_is_loaded(tmp_path):
    nothing = "postgresql://nobody@127.0.0.1:9/nothing"
    for front in (True, False):
        async with running(nothing, front=front) as service:
            headers = {"x-api-key": secrets.make_key("live").text}
            answer = await service.client.post("/v1/check", json={"resource": "r", "subject": "s"}, headers=headers)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "the configuration is not loaded yet" in answer.json()["detail"]


async def test_answers_with_secrets_are_kept_by_nobody(embedded):
    caller = await embedded.caller()
    headers = {"authorization": f"Bearer {embedded.service.settings.admin_token}"}
    body = {"tenant_id": caller.tenant_id, "name": "app"}
    made = await embedded.client.post("/v1/admin/keys", json=body, headers=headers)
    listed = await embedded.client.get("/v1/admin/keys", headers=headers)
    assert [answer.headers["cache-control"] for answer in (made, listed)] == ["no-store"] * 2


async def test_expired_key_is_told_so(service):
    caller = await service.caller()
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    made = await service.admin("POST", "/keys", {"tenant_id": caller.tenant_id, "name": "k"})
    await service.admin("PATCH", f"/keys/{made['id']}", {"expires_at": past.isoformat()})
    headers = {"x-api-key": made["key"]}
    answer = await service.client.post("/v1/check", json={"resource": "r", "subject": "s"}, headers=headers)
    assert (answer.status_code, answer.json()["detail"]) == (401, "x-api-key has expired")


async def test_key_is_only_for_its_scopes(service):
    caller = await service.caller()
    caller.key = await service.key(caller.tenant_id, plan_id=caller.plan_id, scopes=["read"])
    body = {"resource": "r", "subject": "s"}
    statuses = [
        (await caller.post(path, body)).status_code for path in ("/v1/peek", "/v1/check", "/v1/charge", "/v1/refund")
    ]
    assert statuses == [200, 403, 403, 403]


async def test_rotated_key_works_beside_the_new_one_until_the_overlap_is_over(service):
    caller = await service.caller()
    old = caller.key.split("_")[2]
    made = await service.admin("POST", f"/keys/{old}/rotate", {"overlap_seconds": 3600}, 201)
    assert await caller.statuses(1) == [200]
    read = await service.admin("GET", f"/keys/{old}")
    assert read["replaced_by"] == made["id"]
    await service.admin("POST", f"/keys/{old}/rotate", {}, 409)
    caller.key = made["key"]
    assert await caller.statuses(1) == [200]
    newest = await service.admin("POST", f"/keys/{made['id']}/rotate", {"overlap_seconds": 0}, 201)
    assert await caller.statuses(1) == [401]
    assert newest["plan_id"] == caller.plan_id
    leaked = await service.admin("GET", f"/keys/{made['id']}")
    assert leaked["revoked_at"] is not None  # so that no instance has to have the right time


async def test_secret_is_shown_once(service):
    caller = await service.caller()
    key_id, secret = caller.key.split("_")[2], caller.key.split("_")[3]
    pages = [
        await service.admin("GET", f"/keys/{key_id}"),
        await service.admin("GET", "/keys"),
        await service.admin("GET", "/audit"),
        (await service.client.get("/metrics")).text,
        (await service.client.get("/v1/usage", headers={"x-api-key": caller.key})).text,
    ]
    assert not [page for page in pages if secret in str(page)]


async def test_last_use_is_noted_beside_the_requests(service):
    caller = await service.caller()
    key_id = caller.key.split("_")[2]
    await caller.check()
    assert (await service.admin("GET", f"/keys/{key_id}"))["last_used_at"] is None
    version = service.service.refresher.configuration.version
    from ratekit_service.keys.routes import note_uses

    used = dict(service.service.authentication.used)
    await service.service.database.write_quietly(lambda connection: note_uses(connection, used))
    noted = datetime.datetime.fromisoformat((await service.admin("GET", f"/keys/{key_id}"))["last_used_at"])
    assert abs((datetime.datetime.now(datetime.UTC) - noted).total_seconds()) < 120
    earlier = {key_id: used[key_id] - 10}
    await service.service.database.write_quietly(lambda connection: note_uses(connection, earlier))
    assert (await service.admin("GET", f"/keys/{key_id}"))["last_used_at"] == noted.isoformat().replace("+00:00", "Z")
    assert service.service.refresher.configuration.version == version


async def test_guessing_ends_in_429s_and_does_not_lock_the_right_key_out(embedded):
    caller = await embedded.caller()
    embedded.service.authentication = Authentication(embedded.service.refresher, Failures("3/min"), "", "")
    wrong = secrets.make_key("live").text
    body = {"resource": "r", "subject": "s"}
    statuses = [
        (await embedded.client.post("/v1/check", json=body, headers={"x-api-key": wrong})).status_code for _ in range(5)
    ]
    assert statuses == [401] * 3 + [429] * 2
    assert await caller.statuses(1) == [200]


async def test_check_of_a_key_takes_as_long_for_an_unknown_id_as_for_a_wrong_secret(embedded):
    caller = await embedded.caller()
    key_id = caller.key.split("_")[2]
    start = f"rk_live_{key_id}_{secrets.random_text(32)}"
    wrong = start + secrets._checksum(start)
    unknown = secrets.make_key("live").text
    authentication = Authentication(embedded.service.refresher, Failures(""), "", "")

    def seconds(text: str) -> float:
        begun = time.perf_counter()
        for _ in range(200):
            with pytest.raises(Problem):
                authentication.key(text, "check", "a")
        return time.perf_counter() - begun

    pairs = [(seconds(wrong), seconds(unknown)) for _ in range(15)]
    ratio = statistics.median(one / other for one, other in pairs)
    assert 0.8 < ratio < 1.25
