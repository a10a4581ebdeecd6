"""Attacks: administration without its token, injections, random inputs."""

from __future__ import annotations

import random
import string

import pytest

from support import databases
from tests.ratekit_service.conftest import running

ROUTES = [
    ("GET", "/tenants"), ("POST", "/tenants"), ("GET", "/plans"), ("POST", "/plans"), ("GET", "/keys"), ("POST", "/keys"),
    ("DELETE", "/keys/x"), ("POST", "/keys/x/rotate"), ("GET", "/policies"), ("GET", "/rules"), ("PUT", "/overrides"),
    ("GET", "/overrides"), ("POST", "/reset"), ("GET", "/violations"), ("GET", "/audit"), ("GET", "/overrides/history"),
]  # fmt: skip
SQL = [
    "' OR 1=1 --",
    "'; DROP TABLE tenants; --",
    '" OR ""="',
    "%",
    "_",
    "\\",
    "a'b",
    "$(id)",
    "{{7*7}}",
    "${jndi:ldap://x}",
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_administration_needs_its_token(embedded, method, path):
    caller = await embedded.caller()
    for authorization in (None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic eA==", f"Bearer {caller.key}", "bearer é"):
        headers = {} if authorization is None else {"authorization": authorization.encode()}
        answer = await embedded.client.request(method, f"/v1/admin{path}", json={}, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["field"] == "authorization"


async def test_administration_is_off_without_a_token_in_the_settings(tmp_path):
    async with running(databases.new_database("sqlite", tmp_path), admin_token="") as service:
        for authorization in ("Bearer ", "Bearer x", ""):
            answer = await service.client.get("/v1/admin/tenants", headers={"authorization": authorization})
            assert (answer.status_code, "administration is off" in answer.json()["detail"]) == (403, True)


@pytest.mark.parametrize("text", SQL)
async def test_texts_are_values_in_every_place(service, text):
    tenant_id = await service.tenant(text)
    assert [item["name"] for item in (await service.admin("GET", "/tenants", params={"name": text}))["items"]] == [text]
    plan_id = await service.plan(tenant_id, text)
    key = await service.key(tenant_id, plan_id=plan_id)
    body = {"resource": text, "subject": text}
    for _ in range(4):
        answer = await service.client.post("/v1/check", json=body, headers={"x-api-key": key})
    assert answer.status_code == 429
    service.service.violations.flush()
    found = await service.admin("GET", "/violations", params={"client_key": text})
    assert [item["client_key"] for item in found["items"]] == [text]
    assert (await service.admin("GET", "/tenants", params={"name": "nobody"}))["items"] == []


async def test_header_lines_cannot_be_injected(embedded):
    caller = await embedded.caller(name="a\u00e9", limits=["9/min"])
    answer = await caller.check("r\r\nX-Evil: 1", "s\r\nX-Evil: 1")
    assert answer.status_code == 200
    assert "x-evil" not in answer.headers
    assert answer.headers["x-ratekit-rule"].isascii()
    answer = await embedded.client.get("/v1/admin/tenants", headers={"authorization": "Bearer x\ty"})
    assert answer.status_code == 401


async def test_ten_thousand_random_inputs_are_never_a_500(embedded):
    caller = await embedded.caller()
    dice = random.Random(7)
    paths = [
        "/v1/check",
        "/v1/check/batch",
        "/check",
        "/v1/peek",
        "/v1/charge",
        "/v1/release",
        "/v1/admin/plans",
        "/v1/admin/keys",
    ]
    pieces = [
        '{"resource":',
        '"r"',
        ',"subject":',
        '"s"',
        "}",
        "[",
        "]",
        '"cost":',
        "1e999",
        "-1",
        "null",
        "\\ud800",
        "\x00",
        "💥",
        ",",
    ]
    headers = {
        "x-api-key": caller.key,
        "content-type": "application/json",
        "authorization": f"Bearer {embedded.service.settings.admin_token}",
    }
    statuses = set()
    for _ in range(10_000):
        if dice.random() < 0.5:
            body = "".join(dice.choices(pieces, k=dice.randint(0, 8))).encode("utf-8", "surrogatepass")
        else:
            body = "".join(dice.choices(string.printable, k=dice.randint(0, 40))).encode()
        answer = await embedded.client.post(dice.choice(paths), content=body, headers=headers)
        statuses.add(answer.status_code)
    assert max(statuses) < 500
