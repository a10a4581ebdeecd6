"""A service behind a real server, and clients of both colours."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import httpx2
import pytest
import uvicorn

from ratekit.client import AsyncRateKitClient, RateKitClient
from ratekit_service import Settings, create_app
from support import databases
from support.servers import free_port, wait_until

TOKEN = "a-token-for-administration"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The service behind a real server, with plans and a key."""
    port = free_port()
    database = databases.new_database("sqlite", tmp_path_factory.mktemp("client"))
    chosen = {"store_url": "memory://client", "admin_token": TOKEN, "log_checks": "none", "tracing": "off"}
    app = create_app(Settings(database_url=database, **chosen))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server does not start")
    url = f"http://127.0.0.1:{port}"
    with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=20) as admin:
        tenant = admin.post("/v1/admin/tenants", json={"name": "acme"}).json()["id"]
        slot = {"max_requests": 2, "window": 300, "algorithm": "concurrency"}
        plans = {"pro": ["3/h"], "quick": ["2/300ms"], "llm": ["60/h", "1000 tokens/h"], "month": ["10/month"]}
        plans |= {"held": ["1000 tokens/h", slot], "tokens": ["1000 tokens/h"]}
        ids = {
            name: admin.post("/v1/admin/plans", json={"tenant_id": tenant, "name": name, "limits": limits}).json()["id"]
            for name, limits in plans.items()
        }
        slots = {"tenant_id": tenant, "name": "slots", "algorithm": "concurrency", "limit": 1, "stale_after_seconds": 60}
        ids["slots"] = admin.post("/v1/admin/plans", json=slots).json()["id"]
        body = {"tenant_id": tenant, "name": "app", "plan_id": ids["pro"]}
        yield url, admin.post("/v1/admin/keys", json=body).json()["key"], ids
    server.should_exit = True
    thread.join(20)


class Waiting:
    """An awaiting client as a waiting one, on an event loop of its own."""

    def __init__(self, client: AsyncRateKitClient) -> None:
        self._client = client
        self._runner = asyncio.Runner()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*given: Any, **options: Any) -> Any:
            answer = method(*given, **options)
            return self._runner.run(answer) if inspect.iscoroutine(answer) else _Block(answer, self._runner)

        return call

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


class _Block:
    def __init__(self, context: Any, runner: asyncio.Runner) -> None:
        self._context, self._runner = context, runner

    def __enter__(self) -> Any:
        return self._runner.run(self._context.__aenter__())

    def __exit__(self, *given: object) -> Any:
        return self._runner.run(self._context.__aexit__(*given))


def made(colour: str, url: str, key: str, **options: Any) -> Any:
    kind = RateKitClient if colour == "sync" else AsyncRateKitClient
    client = kind(url, key, **{"deadline": 5.0, **options})
    return client if colour == "sync" else Waiting(client)


@pytest.fixture(params=["sync", "async"])
def colour(request):
    return request.param


@pytest.fixture
def client(service, colour):
    client = made(colour, service[0], service[1])
    yield client
    client.close()
