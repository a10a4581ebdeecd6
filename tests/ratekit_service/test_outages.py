"""The database stopped, the store stopped, both back: checks go on, and nothing has to be restarted."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from sqlalchemy import delete, insert, text

from ratekit.database import schema
from ratekit.database.versions import ONLY_ROW, current_version
from support import databases, servers
from tests.ratekit_service.conftest import running


async def until(condition, seconds: float = 15) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


@pytest.fixture
def postgres():
    """A Postgres of its own, which may be stopped."""
    server = databases.Postgres()
    yield server
    server.stop()


@pytest.fixture
def redis():
    """A Redis of its own, which may be stopped."""
    server = servers.start_server(servers.wheel_server())
    yield server
    servers.stop_server(server)


async def test_store_that_hangs_holds_up_neither_the_start_nor_administration(redis, tmp_path):
    redis.process.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    try:
        async with running(databases.new_database("sqlite", tmp_path), redis.url) as service:
            assert time.monotonic() - begun < 9  # the time for the store, and what a busy machine takes
            begun = time.monotonic()
            await service.tenant()
            assert time.monotonic() - begun < 4
    finally:
        redis.process.send_signal(signal.SIGCONT)


async def test_database_of_a_newer_release_is_told_once(tmp_path, caplog):
    url = databases.new_database("sqlite", tmp_path)
    async with running(url) as service:
        with service.service.database.engine.begin() as connection:
            connection.execute(text("UPDATE ratekit_migrations SET version_num = '9999'"))
    caplog.clear()
    async with running(url, poll_seconds=0.01) as service:
        await asyncio.sleep(0.2)  # several looks at the version
        assert (await service.client.get("/v1/ready")).status_code == 503
    told = [one.getMessage() for one in caplog.records if one.name == "ratekit.service"]
    assert told == ["the database is at migration '9999', which only a newer release knows; not ready until that changes"]


async def test_checks_go_on_while_the_database_is_away(postgres, redis_server):
    async with running(postgres.new_database(), redis_server.url) as service:
        caller = await service.caller(limits=["1000/min"])
        postgres.stop()
        assert await caller.statuses(20) == [200] * 20
        problem = await service.admin("POST", "/tenants", {"name": "other"}, 503)
        assert "the database does not answer" in problem["detail"]
        ready = (await service.client.get("/v1/ready")).json()
        assert (ready["status"], ready["database"], ready["store"]) == ("degraded", "down", "up")
        in_force = ready["config_origin"], ready["config_version"] > 0, ready["config_age_seconds"] > 0, ready["rules"]
        assert in_force == ("postgresql", True, True, 0)
        assert "ratekit_database_up 0.0" in (await service.client.get("/metrics")).text
        assert await caller.statuses(20) == [200] * 20
        postgres.start()

        async def is_back() -> bool:
            return (await service.client.get("/v1/ready")).json()["database"] == "up"

        await until(is_back)
        await service.admin("PATCH", f"/plans/{caller.plan_id}", {"limits": ["1/min"]})
        assert (await caller.check()).status_code == 429


async def test_hot_path_sends_nothing_to_the_database(tmp_path):
    from sqlalchemy import event

    async with running(databases.new_database("sqlite", tmp_path), poll_seconds=3600) as service:
        caller = await service.caller(limits=["5/min"])
        await asyncio.sleep(0.6)  # the overrides' copies are compared once
        statements = []
        event.listen(service.service.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        await caller.statuses(10)
        await caller.post("/v1/check/batch", {"checks": [{"resource": "r", "subject": "s"}]})
        await caller.post("/v1/peek", {"resource": "r", "subject": "s"})
        seen = [statement for statement in statements if "api_keys" in statement or "plans" in statement]
        assert seen == []


async def test_service_that_starts_before_its_database_is_ready_when_it_is_there(postgres, redis_server):
    url = postgres.new_database()
    postgres.stop()
    async with running(url, redis_server.url) as service:
        assert (await service.client.get("/v1/health")).status_code == 200
        assert (await service.client.get("/v1/ready")).status_code == 503
        body = {"resource": "r", "subject": "s"}
        assert (await service.client.post("/v1/check", json=body, headers={"x-api-key": "x"})).status_code == 401
        postgres.start()

        async def is_ready() -> bool:
            return (await service.client.get("/v1/ready")).status_code == 200

        await until(is_ready)
        caller = await service.caller()
        assert await caller.statuses(4) == [200] * 3 + [429]


@pytest.mark.parametrize(
    ("on_outage", "statuses"), [("open", [200] * 5), ("closed", [503] * 5), ("local", [200] * 3 + [429] * 2)]
)
async def test_plan_says_what_happens_while_the_store_is_away(redis, tmp_path, on_outage, statuses):
    async with running(databases.new_database("sqlite", tmp_path), redis.url, deadline=0.05) as service:
        caller = await service.caller(limits=["3/min"], on_outage=on_outage)
        await service.admin("GET", "/tenants")
        redis.process.kill()
        redis.process.wait()
        assert await caller.statuses(5) == statuses
        answer = await caller.check(subject="other")
        assert answer.json()["degraded"]
        assert "x-ratelimit-limit" not in answer.headers or on_outage == "local"
        batch = await caller.post("/v1/check/batch", {"checks": [{"resource": "r", "subject": "s"}] * 2})
        assert batch.status_code == (503 if on_outage == "closed" else 200)
        ready = (await service.client.get("/v1/ready")).json()
        assert (ready["status"], ready["store"] != "up") == ("degraded", True)
        back = servers.start_server(redis.executable, port=redis.port)
        try:

            async def is_back() -> bool:
                answer = await caller.check(subject="after")
                return answer.status_code in (200, 429) and answer.json()["degraded"] is None

            await until(is_back)
        finally:
            servers.stop_server(back)


async def test_override_is_in_force_again_when_the_store_comes_back_empty(redis, tmp_path):
    async with running(databases.new_database("sqlite", tmp_path), redis.url, deadline=0.05) as service:
        caller = await service.caller(limits=["3/min"])
        place = {"tenant_id": caller.tenant_id, "resource": "GET:/orders", "subject": "user:42"}
        await service.admin("PUT", "/overrides", {**place, "max_requests": 99})
        assert (await caller.check()).json()["limit"] == 99
        redis.process.kill()
        redis.process.wait()
        made = await service.admin("PUT", "/overrides", {**place, "max_requests": 77})
        assert made["in_force"] is False
        problem = await service.admin("POST", "/reset", place, 503)
        assert problem["detail"] == "the counters cannot be reset now: the store does not answer"
        back = servers.start_server(redis.executable, port=redis.port)
        try:

            async def is_back() -> bool:
                return (await caller.check(cost=0)).json().get("limit") == 77

            await until(is_back)
        finally:
            servers.stop_server(back)


async def test_database_that_was_emptied_is_told_and_polled_until_it_is_whole_again(tmp_path):
    async with running(databases.new_database("sqlite", tmp_path)) as service:
        caller = await service.caller(limits=["1000/min"])
        database = service.service.database
        version = await database.read(current_version)
        await database.write_quietly(lambda connection: connection.execute(delete(schema.config_version)))

        async def ready() -> dict[str, object]:
            return (await service.client.get("/v1/ready")).json()

        problem = await service.admin("POST", "/tenants", {"name": "other"}, 503)
        assert "the database does not answer" in problem["detail"]
        assert (await ready())["database"] == "down"
        assert await caller.statuses(2) == [200] * 2
        row = insert(schema.config_version).values(id=ONLY_ROW, version=version)
        await database.write_quietly(lambda connection: connection.execute(row))

        async def is_whole() -> bool:
            return (await ready())["database"] == "up" and (await ready())["config_age_seconds"] < 0.5

        await until(is_whole)
        await service.admin("POST", "/tenants", {"name": "other"}, 201)
