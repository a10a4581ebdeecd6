"""Errors of limiters that an application calls itself: behind every front they are the same 429 and 503 as its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import flask
import httpx2
import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from werkzeug.test import Client

import ratekit
from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter, RateLimitExceeded, asgi, wsgi
from ratekit.core.errors import RatekitError, RateLimitUnavailable
from ratekit_fastapi import PathRateLimiter, install

SLOT = Limit(1, 60, algorithm="concurrency", name="slot")
NOWHERE = "redis://127.0.0.1:1"


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def problem(self) -> Any:
        return json.loads(self.body)


async def fail(path: str) -> None:
    """Use a limiter as an application does: its slots are taken, or its store is away."""
    limiter = AsyncRateLimiter("memory://own") if path == "/slot" else AsyncRateLimiter(NOWHERE, on_outage="closed")
    if path == "/slot":
        async with limiter.slot(SLOT, "ann", endpoint="e"), limiter.slot(SLOT, "ann", endpoint="e"):
            pass
    elif path == "/store":
        await limiter.check(Limit(1, 60), "ann", endpoint="e")
    else:
        raise KeyError(path)


def fail_waiting(path: str) -> None:
    limiter = RateLimiter("memory://own") if path == "/slot" else RateLimiter(NOWHERE, on_outage="closed")
    if path == "/slot":
        with limiter.slot(SLOT, "ann", endpoint="e"), limiter.slot(SLOT, "ann", endpoint="e"):
            pass
    elif path == "/store":
        limiter.check(Limit(1, 60), "ann", endpoint="e")
    else:
        raise KeyError(path)


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    await fail(scope["path"])


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    fail_waiting(environ["PATH_INFO"])
    return []


def careful_wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    """An application that answers its errors itself, as the specification of WSGI shows it."""
    try:
        fail_waiting(environ["PATH_INFO"])
    except Exception:  # noqa: BLE001
        import sys

        start_response("500 Internal Server Error", [("Content-Type", "text/plain")], sys.exc_info())
    return [b"sorry"]


def fastapi_app(**arguments: Any) -> FastAPI:
    app = FastAPI(**arguments)

    @app.get("/{what}")
    async def waiting(what: str) -> None:
        await fail(f"/{what}")

    return app


def starlette_app() -> Starlette:
    async def waiting(request: Any) -> None:
        await fail("/" + request.path_params["what"])

    return Starlette(routes=[Route("/{what}", waiting)])


def flask_app() -> flask.Flask:
    app = flask.Flask("errors")
    app.add_url_rule("/<what>", view_func=lambda what: fail_waiting(f"/{what}") or "ok")
    return app


def installed(app: Any) -> Any:
    install(app)
    return app


def with_middleware(app: Any) -> Any:
    app.add_middleware(asgi.RateLimitMiddleware)
    return app


def mounted(app: Any, inner: Any) -> Any:
    app.mount("", inner)
    return app


ASGI: dict[str, Callable[[], Any]] = {
    "asgi": lambda: asgi.RateLimitMiddleware(asgi_app),
    "asgi, exempt": lambda: asgi.RateLimitMiddleware(asgi_app, exempt=["/{rest:path}"]),
    "asgi, off": lambda: asgi.RateLimitMiddleware(asgi_app, mode="off"),
    "asgi around FastAPI": lambda: asgi.RateLimitMiddleware(fastapi_app()),
    "asgi around FastAPI that debugs": lambda: asgi.RateLimitMiddleware(fastapi_app(debug=True)),
    "asgi around Starlette": lambda: asgi.RateLimitMiddleware(starlette_app()),
    "asgi in FastAPI": lambda: with_middleware(fastapi_app()),
    "asgi around a mount": lambda: asgi.RateLimitMiddleware(Starlette(routes=[Mount("", app=fastapi_app())])),
    "FastAPI": lambda: installed(fastapi_app()),
    "Starlette": lambda: installed(starlette_app()),
    "mounted in FastAPI": lambda: mounted(installed(FastAPI()), fastapi_app()),
    "raw in FastAPI": lambda: mounted(installed(FastAPI()), asgi_app),
    "asgi around installed": lambda: asgi.RateLimitMiddleware(installed(fastapi_app())),
}
WSGI: dict[str, Callable[[], Any]] = {
    "wsgi": lambda: wsgi.RateLimitMiddleware(wsgi_app),
    "wsgi, exempt": lambda: wsgi.RateLimitMiddleware(wsgi_app, exempt=["/{rest:path}"]),
    "wsgi, off": lambda: wsgi.RateLimitMiddleware(wsgi_app, mode="off"),
    "careful wsgi": lambda: wsgi.RateLimitMiddleware(careful_wsgi_app),
    "Flask": lambda: wsgi.RateLimitMiddleware(flask_app()),
    "Flask's wsgi_app": lambda: wsgi.RateLimitMiddleware(flask_app().wsgi_app),
}


@pytest.fixture(params=[*ASGI, *WSGI])
def get(request, ratekit_store):
    """A function that asks the application of each front for a path."""
    if request.param in WSGI:
        app = WSGI[request.param]()

        def ask(path: str) -> Answer:
            answer = Client(app).get(path)
            return Answer(answer.status_code, answer.headers, answer.data)
    else:
        client = TestClient(ASGI[request.param](), raise_server_exceptions=False)

        def ask(path: str) -> Answer:
            answer = client.get(path)
            return Answer(answer.status_code, answer.headers, answer.content)

    return ask


def test_slot_that_is_taken_is_the_same_429(get):
    answer = get("/slot")
    assert (answer.status, answer.headers["Content-Type"]) == (429, "application/problem+json")
    assert answer.headers["Retry-After"] == "60"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.problem["violated-policies"] == ["slot"]


def test_store_that_is_away_is_the_same_503(get):
    answer = get("/store")
    assert (answer.status, answer.headers["Content-Type"]) == (503, "application/problem+json")
    assert int(answer.headers["Retry-After"]) >= 1
    assert "127.0.0.1" not in answer.body.decode()


@pytest.mark.parametrize("of", [name for name in ASGI if "FastAPI" in name or "Starlette" in name])
def test_other_errors_of_the_application_are_a_500_as_before(of, ratekit_store):
    assert TestClient(ASGI[of](), raise_server_exceptions=False).get("/bug").status_code == 500


def test_other_errors_of_flask_are_a_500_as_before(ratekit_store):
    assert Client(WSGI["Flask"]()).get("/bug").status_code == 500


def test_flask_answers_in_the_way_that_it_was_told_before_and_after():
    for late in (False, True):
        app = flask_app()
        if not late:
            app.register_error_handler(RateLimitExceeded, lambda error: ("mine", 420))
        front = wsgi.RateLimitMiddleware(app)
        if late:
            app.register_error_handler(RateLimitExceeded, lambda error: ("mine", 420))
        assert Client(front).get("/slot").status_code == 420


def test_flask_that_has_served_a_request_can_still_be_put_behind(ratekit_store):
    app = flask_app()
    app.test_client().get("/bug")
    assert Client(wsgi.RateLimitMiddleware(app)).get("/bug").status_code == 500


SHARED = Policy("shared", [Limit(10, 60, name="count"), Limit(5, 60, algorithm="concurrency", name="slots")])


@pytest.mark.parametrize("of", ["asgi", "wsgi"])
def test_refusal_by_the_application_gives_back_counts_beside_slots(of, ratekit_store):
    options: Any = {"default": SHARED, "by": lambda request: "ann"}
    if of == "asgi":
        client: Any = TestClient(asgi.RateLimitMiddleware(fastapi_app(), **options), raise_server_exceptions=False)
    else:
        client = Client(wsgi.RateLimitMiddleware(flask_app(), **options))
    used = []
    for path in ("/slot", "/bug"):
        client.get(path).close()
        look = RateLimiter("memory://").peek(SHARED, "ann", endpoint="default", cost=0)
        used.append([tier.used for tier in look.tiers])
    assert used == [[0, 0], [1, 0]]


async def mine(request: Any, error: Any) -> PlainTextResponse:
    return PlainTextResponse(type(error).__name__, status_code=420)


async def theirs(request: Any, error: Any) -> PlainTextResponse:
    return PlainTextResponse("theirs", status_code=400)


def limited_app() -> FastAPI:
    app = FastAPI()

    @app.get("/own/{what}")
    async def own(what: str) -> None:
        await fail(f"/{what}")

    @app.get("/limited", dependencies=[Depends(PathRateLimiter(1, 60))])
    async def limited() -> None: ...

    @app.get("/closed", dependencies=[Depends(PathRateLimiter(1, 60, on_outage="closed"))])
    async def closed() -> None: ...

    return app


ERRORS = {"/own/slot": RateLimitExceeded, "/own/store": RateLimitUnavailable, "/limited": RateLimitExceeded}


@pytest.mark.parametrize("order", ["before", "after", "without install"])
@pytest.mark.parametrize("kind", [None, RatekitError])
@pytest.mark.parametrize("path", ERRORS)
def test_handler_for_a_class_of_the_core_is_used(path, kind, order, ratekit_store):
    app = limited_app()
    app.add_exception_handler(HTTPException, theirs)
    if order == "after":
        install(app)
    app.add_exception_handler(kind or ERRORS[path], mine)
    if order == "before":
        install(app)
    client = TestClient(app, raise_server_exceptions=False)
    client.get(path)
    answer = client.get(path)
    assert (answer.status_code, answer.text) == (420, ERRORS[path].__name__)


@pytest.mark.parametrize("order", ["before", "after"])
def test_handler_for_the_fronts_own_class_is_used(order, ratekit_store):
    app = limited_app()
    if order == "after":
        install(app)
    app.add_exception_handler(RateLimitExceeded, theirs)
    app.add_exception_handler(ratekit_fastapi_class(), mine)
    if order == "before":
        install(app)
    client = TestClient(app)
    assert [client.get("/limited").status_code for _ in range(2)] == [200, 420]


def ratekit_fastapi_class() -> type[Exception]:
    import ratekit_fastapi

    return ratekit_fastapi.RateLimitExceeded


def test_handler_for_unavailable_is_used_for_a_limiter_of_the_route():
    app = limited_app()
    install(app, store=NOWHERE)
    app.add_exception_handler(ratekit.core.errors.RateLimitUnavailable, mine)
    answer = TestClient(app).get("/closed")
    assert (answer.status_code, answer.text) == (420, "RateLimitUnavailable")


def test_error_of_the_application_passes_through_its_own_middlewares(ratekit_store):
    """CORS has to add its headers to the 429 too: without them a browser shows nothing of it."""
    from fastapi.middleware.cors import CORSMiddleware

    app = fastapi_app()
    app.add_middleware(CORSMiddleware, allow_origins=["*"])
    install(app)
    answer = TestClient(app).get("/slot", headers={"Origin": "https://shop.example"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (429, "*")


def test_response_that_has_begun_is_not_answered_again():
    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await fail("/slot")

    async def ask() -> None:
        transport = httpx2.ASGITransport(asgi.RateLimitMiddleware(streaming))
        async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
            await client.get("/")

    with pytest.raises(RateLimitExceeded):
        asyncio.run(ask())
