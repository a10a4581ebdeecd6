"""The service on a Redis Cluster, on Sentinels with a failover, and on MariaDB."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from support import databases
from support.topologies import start_cluster, start_watched
from tests.ratekit_service.conftest import Running, running


async def use(service: Running) -> None:
    """Use what touches the store: checks, batches, slots, overrides, resets, usage."""
    caller = await service.caller(limits=["3/min", "5/h"])
    assert await caller.statuses(4) == [200] * 3 + [429]
    checks = [{"resource": f"r{number % 7}", "subject": f"user:{number}"} for number in range(60)]  # of many slots
    for left in (2, 1):
        batch = await caller.post("/v1/check/batch", {"checks": checks})
        assert [(one["allowed"], one["remaining"], one["degraded"]) for one in batch.json()["results"]] == [
            (True, left, None)
        ] * 60

    place = {"tenant_id": caller.tenant_id, "resource": "GET:/orders", "subject": "user:42"}
    assert (await service.admin("PUT", "/overrides", {**place, "max_requests": 4}))["in_force"]
    assert await caller.statuses(2) == [200, 429]
    await service.admin("POST", "/reset", place)
    assert await caller.statuses(5) == [200] * 4 + [429]

    slots = await service.plan(caller.tenant_id, "slots", algorithm="concurrency", limit=1, stale_after_seconds=60)
    held = (await caller.check("export", plan_id=slots)).json()["slot"]
    assert (await caller.check("export", plan_id=slots)).status_code == 429
    assert (await caller.post("/v1/release", {"slot": held})).status_code == 200
    assert (await caller.check("export", plan_id=slots)).status_code == 200
    url = "/v1/usage?resource=GET:/orders&subject=user:42"
    used = (await service.client.get(url, headers={"x-api-key": caller.key})).json()
    assert [one["used"] for one in used["limits"]] == [4, 4]


async def crowd(services: list[Running], key: str, count: int) -> list[int]:
    """Send checks through all services at once, and return the statuses."""
    body, headers = {"resource": "r", "subject": "s"}, {"x-api-key": key}
    chosen = [services[number % len(services)] for number in range(count)]
    answers = await asyncio.gather(*(one.client.post("/v1/check", json=body, headers=headers) for one in chosen))
    return [answer.status_code for answer in answers]


async def until(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def test_service_on_a_cluster_has_every_operation_and_one_exact_limit(tmp_path):
    url = databases.new_database("sqlite", tmp_path)
    with start_cluster() as cluster:
        async with AsyncExitStack() as stack:
            both = [await stack.enter_async_context(running(url, cluster.url, deadline=5)) for _ in range(2)]
            await use(both[0])
            caller = await both[0].caller("other", limits=["50/h"])
            await both[1].service.refresher.refresh()
            assert sorted(await crowd(both, caller.key, 80)) == [200] * 50 + [429] * 30


async def test_service_goes_on_by_itself_after_a_failover_of_sentinels(tmp_path):
    with start_watched() as watched:
        async with running(databases.new_database("sqlite", tmp_path), watched.url, deadline=0.25) as service:
            await use(service)
            caller = await service.caller("other", limits=["1000/h"])
            assert await caller.statuses(5) == [200] * 5
            await until_replicated(watched)
            watched.primary.process.kill()
            watched.primary.process.wait()
            during = [await caller.check() for _ in range(3)]
            assert {answer.status_code for answer in during} == {200}  # this plan passes then
            assert {bool(answer.json()["degraded"]) for answer in during} == {True}
            assert (await service.client.get("/v1/ready")).json()["store"] != "up"

            async def is_back() -> bool:
                return (await caller.check(cost=0)).json()["degraded"] is None

            await until(is_back)
            assert (await caller.check()).json()["remaining"] == 1000 - 6
            assert (await service.client.get("/v1/ready")).json()["store"] == "up"


async def until_replicated(watched) -> None:
    """Wait until the replica has all that the primary has."""
    with watched.primary.client() as client:
        assert client.wait(1, 5000) == 1


async def test_service_on_mariadb_has_every_operation_and_survives_its_restart(redis_server, tmp_path):
    server = databases.MariaDb()
    try:
        async with running(server.new_database(), redis_server.url, deadline=5) as service:
            await use(service)
            caller = await service.caller("other", limits=["1000/h"])
            await asyncio.sleep(1.5)  # this server writes its log once a second
            server.stop()
            assert await caller.statuses(3) == [200] * 3
            problem = await service.admin("POST", "/tenants", {"name": "third"}, 503)
            assert "the database does not answer" in problem["detail"]
            server.start()

            async def is_back() -> bool:
                return (await service.client.get("/v1/ready")).json()["database"] == "up"

            await until(is_back)
            await service.admin("PATCH", f"/plans/{caller.plan_id}", {"limits": ["3/h"]})
            assert await caller.statuses(1) == [429]
            odd = await service.tenant("Zoë 🚦")
            assert (await service.admin("GET", f"/tenants/{odd}"))["name"] == "Zoë 🚦"
            assert (await service.admin("GET", "/tenants", params={"name": "Zoë 🚦"}))["items"][0]["id"] == odd
    finally:
        server.stop()


@pytest.mark.parametrize("count", [10])
def test_instances_start_at_once_on_an_empty_mariadb(redis_server, tmp_path, count):
    from support.instances import instances

    url = databases.new_database("mariadb", tmp_path)
    with instances(count, tmp_path, url, redis_server.url) as started:
        assert {one.ask("GET", "/v1/ready").json()["config_version"] for one in started} == {1}
        assert not [one.log.read_text() for one in started if "Traceback" in one.log.read_text()]
