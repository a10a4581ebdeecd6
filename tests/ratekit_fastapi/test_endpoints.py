"""What is limited: the template of the route with all its prefixes, for HTTP and for WebSocket."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, Depends, FastAPI, Response, WebSocket
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount
from starlette.testclient import TestClient, WebSocketDenialResponse

from ratekit.testing import assert_admits
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, RateLimitExceeded, apply_rate_limit, install


def nothing():
    return {}


def installed(**options) -> FastAPI:
    app = FastAPI()
    install(app, **options)
    return app


def items_router(limiter) -> APIRouter:
    router = APIRouter()

    @router.get("/{number}", dependencies=[Depends(limiter)])
    async def item(number: int):
        return {"number": number}

    return router


def test_paths_of_one_template_share_one_bucket(keys, ratekit_clock):
    app = installed()
    app.include_router(items_router(PathRateLimiter(3, 60)), prefix="/i")
    client = TestClient(app)
    assert [client.get(f"/i/{number}").status_code for number in range(5)] == [200, 200, 200, 429, 429]
    assert keys() == ["ratelimit:/i/%7Bnumber%7D:{*/i/%7Bnumber%7D}:60s"]


def test_included_router_is_limited_and_knows_its_prefix(keys, ratekit_clock):
    app = installed()
    router = APIRouter(prefix="/items", dependencies=[Depends(PathRateLimiter(1, 60))])
    router.get("/all")(nothing)
    app.include_router(router, prefix="/v1")
    client = TestClient(app)
    assert_admits(lambda: client.get("/v1/items/all"), exactly=1)
    assert keys() == ["ratelimit:/v1/items/all:{*/v1/items/all}:60s"]


def test_router_included_twice_has_two_buckets(keys, ratekit_clock):
    app = installed()
    router = items_router(PathRateLimiter(2, 60))
    for prefix in ("/v1", "/v2"):
        app.include_router(router, prefix=prefix)
    client = TestClient(app)
    for prefix in ("/v1", "/v2"):
        assert_admits(lambda prefix=prefix: client.get(f"{prefix}/7"), exactly=2)
    assert len(keys()) == 2


def test_prefix_with_a_parameter_is_one_bucket(keys, ratekit_clock):
    app = installed()
    app.include_router(items_router(PathRateLimiter(2, 60)), prefix="/t/{tenant}")
    client = TestClient(app)
    assert [client.get(f"/t/{tenant}/1").status_code for tenant in ("a", "b", "c")] == [200, 200, 429]
    assert len(keys()) == 1


def test_nested_routers_add_up_their_prefixes(keys, ratekit_clock):
    inner = items_router(PathRateLimiter(2, 60))
    middle = APIRouter(prefix="/middle")
    middle.include_router(inner, prefix="/inner")
    outer = APIRouter()
    outer.include_router(middle, prefix="/outer")
    app = installed()
    app.include_router(outer, prefix="/api")
    app.include_router(middle)
    client = TestClient(app)
    assert_admits(lambda: client.get("/api/outer/middle/inner/1"), exactly=2)
    assert_admits(lambda: client.get("/middle/inner/1"), exactly=2)
    templates = {key.partition(":{")[0] for key in keys()}
    assert templates == {
        "ratelimit:/api/outer/middle/inner/%7Bnumber%7D",
        "ratelimit:/middle/inner/%7Bnumber%7D",
    }


def test_limiter_of_include_router_counts(ratekit_clock):
    app = installed()
    router = APIRouter()
    router.get("/a")(nothing)
    app.include_router(router, prefix="/free")
    app.include_router(router, prefix="/limited", dependencies=[Depends(PathRateLimiter(1, 60))])
    client = TestClient(app)
    assert [client.get("/free/a").status_code for _ in range(3)] == [200, 200, 200]
    assert_admits(lambda: client.get("/limited/a"), exactly=1)


def test_limiter_of_a_nested_router_counts(ratekit_clock):
    inner = APIRouter()
    inner.get("/a")(nothing)
    outer = APIRouter(dependencies=[Depends(PathRateLimiter(2, 60))])
    outer.include_router(inner, prefix="/in", dependencies=[Depends(PathRateLimiter(1, 3600))])
    app = installed()
    app.include_router(outer)
    client = TestClient(app)
    assert_admits(lambda: client.get("/in/a"), exactly=1)


def mounted(*paths: str, inner_limiter=None) -> FastAPI:
    app = installed(identify=lambda request: ("acme", "p1"))
    for path in paths:
        inner = FastAPI()
        inner.get("/x", dependencies=[Depends(inner_limiter or PathRateLimiter(2, 60))])(nothing)
        app.mount(path, inner)
    return app


def test_mounted_app_is_limited_by_the_settings_of_the_app_around_it(store, ratekit_clock):
    app = mounted("/a", inner_limiter=ProjectRateLimiter(2, 60))
    client = TestClient(app)
    assert_admits(lambda: client.get("/a/x"), exactly=2)
    assert all(b"{acme:p1}" in key for key in store.execute("KEYS", "ratelimit:"))


def test_mounted_apps_have_buckets_of_their_own(ratekit_clock):
    """Both know their route as "/x"; the endpoints are /a/x and /b/x."""
    client = TestClient(mounted("/a", "/b"))
    assert_admits(lambda: client.get("/a/x"), exactly=2)
    assert_admits(lambda: client.get("/b/x"), exactly=2)


def test_mounted_route_does_not_share_the_bucket_of_an_outer_route(ratekit_clock):
    app = mounted("/a")
    app.get("/x", dependencies=[Depends(PathRateLimiter(2, 60))])(nothing)
    client = TestClient(app)
    assert_admits(lambda: client.get("/a/x"), exactly=2)
    assert_admits(lambda: client.get("/x"), exactly=2)


def test_mount_with_a_parameter_is_one_bucket(keys, ratekit_clock):
    client = TestClient(mounted("/t/{tenant}"))
    assert [client.get(f"/t/{tenant}/x").status_code for tenant in ("a", "b", "c")] == [200, 200, 429]
    assert len(keys()) == 1


SPELLINGS = {
    "/{tenant:int}": ["/1/x", "/01/x", "/001/x", "/2/x"],
    "/1/{tenant:int}": ["/1/1/x", "/1/01/x"],
    "/{price:float}": ["/1.5/x", "/1.50/x", "/01.5/x"],
    "/{id:uuid}": ["/12345678-1234-1234-1234-123456789abc/x", "/12345678-1234-1234-1234-123456789ABC/x"],
    "/v{major}-{minor}": ["/v1-2/x", "/v3-4/x"],
    "/{rest:path}/in": ["/a/in/x", "/a/b/in/x", "/c/in/x"],
}


@pytest.mark.parametrize("mount", SPELLINGS)
def test_typed_mount_is_one_endpoint_whatever_the_spelling(mount, keys, ratekit_clock):
    client = TestClient(mounted(mount, inner_limiter=PathRateLimiter(1, 60, by="ip")))
    answers = [client.get(path).status_code for path in SPELLINGS[mount]]
    assert answers == [200] + [429] * (len(answers) - 1)
    assert len(keys()) == 1


def test_mount_whose_parameter_has_the_name_of_a_route_s_is_one_endpoint(keys, ratekit_clock):
    inner = FastAPI()

    @inner.get("/items/{id}", dependencies=[Depends(PathRateLimiter(2, 60))])
    def item(id: int):  # noqa: A002
        return id

    app = installed()
    app.mount("/{id}", inner)
    client = TestClient(app)
    assert [client.get(f"/{shop}/items/7").status_code for shop in ("a", "b", "c")] == [200, 200, 429]
    assert keys() == ["ratelimit:/%7Bid%7D/items/%7Bid%7D:{*/%7Bid%7D/items/%7Bid%7D}:60s"]


class PassOn:
    """A middleware around an application, which hides its routes."""

    def __init__(self, app) -> None:
        self._hidden = app

    async def __call__(self, scope, receive, send) -> None:
        await self._hidden(scope, receive, send)


@pytest.mark.parametrize("around", [lambda app: app, PassOn, CORSMiddleware], ids=["plain", "hidden", "middleware"])
def test_mounts_in_mounts_are_one_endpoint(around, keys, ratekit_clock):
    inner = FastAPI()
    inner.get("/x/{n}", dependencies=[Depends(PathRateLimiter(2, 60))])(nothing)
    middle = FastAPI()
    middle.mount("/m/{b:int}", around(inner))
    app = installed()
    app.mount("/{a:int}", around(middle))
    client = TestClient(app)
    paths = ["/1/m/2/x/3", "/01/m/2/x/4", "/1/m/02/x/5", "/9/m/9/x/6"]
    assert [client.get(path).status_code for path in paths] == [200, 200, 429, 429]
    assert len(keys()) == 1
    assert all(name in keys()[0] for name in ("%7Ba%7D", "%7Bb%7D", "%7Bn%7D"))


def test_mount_behind_a_host_is_one_endpoint(keys, ratekit_clock):
    inner = FastAPI()
    inner.get("/x", dependencies=[Depends(PathRateLimiter(2, 60))])(nothing)
    shop = Starlette(routes=[Mount("/{n:int}", inner)])
    app = installed()
    app.host("{shop}.example.org", shop)
    client = TestClient(app, base_url="http://a.example.org")
    assert [client.get(path).status_code for path in ("/1/x", "/01/x", "/001/x")] == [200, 200, 429]
    assert keys() == ["ratelimit:/%7Bn%7D/x:{*/%7Bn%7D/x}:60s"]


def test_typed_mount_behind_a_root_path_is_the_same_endpoint(keys, ratekit_clock):
    app = mounted("/{tenant:int}")
    paths = [("/1/x", ""), ("/behind/01/x", "/behind"), ("/behind/2/x", "/behind")]
    answers = [TestClient(app, root_path=root).get(path).status_code for path, root in paths]
    assert answers == [200, 200, 429]
    assert len(keys()) == 1


def test_mounted_app_that_is_installed_has_its_own_settings(store, ratekit_clock):
    inner = installed(prefix="inner")
    inner.get("/x", dependencies=[Depends(PathRateLimiter(1, 60))])(nothing)
    app = installed(prefix="outer")
    app.mount("/a", inner)
    client = TestClient(app)
    assert_admits(lambda: client.get("/a/x"), exactly=1)
    assert len(store.execute("KEYS", "inner:")) == 1
    assert store.execute("KEYS", "outer:") == []


def test_app_behind_a_root_path_has_the_same_endpoint(keys, ratekit_clock):
    app = installed()
    app.get("/x", dependencies=[Depends(PathRateLimiter(2, 60))])(nothing)
    TestClient(app).get("/x")
    TestClient(app, root_path="/behind/proxy").get("/x")
    assert keys() == ["ratelimit:/x:{*/x}:60s"]


def test_limiter_outside_of_routing_has_an_endpoint_that_is_no_path(ratekit_clock):
    from ratekit_fastapi.routes import endpoint_of

    assert endpoint_of({"type": "http", "path": "/scan/1"}) == "unmatched"


def websocket_app(*limiters, **options) -> FastAPI:
    app = installed(**options)

    @app.websocket("/ws/{room}", dependencies=[Depends(limiter) for limiter in limiters])
    async def ws(websocket: WebSocket, room: str):
        await websocket.accept()
        await websocket.send_text(room)
        await websocket.close()

    return app


def connect(client: TestClient, path: str) -> str:
    with client.websocket_connect(path) as socket:
        return socket.receive_text()


def test_websocket_is_refused_by_a_429_before_it_is_accepted(keys, ratekit_clock):
    client = TestClient(websocket_app(PathRateLimiter(2, 60)))
    assert [connect(client, f"/ws/{room}") for room in ("a", "b")] == ["a", "b"]
    with pytest.raises(WebSocketDenialResponse) as denied:
        connect(client, "/ws/c")
    answer = denied.value
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "60"
    assert answer.headers["RateLimit-Remaining"] == "0"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["violated-policies"] == ["minute"]
    assert keys() == ["ratelimit:/ws/%7Broom%7D:{*/ws/%7Broom%7D}:60s"]


def test_websocket_is_refused_without_install_too(ratekit_clock):
    app = FastAPI()

    @app.websocket("/ws", dependencies=[Depends(PathRateLimiter(1, 60))])
    async def ws(websocket: WebSocket):
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    client = TestClient(app)
    assert connect(client, "/ws") == "hello"
    with pytest.raises(WebSocketDenialResponse) as denied:
        connect(client, "/ws")
    assert (denied.value.status_code, denied.value.headers["Retry-After"]) == (429, "60")


def test_one_limiter_serves_http_and_websocket(ratekit_clock):
    limiter = PathRateLimiter(2, 60, endpoint="rooms")
    app = websocket_app(limiter)
    app.get("/rooms", dependencies=[Depends(limiter)])(nothing)
    client = TestClient(app)
    assert connect(client, "/ws/a") == "a"
    assert client.get("/rooms").status_code == 200
    assert client.get("/rooms").status_code == 429
    with pytest.raises(WebSocketDenialResponse):
        connect(client, "/ws/a")


def test_websocket_of_a_project_is_limited(ratekit_clock):
    client = TestClient(websocket_app(ProjectRateLimiter(1, 60), identify=lambda connection: connection.headers["x-user"]))
    for user in ("a", "b"):
        with client.websocket_connect("/ws/r", headers={"X-User": user}) as socket:
            assert socket.receive_text() == "r"
        with pytest.raises(WebSocketDenialResponse), client.websocket_connect("/ws/r", headers={"X-User": user}):
            pass


def test_websocket_of_an_included_router_is_limited(ratekit_clock):
    router = APIRouter(dependencies=[Depends(PathRateLimiter(1, 60))])

    @router.websocket("/ws")
    async def ws(websocket: WebSocket):
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.close()

    app = installed()
    for prefix in ("/v1", "/v2"):
        app.include_router(router, prefix=prefix)
    client = TestClient(app)
    for prefix in ("/v1", "/v2"):
        assert connect(client, f"{prefix}/ws") == "hello"
        with pytest.raises(WebSocketDenialResponse):
            connect(client, f"{prefix}/ws")


def test_websocket_without_a_project_is_refused_by_a_401(ratekit_clock):
    client = TestClient(websocket_app(ProjectRateLimiter(1, 60, anonymous="refuse")))
    with pytest.raises(WebSocketDenialResponse) as denied:
        connect(client, "/ws/a")
    assert denied.value.status_code == 401


def test_websocket_passes_while_monitoring(monkeypatch, ratekit_clock):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    client = TestClient(websocket_app(PathRateLimiter(1, 60)))
    assert [connect(client, "/ws/a") for _ in range(3)] == ["a", "a", "a"]


def test_websocket_is_refused_by_a_503_when_the_store_is_away(ratekit_clock):
    from support.servers import free_port

    app = websocket_app(PathRateLimiter(1, 60, on_outage="closed"), store=f"redis://127.0.0.1:{free_port()}")
    with TestClient(app) as client, pytest.raises(WebSocketDenialResponse) as denied:
        connect(client, "/ws/a")
    assert denied.value.status_code == 503


def test_router_in_which_an_app_is_mounted_is_limited(keys, ratekit_clock):
    inner = FastAPI()
    inner.get("/x", dependencies=[Depends(PathRateLimiter(1, 60))])(nothing)
    router = APIRouter()
    router.mount("/sub", inner)
    app = installed()
    app.include_router(router, prefix="/v1")
    client = TestClient(app)
    if client.get("/v1/sub/x").status_code == 404:
        pytest.skip("this FastAPI drops the mounts of a router that is included")
    assert client.get("/v1/sub/x").status_code == 429
    assert "/x" in keys()[0]


@pytest.mark.parametrize("of", ["limiter", "apply"])
def test_refused_message_of_a_websocket_gives_nothing_back_for_those_before(of, ratekit_store):
    app = FastAPI()
    install(app)
    limiter = PathRateLimiter(2, 3600, endpoint="/messages", by="ip")

    @app.websocket("/ws")
    async def ws(websocket: WebSocket):
        await websocket.accept()
        for _ in range(6):
            try:
                if of == "limiter":
                    await limiter(websocket, Response())
                else:
                    await apply_rate_limit(websocket, Response(), max_requests=2, expiry=3600, subject="ann")
            except RateLimitExceeded:
                await websocket.send_text("refused")
            else:
                await websocket.send_text("passed")
        await websocket.close()

    with TestClient(app).websocket_connect("/ws") as socket:
        assert [socket.receive_text() for _ in range(6)] == ["passed"] * 2 + ["refused"] * 4
