"""The service in this process, on an embedded store and SQLite, and on a real Redis and a real Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from ratekit.stores import memory
from ratekit_service import Settings, create_app
from ratekit_service.checks.front import Front
from support import databases

TOKEN = "a-token-for-administration"
ADMIN = {"authorization": f"Bearer {TOKEN}"}
BUCKET = {"algorithm": "token_bucket", "bucket_capacity": 3, "refill_rate_per_sec": 0.001}
WINDOW = {"algorithm": "fixed_window", "limit": 3, "window_seconds": 60}


class Running:
    """A running service, and what administrators and callers do with it."""

    def __init__(self, app: Front, client: httpx2.AsyncClient) -> None:
        self.app = app
        self.client = client
        self.service = app.service

    async def admin(self, method: str, path: str, body: Any = None, status: int | None = None, **options: Any) -> Any:
        """Ask as an administrator. Returns the body of the answer, which is a success, or has the given status."""
        answer = await self.client.request(method, f"/v1/admin{path}", json=body, headers=ADMIN, **options)
        assert answer.status_code == status if status else answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def tenant(self, name: str = "acme", **settings: Any) -> str:
        return (await self.admin("POST", "/tenants", {"name": name, **settings}))["id"]

    async def plan(self, tenant_id: str, name: str = "pro", **definition: Any) -> str:
        body = {"tenant_id": tenant_id, "name": name, **(definition or WINDOW)}
        return (await self.admin("POST", "/plans", body))["id"]

    async def key(self, tenant_id: str, **options: Any) -> str:
        return (await self.admin("POST", "/keys", {"tenant_id": tenant_id, "name": "app", **options}))["key"]

    async def caller(self, name: str = "acme", **definition: Any) -> Caller:
        """Make a tenant with a plan and a key."""
        tenant_id = await self.tenant(name)
        plan_id = await self.plan(tenant_id, **definition)
        return Caller(self, tenant_id, plan_id, await self.key(tenant_id, plan_id=plan_id))


class Caller:
    """A tenant's application."""

    def __init__(self, running: Running, tenant_id: str, plan_id: str, key: str) -> None:
        self.running, self.tenant_id, self.plan_id, self.key = running, tenant_id, plan_id, key

    async def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        return await self.running.client.post(path, json=body, headers={"x-api-key": self.key, **headers})

    async def check(self, resource: str = "GET:/orders", subject: str = "user:42", **others: Any) -> httpx2.Response:
        return await self.post("/v1/check", {"resource": resource, "subject": subject, **others})

    async def statuses(self, count: int, **others: Any) -> list[int]:
        return [(await self.check(**others)).status_code for _ in range(count)]


@asynccontextmanager
async def running(database_url: str, store_url: str = "memory://service", **settings: Any) -> AsyncIterator[Running]:
    """Run a service in this process."""
    if store_url.startswith("memory"):
        memory.shared(store_url.removeprefix("memory://")).clear()
    chosen = {"admin_token": TOKEN, "log_checks": "none", "poll_seconds": 0.05, "tracing": "off", "deadline": 1.0}
    app = create_app(Settings(database_url=database_url, store_url=store_url, **(chosen | settings)))
    await app.service.start()
    transport = httpx2.ASGITransport(app, raise_app_exceptions=True)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://ratekit") as client:
            yield Running(app, client)
    finally:
        await app.service.stop()


@pytest.fixture(params=["embedded", "servers"])
async def service(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Running]:
    """A service with nothing in it: on memory:// and SQLite, and on a real Redis and a real Postgres."""
    if request.param == "embedded":
        places = (databases.new_database("sqlite", tmp_path), "memory://service")
    else:
        redis = request.getfixturevalue("redis_server")
        places = (databases.new_database("postgres", tmp_path), redis.url)
    async with running(*places) as found:
        yield found


@pytest.fixture
async def embedded(tmp_path: Any) -> AsyncIterator[Running]:
    """A service on memory:// and SQLite."""
    async with running(databases.new_database("sqlite", tmp_path)) as found:
        yield found
