"""Which outcome a front goes by: hanging up, exceptions after the answer, sockets, statuses made between two fronts."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from typing import Any

import flask
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path as django_path
from fastapi import BackgroundTasks, Depends, FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from werkzeug.test import Client

import ratekit.flask
import ratekit_django
from ratekit import Limit, Policy, RateLimiter, RateLimitExceeded, asgi, wsgi
from ratekit.stores.memory import shared
from ratekit_fastapi import PathRateLimiter, ReserveLimiter, install
from support import django_ready  # noqa: F401
from support.counters import used_in
from support.settled_requests import LLM, LOGINS

STORE = "memory://outcomes"
ESTIMATE = {"post-calls": 1, "post-tokens": 800}
CHUNKS = 20


@pytest.fixture(autouse=True)
def _empty_store():
    shared("outcomes").clear()


def fastapi_app(*, limited: bool = True) -> FastAPI:
    app = FastAPI()
    limits = []
    if limited:
        install(app, store=STORE)
        limits = [Depends(ReserveLimiter(policy=LLM, by="ip", estimate=800))]

    @app.post("/stream", dependencies=limits)
    async def stream() -> StreamingResponse:
        async def words() -> AsyncIterator[bytes]:
            for _ in range(CHUNKS):
                yield b"word "

        return StreamingResponse(words())

    @app.post("/read", dependencies=limits)
    async def read(request: Request) -> int:
        return len(await request.body())

    @app.post("/later", dependencies=limits)
    async def later(tasks: BackgroundTasks) -> int:
        tasks.add_task(divide, 0)
        return 1

    return app


def divide(by: int) -> float:
    return 1 / by


def by_rules() -> Any:
    rules = {f"POST /{name}": {"limits": LLM, "estimate": 800} for name in ("stream", "read", "later")}
    return asgi.RateLimitMiddleware(fastapi_app(limited=False), store=STORE, rules=rules, default=None)


APPS = {"fastapi": fastapi_app, "asgi": by_rules}


async def talk(
    app: Any, path: str, *, sends: int = 10_000, spec_version: str = "2.4", body: bool = True, stays: float = 60
) -> None:
    """Send a request as a server does whose client hangs up after some messages or seconds, or before its body."""
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": spec_version}, "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "headers": [], "client": ("192.0.2.7", 1), "server": ("api", 80),
        "scheme": "http", "http_version": "1.1", "root_path": "",
    }  # fmt: skip
    bodies = [{"type": "http.request", "body": b""}] if body else []
    left, gone = [sends], asyncio.Event()

    async def receive() -> Any:
        if bodies:
            return bodies.pop()
        if body:
            with suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), stays)
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            gone.set()
            if spec_version >= "2.4":
                raise OSError("the client is gone")

    await app(scope, receive, send)


@pytest.mark.parametrize("of", APPS)
@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize("sends", [0, 1, 2, CHUNKS])
def test_a_stream_whose_client_hangs_up_keeps_its_estimate(of, spec_version, sends):
    """Servers of ASGI 2.4 raise an OSError, of which Starlette makes an exception. Hanging up must not be a refund."""
    try:
        asyncio.run(talk(APPS[of](), "/stream", sends=sends, spec_version=spec_version))
    except Exception as error:  # noqa: BLE001 - of Starlette's own kind
        assert type(error).__name__ == "ClientDisconnect"
    assert used_in(STORE) == ESTIMATE


@pytest.mark.parametrize("of", APPS)
def test_a_client_that_hangs_up_before_its_body_keeps_its_estimate(of):
    with pytest.raises(Exception, match="^$") as raised:
        asyncio.run(talk(APPS[of](), "/read", body=False))
    assert type(raised.value).__name__ == "ClientDisconnect"
    assert used_in(STORE) == ESTIMATE


@pytest.mark.parametrize("of", APPS)
def test_a_background_task_that_raises_after_the_answer_returns_nothing(of):
    with pytest.raises(ZeroDivisionError):
        asyncio.run(talk(APPS[of](), "/later"))
    assert used_in(STORE) == ESTIMATE


def socket_app(limiter: Any) -> FastAPI:
    app = FastAPI()
    install(app, store=STORE)

    @app.websocket("/ws", dependencies=[Depends(limiter)])
    async def ws(websocket: WebSocket) -> None:
        if "x-deny" in websocket.headers:
            await websocket.close()
            return
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        if "x-wait" in websocket.headers:
            await websocket.receive_text()

    return app


def connect(app: Any, **headers: str) -> None:
    """Open a socket, say something, and hang up."""
    messages = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "hello"}]
    scope = {
        "type": "websocket", "asgi": {"version": "3.0"}, "path": "/ws", "raw_path": b"/ws", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": ("192.0.2.7", 1),
        "server": ("api", 80), "scheme": "ws", "http_version": "1.1", "root_path": "", "subprotocols": [],
    }  # fmt: skip

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "websocket.disconnect", "code": 1006}

    async def send(_: Any) -> None: ...

    asyncio.run(app(scope, receive, send))


def test_a_socket_that_is_accepted_is_status_101_and_one_that_is_denied_403():
    app = socket_app(PathRateLimiter(policy=LOGINS, by="ip", count="4xx"))
    for _ in range(7):
        connect(app)
    assert used_in(STORE) == {}
    for _ in range(2):
        connect(app, **{"x-deny": "1"})
    assert used_in(STORE) == {"logins": 2}


def test_a_socket_whose_client_hangs_up_keeps_its_estimate():
    with pytest.raises(WebSocketDisconnect):
        connect(socket_app(ReserveLimiter(policy=LLM, by="ip", estimate=300)), **{"x-wait": "1"})
    assert used_in(STORE) == {"calls": 1, "tokens": 300}


class WrongPassword(Exception):
    """What an application raises, and something around it makes a 401 of."""


RULE = {"POST /login": {"limits": LOGINS, "count": 401}}
EXPECTED = [401] * 5 + [429] * 2


async def raising(scope: Any, receive: Any, send: Any) -> None:
    raise WrongPassword


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"no"})


def translated(app: Any) -> Any:
    """Make a 401 of whatever an ASGI application does."""

    async def translating(scope: Any, receive: Any, send: Any) -> None:
        async def send_401(message: Any) -> None:
            await send({**message, "status": 401} if message["type"].endswith("start") else message)

        try:
            await app(scope, receive, send_401)
        except WrongPassword:
            await answering(scope, receive, send_401)

    return translating


@pytest.mark.parametrize("app", [raising, answering])
def test_an_outer_front_goes_by_the_status_that_it_sees_itself(app):
    """The inner front has something to settle too, by another outcome of the same request."""
    inner = asgi.RateLimitMiddleware(app, store=STORE, default="9/h", rules={"POST /login": {"limits": "9/h", "count": 500}})
    outer = asgi.RateLimitMiddleware(translated(inner), store=STORE, default=None, rules=RULE)
    client = TestClient(outer)
    answers = [client.post("/login") for _ in range(7)]
    assert [answer.status_code for answer in answers] == EXPECTED
    assert answers[4].headers["ratelimit-remaining"] == "0"
    assert used_in(STORE)["post-logins"] == 5
    assert used_in(STORE).get("post-count-500-3600s", 0) == (5 if app is raising else 0)


def wsgi_translated(app: Any) -> Any:
    def translating(environ: Any, start_response: Any) -> Iterable[bytes]:
        return app(environ, lambda _, lines, *more: start_response("401 Unauthorized", lines, *more))

    return translating


def test_an_outer_front_of_wsgi_goes_by_the_status_that_it_sees_itself():
    app = flask.Flask("inner")
    ratekit.flask.install(app, store=STORE)

    @app.post("/login")
    @ratekit.flask.rate_limit("9/h", by="ip", count=200)
    def login() -> str:
        return "no"

    outer = wsgi.RateLimitMiddleware(wsgi_translated(app), store=STORE, default=None, rules=RULE)
    client, peer = Client(outer), {"REMOTE_ADDR": "192.0.2.7"}
    assert [client.post("/login", environ_base=peer).status_code for _ in range(7)] == EXPECTED
    assert used_in(STORE) == {"post-logins": 5, "post-count-200-3600s": 5}


@pytest.fixture
def no_database():
    """As Django's test client does: there is none to close."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def statuses_of(app: Any, times: int) -> list[int]:
    """Send requests to an application of either colour."""
    if isinstance(app, wsgi.RateLimitMiddleware):
        found = []
        for _ in range(times):
            with Client(app).post("/login", environ_base={"REMOTE_ADDR": "192.0.2.7"}) as answer:
                found.append(answer.status_code)
        return found
    client = TestClient(app, client=("192.0.2.7", 1))
    return [client.post("/login").status_code for _ in range(times)]


@pytest.mark.usefixtures("no_database")
@pytest.mark.parametrize("colour", [wsgi, asgi])
def test_a_front_around_django_goes_by_the_status_that_it_sees_itself(colour):
    """Django has something to settle too, by the status of its own response."""

    @ratekit_django.rate_limit("9/h", by="ip", count=200)
    def login(request: Any) -> HttpResponse:
        return HttpResponse("no")

    middleware = ["ratekit_django.middleware.RateLimitMiddleware"]
    urls = (django_path("login", login),)
    with override_settings(ROOT_URLCONF=urls, RATEKIT={"STORE_URL": STORE}, MIDDLEWARE=middleware):
        inner = wsgi_translated(WSGIHandler()) if colour is wsgi else translated(ASGIHandler())
        outer = colour.RateLimitMiddleware(inner, store=STORE, default=None, rules=RULE)
        assert statuses_of(outer, 7) == EXPECTED
    assert used_in(STORE) == {"post-logins": 5, "count-200-3600s": 5}


SHARED = Policy("shared", [Limit(5, 3600, name="shared")])


@pytest.mark.usefixtures("no_database")
@pytest.mark.parametrize("inner", ["flask", "django wsgi", "django asgi"])
@pytest.mark.parametrize(
    ("outer_counts", "inner_counts", "status", "expected", "used"),
    [
        ({"count": 401}, {"count": 401}, 401, [401] * 5 + [429] * 2, {"shared": 5}),
        ({"count": 401}, {"count": 401}, 200, [200] * 7, {}),
        ({}, {"count": 401}, 200, [200] * 5 + [429] * 2, {"shared": 5}),
        ({"count": 401}, {}, 200, [200] * 5 + [429] * 2, {"shared": 5}),
    ],
    ids=["failures twice", "successes twice", "requests, then failures", "failures, then requests"],
)
def test_a_front_and_a_view_behind_it_charge_the_counter_that_they_share_once(
    inner, outer_counts, inner_counts, status, expected, used
):
    limit: dict[str, Any] = {"policy": SHARED, "by": "ip", "endpoint": "/login", **inner_counts}
    app = flask.Flask("inner")
    ratekit.flask.install(app, store=STORE)
    app.post("/login", endpoint="x")(ratekit.flask.rate_limit(**limit)(lambda: ("what came of it", status)))
    urls = (django_path("login", ratekit_django.rate_limit(**limit)(lambda request: HttpResponse(status=status))),)
    middleware = ["ratekit_django.middleware.RateLimitMiddleware"]
    with override_settings(ROOT_URLCONF=urls, RATEKIT={"STORE_URL": STORE}, MIDDLEWARE=middleware):
        behind = {"flask": lambda: app, "django wsgi": WSGIHandler, "django asgi": ASGIHandler}[inner]()
        front = (asgi if inner == "django asgi" else wsgi).RateLimitMiddleware
        rules = {"/login": {"limits": SHARED, **outer_counts}}
        assert statuses_of(front(behind, store=STORE, default=None, rules=rules), 7) == expected
    assert used_in(STORE) == used


@pytest.mark.parametrize(("first", "then"), [("200 OK", "401 Unauthorized"), ("401 Unauthorized", "200 OK")])
def test_a_response_that_starts_anew_counts_by_its_last_status(first, then):
    """An application may start another response with exc_info, so long as nothing was sent."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response(first, [])
        try:
            raise WrongPassword
        except WrongPassword:
            start_response(then, [], sys.exc_info())
        yield b"what came of it"

    limited = wsgi.RateLimitMiddleware(app, store=STORE, default=None, rules=RULE)
    assert [started(limited) for _ in range(6)] == (
        [("401", "4"), ("401", "3"), ("401", "2"), ("401", "1"), ("401", "0"), ("429", "0")]
        if then.startswith("401")
        else [("200", "5")] * 6
    )


def started(app: Any) -> tuple[str, str]:
    """Send a request as a server does; return the status that was started last, and what is left."""
    found: list[tuple[str, dict[str, str]]] = []
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/login", "REMOTE_ADDR": "192.0.2.7", "wsgi.input": io.BytesIO()}
    body = app(environ, lambda status, lines, *_: found.append((status[:3], dict(lines))))
    list(body)
    getattr(body, "close", lambda: None)()
    return found[-1][0], found[-1][1]["RateLimit-Remaining"]


def test_several_lines_that_say_the_actual_cost_are_none_and_the_estimate_stays():
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("X-Usage-Tokens", "50"), ("X-Usage-Tokens", "5")])
        return [b"ok"]

    rules = {"/x": {"limits": LLM, "estimate": 800, "actual": "header:x-usage-tokens", "hide": True}}
    limited = wsgi.RateLimitMiddleware(app, store=STORE, rules=rules, default=None)
    answer = Client(limited).get("/x", environ_base={"REMOTE_ADDR": "192.0.2.7"})
    assert (answer.status_code, "X-Usage-Tokens" in answer.headers) == (200, False)
    answer.close()
    assert used_in(STORE) == {"calls": 1, "tokens": 800}


SLOTS = Policy("slots", [Limit(3, 3600, algorithm="concurrency", name="slots")])
NEVER_RUN: dict[str, dict[str, Any]] = {
    "a slot": {"policy": SLOTS},
    "an attempt": {"policy": LOGINS, "count": 401},
    "a slot that only monitors": {"policy": SLOTS, "block": False},
}


async def cancelled_while_decided(app: Any, redis_server: Any) -> None:
    """Send requests that are cancelled while the store lets them wait."""
    await talk(app, "/x")  # connects
    with redis_server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 200)
    asked = [asyncio.ensure_future(talk(app, "/x")) for _ in range(3)]
    await asyncio.sleep(0.05)
    for one in asked:
        one.cancel()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 3


@pytest.mark.parametrize("of", ["fastapi", "asgi"])
@pytest.mark.parametrize("held", NEVER_RUN)
def test_a_request_that_is_cancelled_while_it_is_decided_holds_nothing(redis_server, of, held):
    """The store decides it all the same, after nobody waits any more: nothing is left of it, as the endpoint never ran."""
    limit, store = dict(NEVER_RUN[held]), f"{redis_server.url}?socket_timeout=5"
    app: Any = FastAPI()
    if of == "fastapi":
        install(app, store=store, deadline=5)
        app.post("/x", dependencies=[Depends(PathRateLimiter(by="ip", **limit))])(lambda: 1)
    else:
        rules = {"/x": {"limits": limit.pop("policy"), **limit}}
        app = asgi.RateLimitMiddleware(app, store=store, deadline=5, default=None, rules=rules)

    asyncio.run(cancelled_while_decided(app, redis_server))
    assert used_in(redis_server.url) == {}


async def left_while_decided(app: Any, redis_server: Any) -> None:
    """Send requests whose clients hang up while the store lets them wait. Django cancels what it does for them."""
    await talk(app, "/x")  # connects
    with redis_server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 200)
    await asyncio.gather(*(talk(app, "/x", stays=0.05) for _ in range(3)))


async def hello(request: Any) -> HttpResponse:
    return HttpResponse("hello")


BY_SLOTS = {"rules": [{"limits": "3/h@concurrency"}]}
DJANGO_LIMITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a slot": (hello, {"RULES_SOURCE": BY_SLOTS}),
    "an attempt": (ratekit_django.rate_limit(policy=LOGINS, by="ip", count=401)(hello), {}),
}


@pytest.mark.usefixtures("no_database")
@pytest.mark.parametrize("held", DJANGO_LIMITS)
def test_a_request_of_django_that_is_cancelled_while_it_is_decided_holds_nothing(redis_server, held):
    view, settings = DJANGO_LIMITS[held]
    settings = {"STORE_URL": f"{redis_server.url}?socket_timeout=5", "DEADLINE": 5, **settings}
    middleware = ["ratekit_django.middleware.RateLimitMiddleware"]
    with override_settings(ROOT_URLCONF=(django_path("x", view),), RATEKIT=settings, MIDDLEWARE=middleware):
        asyncio.run(left_while_decided(ASGIHandler(), redis_server))
    assert used_in(redis_server.url) == {}


def replaced(response: flask.Response) -> flask.Response:
    return flask.Response("another", response.status_code)


def turned_into_401(response: flask.Response) -> flask.Response:
    response.status_code = 401
    return response


@pytest.mark.parametrize(
    ("change", "statuses", "used"),
    [(replaced, [200] * 7, {}), (turned_into_401, EXPECTED, {"count-401-3600s": 5})],
    ids=["another response", "another status"],
)
def test_flask_goes_by_the_response_that_is_sent(change, statuses, used):
    """What was registered before install runs after ratekit has seen the response."""
    app = flask.Flask("changed")
    app.after_request(lambda response: response if response.status_code == 429 else change(response))
    ratekit.flask.install(app, store=STORE)

    @app.get("/x")
    @ratekit.flask.rate_limit("5/h", by="ip", count=401)
    def x() -> str:
        return "ok"

    client, answers = app.test_client(), []
    for _ in range(7):
        with client.get("/x") as answer:
            answers.append(answer.status_code)
    assert answers == statuses
    assert used_in(STORE) == used


@pytest.mark.parametrize(("status", "used"), [(200, {}), (401, {"post-logins": 1})], ids=["right", "wrong"])
def test_an_endpoint_that_never_learns_that_its_client_is_gone_counts_by_its_status(status, used):
    app = FastAPI()
    install(app, store=STORE)
    limiter = PathRateLimiter(policy=LOGINS, by="ip", count=401)
    app.post("/login", dependencies=[Depends(limiter)])(lambda: JSONResponse({}, status))
    asyncio.run(talk(app, "/login", sends=0, spec_version="2.3"))
    assert used_in(STORE) == used


START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"words"}
FILE = {"type": "http.response.pathsend", "path": "/words.txt"}
BY_HEADER = {"limits": LLM, "estimate": 800, "actual": "header:x-usage-tokens", "hide": True}


def sending(*messages: Any, error: Exception | None = None) -> Any:
    """Return an application that sends messages, and then perhaps raises."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        if error is not None:
            raise error

    return app


def heard_of(app: Any) -> list[Any]:
    """Send a request to an application behind a rule, and return what the server gets to send."""
    heard: list[Any] = []
    limited = asgi.RateLimitMiddleware(app, store=STORE, rules={"/x": BY_HEADER}, default=None)

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            heard.append(message)

        await limited(scope, receive, note)

    asyncio.run(talk(noting, "/x"))
    return heard


def test_a_trailer_says_the_actual_cost_and_can_be_hidden(caplog):
    lines = [(b"X-Usage-Tokens", b"42"), (b"x-digest", b"a")]
    heard = heard_of(sending({**START, "trailers": True}, END, {"type": "http.response.trailers", "headers": lines}))
    assert heard[-1]["headers"] == [(b"x-digest", b"a")]
    assert used_in(STORE) == {"calls": 1, "tokens": 42}
    assert caplog.text == ""


def test_a_trailer_that_is_no_number_keeps_the_estimate():
    lines = [(b"x-usage-tokens", b"42"), (b"x-usage-tokens", b"1")]
    heard_of(sending({**START, "trailers": True}, END, {"type": "http.response.trailers", "headers": lines}))
    assert used_in(STORE) == {"calls": 1, "tokens": 800}


def test_a_background_task_that_raises_after_a_file_was_sent_returns_nothing():
    with pytest.raises(ZeroDivisionError):
        heard_of(sending(START, FILE, error=ZeroDivisionError()))
    assert used_in(STORE) == {"calls": 1, "tokens": 800}


def test_a_limit_of_the_application_is_answered_after_an_early_hint():
    hint = {"type": "http.response.early_hint", "links": []}
    over = RateLimitExceeded(RateLimiter("memory://").check(Policy("own", "1/h"), "ann", cost=5))
    assert [message.get("status") for message in heard_of(sending(hint, error=over))] == [None, 429, None]
    assert used_in(STORE) == {}
