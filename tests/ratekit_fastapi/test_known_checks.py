"""Checks that are kept for later requests of a peer to a route: only where nothing else makes a difference."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.testclient import TestClient

from ratekit import Limit, Policy
from ratekit.core import modes
from ratekit_fastapi import PathRateLimiter, install

BY = [None, "ip"]


def limited(limiter: PathRateLimiter, path: str = "/x") -> FastAPI:
    app = FastAPI()
    app.get(path, dependencies=[Depends(limiter)])(lambda: "ok")
    return app


def client_of(app: FastAPI, address: str = "192.0.2.1") -> TestClient:
    return TestClient(app, client=(address, 1))


def statuses(client: TestClient, path: str, times: int = 3, **headers: str) -> list[int]:
    return [client.get(path, headers=headers).status_code for _ in range(times)]


@pytest.mark.parametrize("by", BY)
def test_one_application_in_several_places_has_a_counter_for_each(by):
    inner = limited(PathRateLimiter(2, 60, by=by))
    app = FastAPI()
    install(inner)  # so that all places have the same settings
    app.mount("/a", inner)
    app.mount("/b", inner)
    clients = [(client_of(app), "/a/x"), (client_of(inner), "/x"), (client_of(app), "/b/x")]
    assert [statuses(client, path) for client, path in clients] == [[200, 200, 429]] * 3


@pytest.mark.parametrize("by", BY)
def test_one_router_in_several_places_has_a_counter_for_each(by):
    router, app = APIRouter(), FastAPI()
    router.get("/x", dependencies=[Depends(PathRateLimiter(2, 60, by=by))])(lambda: "ok")
    install(app)
    for prefix in ("/a", "/b"):
        app.include_router(router, prefix=prefix)
    client = client_of(app)
    assert [statuses(client, path) for path in ("/a/x", "/b/x")] == [[200, 200, 429]] * 2


@pytest.mark.parametrize("by", BY)
def test_one_limiter_on_several_routes_has_a_counter_for_each(by):
    app, limiter = FastAPI(), PathRateLimiter(2, 60, by=by)
    for path in ("/x", "/y"):
        app.get(path, dependencies=[Depends(limiter)])(lambda: "ok")
        app.post(path, dependencies=[Depends(limiter)])(lambda: "ok")
    client = client_of(app)
    assert [statuses(client, path) for path in ("/x", "/y")] == [[200, 200, 429]] * 2
    assert [client.post("/x").status_code for _ in range(3)] == [200, 200, 429]


def test_peers_count_apart_by_address_and_together_without():
    for by, second in (("ip", [200, 200, 429]), (None, [429] * 3)):
        app = limited(PathRateLimiter(2, 60, by=by), f"/{by}")
        first, other = (client_of(app, f"192.0.2.{number}") for number in (1, 2))
        assert statuses(first, f"/{by}") == [200, 200, 429]
        assert statuses(other, f"/{by}") == second


def test_clients_of_a_trusted_proxy_count_apart():
    app = limited(PathRateLimiter(2, 60, by="ip"))
    install(app, trusted_hops=1)
    client = client_of(app, "10.0.0.1")
    for address in ("192.0.2.1", "192.0.2.2"):
        assert statuses(client, "/x", **{"X-Forwarded-For": address}) == [200, 200, 429]


@pytest.mark.parametrize("by", BY)
def test_a_limiter_that_is_changed_decides_by_what_it_has_become(by):
    limiter = PathRateLimiter(2, 60, by=by)
    client = client_of(limited(limiter))
    assert statuses(client, "/x") == [200, 200, 429]
    limiter.policy = Policy("other", [Limit(4, 60)])
    assert statuses(client, "/x") == [200, 200, 429]
    limiter.cost = 2
    limiter.policy = Policy("another", [Limit(4, 90)])
    assert statuses(client, "/x") == [200, 200, 429]


@pytest.mark.parametrize("by", BY)
def test_the_mode_is_read_for_every_request(by, monkeypatch):
    client = client_of(limited(PathRateLimiter(2, 60, by=by)))
    assert statuses(client, "/x") == [200, 200, 429]
    for mode, status in (("monitor", 200), ("off", 200), ("on", 429)):
        monkeypatch.setenv(modes.MODE_VARIABLE, mode)
        assert statuses(client, "/x") == [status] * 3


@pytest.mark.parametrize("by", BY)
def test_two_applications_with_one_limiter_count_in_their_own_stores(by):
    limiter = PathRateLimiter(2, 60, by=by)
    for prefix in ("first", "second"):
        app = limited(limiter)
        install(app, prefix=prefix)
        assert statuses(client_of(app), "/x") == [200, 200, 429]


def test_a_subclass_is_asked_about_every_request():
    class ByTurn(PathRateLimiter):
        turns = 0

        def subject(self, request):
            self.turns += 1
            return f"turn {self.turns % 2}"

    assert statuses(client_of(limited(ByTurn(1, 60))), "/x") == [200, 200, 429]
