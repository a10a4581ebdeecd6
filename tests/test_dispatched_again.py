"""A request that is dispatched again, or copied for a batch, is decided again: in every front around an application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request, Response
from flask import Flask
from starlette.applications import Starlette

from ratekit import asgi, flask, wsgi
from ratekit.stores.memory import MemoryStore
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, apply_rate_limit, install
from ratekit_fastapi.settings import reset_default_settings

PEER = "192.0.2.7"
State = dict[str, Any]
Front = Callable[[State], int]  # answers a request, and returns the status


async def asgi_app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def wsgi_app(environ, start_response):
    start_response("200 OK", [])
    return [b""]


def asked_asgi(app: Any) -> Front:
    def ask(state: State) -> int:
        sent = []

        async def receive() -> State:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: State) -> None:
            sent.append(message)

        asyncio.run(app(state, receive, send))
        status: int = sent[0]["status"]
        return status

    return ask


def asked_wsgi(app: Any) -> Front:
    def ask(state: State) -> int:
        statuses = []
        list(app(state, lambda status, headers, error=None: statuses.append(int(status[:3]))))
        return statuses[0]

    return ask


def scope() -> State:
    return {
        "type": "http", "method": "GET", "path": "/", "raw_path": b"/", "root_path": "", "query_string": b"",
        "headers": [], "client": (PEER, 1), "http_version": "1.1", "scheme": "http", "server": ("testserver", 80),
    }  # fmt: skip


def environ() -> State:
    return {
        "REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": PEER, "SERVER_NAME": "testserver", "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http", "wsgi.input": None,
    }  # fmt: skip


def asgi_front() -> Front:
    return asked_asgi(asgi.RateLimitMiddleware(asgi_app, store=MemoryStore(), default="2/min"))


def two_asgi_fronts() -> Front:
    store = MemoryStore()
    inner = asgi.RateLimitMiddleware(asgi_app, store=store, default="2/min")
    return asked_asgi(asgi.RateLimitMiddleware(inner, store=store, default="2/min"))


def wsgi_front() -> Front:
    return asked_wsgi(wsgi.RateLimitMiddleware(wsgi_app, store=MemoryStore(), default="2/min"))


def fastapi_front() -> Front:
    app = FastAPI()
    install(app, store=MemoryStore())
    app.get("/", dependencies=[Depends(PathRateLimiter(limits="2/min", by="ip"))])(lambda: None)
    return asked_asgi(app)


@pytest.fixture
def default_store(ratekit_store: MemoryStore) -> Iterator[None]:
    """Give what is installed nowhere a store that is empty."""
    reset_default_settings()
    yield
    reset_default_settings()


def fastapi_alone() -> Front:
    app = FastAPI()
    app.get("/", dependencies=[Depends(PathRateLimiter(limits="2/min", by="ip"))])(lambda: None)
    return asked_asgi(app)


def fastapi_behind_asgi() -> Front:
    app = FastAPI()
    install(app, store=MemoryStore())
    app.get("/", dependencies=[Depends(PathRateLimiter(limits="2/min", by="ip"))])(lambda: None)
    return asked_asgi(asgi.RateLimitMiddleware(app, store=MemoryStore(), default="50/min"))


def flask_rule() -> Front:
    app = Flask("dispatched")
    flask.install(app, store=MemoryStore(), default={"limits": "2/min", "by": "ip"})
    app.get("/")(lambda: "")
    return asked_wsgi(app)


def flask_view() -> Front:
    app = Flask("dispatched")
    flask.install(app, store=MemoryStore())
    app.get("/")(flask.rate_limit(limits="2/min", by="ip")(lambda: ""))
    return asked_wsgi(app)


FRONTS = {
    "asgi": (asgi_front, scope),
    "two asgi": (two_asgi_fronts, scope),
    "wsgi": (wsgi_front, environ),
    "fastapi": (fastapi_front, scope),
    "fastapi without install": (fastapi_alone, scope),
    "fastapi behind asgi": (fastapi_behind_asgi, scope),
    "flask rule": (flask_rule, environ),
    "flask view": (flask_view, environ),
}


@pytest.fixture(params=FRONTS, ids=str)
def front(request: pytest.FixtureRequest, default_store: None) -> tuple[Front, State]:
    make, state = FRONTS[request.param]
    return make(), state()


def test_the_same_request_is_charged_for_each_dispatch(front: tuple[Front, State]) -> None:
    ask, state = front
    assert [ask(state) for _ in range(5)] == [200, 200, 429, 429, 429]


def test_copies_of_a_request_that_was_decided_are_charged_each(front: tuple[Front, State]) -> None:
    ask, state = front
    assert [ask(state), *(ask(dict(state)) for _ in range(4))] == [200, 200, 429, 429, 429]


def test_a_batch_view_cannot_multiply_what_a_client_may_ask_for() -> None:
    statuses = []

    async def app(scope: State, receive: Any, send: Any) -> None:
        if scope["path"] == "/batch":
            for _ in range(4):

                async def note(message: State) -> None:
                    statuses.append(message.get("status"))

                await middleware({**scope, "path": "/x"}, receive, note)
        await asgi_app(scope, receive, send)

    middleware = asgi.RateLimitMiddleware(
        app, store=MemoryStore(), default=None, rules={"/x": "2/min", "/batch": {"limits": "9/min", "counter": "batch"}}
    )
    ask = asked_asgi(middleware)
    assert ask(scope() | {"path": "/batch"}) == 200
    assert [status for status in statuses if status is not None] == [200, 200, 429, 429]
    assert ask(scope() | {"path": "/x"}) == 429


def test_a_mounted_application_is_no_other_dispatch() -> None:
    inner = FastAPI()
    inner.get("/", dependencies=[Depends(PathRateLimiter(limits="2/min", by="ip"))])(lambda: None)
    app = Starlette()
    app.mount("/v1", inner)
    install(app, store=MemoryStore())
    ask = asked_asgi(app)
    assert [ask(scope() | {"path": "/v1/"}) for _ in range(3)] == [200, 200, 429]


def batch_app(paths: list[str], statuses: list[int]) -> FastAPI:
    """Make an application whose /batch hands copies of its request to the router, past all middleware of the application."""
    app = FastAPI()

    async def note(message: State) -> None:
        if "status" in message:
            statuses.append(message["status"])

    @app.get("/batch", dependencies=[Depends(PathRateLimiter(limits="9/min", by="ip"))])
    async def batch(request: Request) -> None:
        for path in paths:
            await app.router({**request.scope, "path": path}, request.receive, note)

    return app


@pytest.mark.parametrize("installed", [True, False])
def test_a_batch_of_sub_requests_within_an_application_is_charged_for_each(default_store: None, installed: bool) -> None:
    statuses: list[int] = []
    app = batch_app(["/x"] * 4, statuses)
    app.get("/x", dependencies=[Depends(PathRateLimiter(limits="2/min", by="ip"))])(lambda: None)
    if installed:
        install(app, store=MemoryStore())
    ask = asked_asgi(app)
    assert ask(scope() | {"path": "/batch"}) == 200
    assert statuses == [200, 200, 429, 429]
    assert ask(scope() | {"path": "/x"}) == 429


def test_a_sub_request_that_is_refused_gives_back_nothing_of_one_that_was_served(default_store: None) -> None:
    statuses: list[int] = []
    app = batch_app(["/x", "/none", "/x", "/none"], statuses)

    @app.get("/x")
    async def x(request: Request, response: Response) -> None:
        await apply_rate_limit(request, response, max_requests=2, expiry=60, subject="user:1", endpoint="/x")

    @app.get("/none")
    async def none(request: Request, response: Response) -> None:
        await apply_rate_limit(request, response, max_requests=1, expiry=60, increment_amount=2, subject="user:1")

    ask = asked_asgi(app)
    assert ask(scope() | {"path": "/batch"}) == 200
    assert statuses == [200, 429, 200, 429]
    assert ask(scope() | {"path": "/x"}) == 429


@pytest.mark.parametrize("through_middleware", [True, False])
def test_each_sub_request_is_limited_for_the_project_that_it_names(through_middleware: bool) -> None:
    statuses: list[int] = []
    app = FastAPI()
    install(app, store=MemoryStore(), identify=lambda request: request.headers.get("x-project"))
    app.get("/x", dependencies=[Depends(ProjectRateLimiter(limits="1/min"))])(lambda: None)
    by_project = ProjectRateLimiter(limits="9/min")

    async def note(message: State) -> None:
        if "status" in message:
            statuses.append(message["status"])

    @app.get("/batch", dependencies=[Depends(by_project)])
    async def batch(request: Request) -> None:
        for project in (b"org:a", b"org:b", b"org:a"):
            copy = {**request.scope, "path": "/x", "headers": [(b"x-project", project)]}
            await (app if through_middleware else app.router)(copy, request.receive, note)

    asked_asgi(app)(scope() | {"path": "/batch", "headers": [(b"x-project", b"org:c")]})
    assert statuses == [200, 200, 429]
