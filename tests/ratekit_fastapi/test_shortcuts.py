"""The requests after the first to a route are decided by a shortcut: as the first one was, whatever has changed since."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient

from ratekit import events
from ratekit.stores.memory import MemoryStore
from ratekit_fastapi import PathRateLimiter, decisions, install
from ratekit_fastapi.settings import reset_default_settings


def told(response):
    remaining = response.headers.get("RateLimit-Remaining")
    return response.status_code, None if remaining is None else int(remaining)


def route(app, path, *limiters):
    @app.get(path, dependencies=[Depends(limiter) for limiter in limiters])
    async def read() -> dict[str, str]:
        return {}


@pytest.mark.parametrize("installed", [False, True])
def test_known_route_is_decided_by_its_shortcut(installed, monkeypatch):
    app = FastAPI()
    route(app, "/x", PathRateLimiter(3, 60))
    if installed:
        install(app)
    client = TestClient(app)
    assert told(client.get("/x")) == (200, 2)
    monkeypatch.delattr(decisions, "_decide")
    assert [told(client.get("/x")) for _ in range(3)] == [(200, 1), (200, 0), (429, 0)]


def test_one_limiter_counts_each_of_its_routes():
    app, limiter = FastAPI(), PathRateLimiter(3, 60)
    for path in ("/a", "/b/{id}"):
        route(app, path, limiter)
    client = TestClient(app)
    assert [told(client.get(path)) for path in ("/a", "/b/1") * 2] == [(200, 2), (200, 2), (200, 1), (200, 1)]


def test_router_that_is_included_twice_is_counted_twice():
    router, app = APIRouter(), FastAPI()
    route(router, "/x", PathRateLimiter(3, 60))
    for prefix in ("/v1", "/v2"):
        app.include_router(router, prefix=prefix)
    client = TestClient(app)
    paths = ("/v1/x", "/v1/x", "/v2/x", "/v2/x", "/v1/x")
    assert [told(client.get(path)) for path in paths] == [(200, 2), (200, 1), (200, 2), (200, 1), (200, 0)]


def test_application_that_is_mounted_twice_is_counted_twice():
    inner, app = FastAPI(), FastAPI()
    route(inner, "/x", PathRateLimiter(3, 60))
    for prefix in ("/v1", "/v2"):
        app.mount(prefix, inner)
    client = TestClient(app)
    paths = ("/v1/x", "/v1/x", "/v2/x", "/v2/x", "/v1/x")
    assert [told(client.get(path)) for path in paths] == [(200, 2), (200, 1), (200, 2), (200, 1), (200, 0)]


def test_application_that_is_mounted_and_has_a_host_is_counted_twice():
    inner, app = FastAPI(), FastAPI()
    route(inner, "/x", PathRateLimiter(2, 60))
    app.mount("/v1", inner)
    app.host("api.example.org", inner)
    client = TestClient(app)
    there = {"host": "api.example.org"}
    asked = [("/x", there), ("/v1/x", {}), ("/x", there), ("/v1/x", {}), ("/x", there)]
    answers = [told(client.get(path, headers=headers)) for path, headers in asked]
    assert answers == [(200, 1), (200, 1), (200, 0), (200, 0), (429, 0)]


def test_limiter_that_is_changed_decides_as_it_is_now():
    app, limiter = FastAPI(), PathRateLimiter(100, 60)
    route(app, "/x", limiter)
    client = TestClient(app)
    assert [told(client.get("/x")) for _ in range(2)] == [(200, 99), (200, 98)]
    limiter.cost = 10
    assert [told(client.get("/x")) for _ in range(2)] == [(200, 88), (200, 78)]
    limiter.cost = lambda request: int(request.headers["cost"])
    assert [told(client.get("/x", headers={"cost": cost})) for cost in ("1", "7")] == [(200, 77), (200, 70)]


def test_mode_is_read_for_every_request(monkeypatch):
    app = FastAPI()
    route(app, "/x", PathRateLimiter(1, 60))
    client = TestClient(app)
    assert [told(client.get("/x")) for _ in range(2)] == [(200, 0), (429, 0)]
    for mode, answer in (("monitor", (200, 0)), ("off", (200, None)), ("on", (429, 0))):
        monkeypatch.setenv("RATE_LIMIT_MODE", mode)
        assert told(client.get("/x")) == answer


def test_who_begins_to_listen_is_told():
    app, heard = FastAPI(), []
    route(app, "/x", PathRateLimiter(9, 60))
    client = TestClient(app)
    for _ in range(2):
        client.get("/x")
    remove = events.decisions.add(heard.append)
    try:
        client.get("/x")
    finally:
        remove()
    client.get("/x")
    assert len(heard) == 1


def test_settings_that_are_made_anew_are_used(monkeypatch):
    app, limiter = FastAPI(), PathRateLimiter(9, 60)
    route(app, "/x", limiter)
    client = TestClient(app)
    assert [told(client.get("/x")) for _ in range(2)] == [(200, 8), (200, 7)]
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", "memory://another")
    reset_default_settings()
    assert [told(client.get("/x")) for _ in range(2)] == [(200, 8), (200, 7)]


def test_limiter_of_two_applications_counts_in_the_store_of_each():
    limiter, clients = PathRateLimiter(9, 60), []
    for _ in range(2):
        app = FastAPI()
        route(app, "/x", limiter)
        install(app, store=MemoryStore())
        clients.append(TestClient(app))
    assert [told(client.get("/x")) for client in clients * 2] == [(200, 8), (200, 8), (200, 7), (200, 7)]


def test_limiter_behind_another_dependency_is_decided_too():
    app = FastAPI()

    def authenticate() -> None:
        """Stand between two limiters, which so are not decided in one call."""

    dependencies = [PathRateLimiter(5, 60), authenticate, PathRateLimiter(3, 3600), PathRateLimiter(5, 60)]
    route(app, "/x", *dependencies)
    client = TestClient(app)
    assert [told(client.get("/x")) for _ in range(4)] == [(200, 2), (200, 1), (200, 0), (429, 0)]


def test_store_that_cannot_tell_is_answered_by_503_where_it_is_closed(store, keys):
    app = FastAPI()
    route(app, "/x", PathRateLimiter(5, 60, on_outage="closed"))
    install(app)
    client = TestClient(app)
    assert [told(client.get("/x")) for _ in range(2)] == [(200, 4), (200, 3)]
    (key,) = keys()
    store.execute("DEL", key)
    store.execute("ZADD", key, 1, "x")
    response = client.get("/x")
    assert told(response) == (503, None)
    assert response.headers["content-type"] == "application/problem+json"


def test_headers_of_an_endpoint_are_replaced_and_not_repeated():
    app = FastAPI()

    def claim(response: decisions.Response) -> None:
        response.headers["RateLimit-Remaining"] = "77"

    route(app, "/x", claim, PathRateLimiter(5, 60))
    client = TestClient(app)
    for left in ("4", "3"):
        assert client.get("/x").headers.get_list("RateLimit-Remaining") == [left]
