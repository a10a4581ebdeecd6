"""The table of what requests have cost in the end, over fronts and stores; and outages, disconnects and crowds."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import httpx2
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.http import HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path as django_path
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry
from starlette.responses import Response

import ratekit.flask
import ratekit_django
from ratekit import Policy, asgi, wsgi
from ratekit.limiter.reservations import Reservation
from ratekit.stores.memory import shared
from ratekit.telemetry import prometheus
from ratekit_fastapi import PathRateLimiter, ReserveLimiter, install
from support import django_ready  # noqa: F401
from support.counters import cluster_client, used_in
from support.settled_requests import BOTH, CASES, LLM, LOGINS, Answer, Declared, Send, limited, perform
from support.topologies import start_cluster

pytestmark = [
    pytest.mark.filterwarnings("ignore::ratekit.web.options.UnverifiedIdentityWarning"),
    # Django leaves the body of a request open whose stream fails under ASGI.
    pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning"),
]
FRONTS: dict[str, Callable[..., Iterator[Send]]] = {}
SLOTLESS = {"flask_view", "django_view", "django_async_view"}  # fronts whose limits take no slots


def front(function: Callable[..., Iterator[Send]]) -> Callable[..., Iterator[Send]]:
    FRONTS[function.__name__] = function
    return function


arrived = threading.Event()  # a request that hangs has reached the application


async def hang() -> None:
    arrived.set()
    await asyncio.sleep(60)


def of_rule(one: Declared) -> dict[str, Any]:
    return {"default": None, "by": one.by, "rules": {"/x": {"limits": one.policy, **one.options}}}


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    headers = dict(scope["headers"])
    if headers[b"x-do"] == b"hang":
        await hang()
    reply = perform(headers[b"x-do"].decode(), asgi.usage_in(scope))
    lines = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": lines})
    for chunk in reply.chunks or ():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def behind_asgi(app: Any, declared: tuple[Declared, ...], store: str, **options: Any) -> Any:
    for one in reversed(declared):
        app = asgi.RateLimitMiddleware(app, store=store, **of_rule(one), **options)
    return app


def asgi_client(app: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False, client=("192.0.2.7", 1))
    return httpx2.AsyncClient(transport=transport, base_url="http://api")


def asgi_sender(app: Any) -> Iterator[Send]:
    with asyncio.Runner() as runner:
        client = asgi_client(app)

        def send(do: str, account: str) -> Answer:
            answer = runner.run(client.get("/x", headers={"X-Do": do, "X-Account": account}))
            return Answer(answer.status_code, dict(answer.headers))

        yield send
        runner.run(client.aclose())


@front
def asgi_rules(declared: tuple[Declared, ...], store: str, **options: Any) -> Iterator[Send]:
    yield from asgi_sender(behind_asgi(asgi_app, declared, store, **options))


def wsgi_app(environ: Any, start_response: Any) -> Any:
    reply = perform(environ["HTTP_X_DO"], wsgi.usage_in(environ))
    start_response(f"{reply.status} Status", list(reply.headers.items()))
    return reply.chunks or [b"ok"]


def behind_wsgi(app: Any, declared: tuple[Declared, ...], store: str, **options: Any) -> Any:
    for one in reversed(declared):
        app = wsgi.RateLimitMiddleware(app, store=store, **of_rule(one), **options)
    return app


def wsgi_sender(app: Any) -> Send:
    def send(do: str, account: str, *, hangs_up: bool = False) -> Answer:
        found: list[Any] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "REMOTE_ADDR": "192.0.2.7", "HTTP_X_DO": do}
        environ |= {"wsgi.input": io.BytesIO(), "QUERY_STRING": "", "SERVER_NAME": "api", "SERVER_PORT": "80"}
        environ |= {"wsgi.url_scheme": "http", "HTTP_X_ACCOUNT": account}
        try:
            body = app(environ, lambda status, lines, *more: found.append((status, lines)))
        except RuntimeError:
            return Answer(500, {})
        try:
            for _ in body:
                if hangs_up:
                    break
        except RuntimeError:
            pass
        finally:
            getattr(body, "close", lambda: None)()
        return Answer(int(found[-1][0][:3]), {name.lower(): value for name, value in found[-1][1]})

    return send


@front
def wsgi_rules(declared: tuple[Declared, ...], store: str, **options: Any) -> Iterator[Send]:
    yield wsgi_sender(behind_wsgi(wsgi_app, declared, store, **options))


class Nobody:
    """Usage of a route on which nothing is reserved by an estimate."""

    def add(self, amount: int) -> None: ...


def fastapi_app(declared: tuple[Declared, ...], store: str, **options: Any) -> FastAPI:
    app = FastAPI()
    install(app, store=store, **options)
    plain = [one for one in declared if "estimate" not in one.options]
    limiters = [Depends(PathRateLimiter(**one.stated, by=one.by, **one.options)) for one in plain]
    reserving = [ReserveLimiter(**one.stated, by=one.by, **one.options) for one in declared if one not in plain]
    usage_of: Any = reserving[0] if reserving else Nobody

    @app.get("/x", dependencies=limiters)
    async def x(request: Request, tasks: BackgroundTasks, usage: Any = Depends(usage_of)) -> Any:  # noqa: B008 - as in FastAPI
        if request.headers["x-do"] == "hang":
            await hang()
        if request.headers["x-do"] == "later":
            tasks.add_task(usage.add, 3)
        reply = perform(request.headers["x-do"], usage)
        if reply.chunks is not None:
            return StreamingResponse(reply.chunks)
        return Response("ok", reply.status, reply.headers, background=tasks)

    return app


@front
def fastapi_route(declared: tuple[Declared, ...], store: str, **options: Any) -> Iterator[Send]:
    yield from asgi_sender(fastapi_app(declared, store, **options))


@front
def fastapi_behind_asgi_rules(declared: tuple[Declared, ...], store: str, **options: Any) -> Iterator[Send]:
    inner = [one for one in declared if "estimate" in one.options] or declared[1:]
    outer = tuple(one for one in declared if one not in inner)
    yield from asgi_sender(behind_asgi(fastapi_app(tuple(inner), store, **options), outer, store, **options))


def flask_app(declared: tuple[Declared, ...], store: str, *, in_context: bool = False, **options: Any) -> Any:
    app = flask.Flask("settled")
    ratekit.flask.install(app, store=store, **options)

    def x() -> flask.Response:
        reply = perform(flask.request.headers["X-Do"], ratekit.flask.usage())
        chunks = flask.stream_with_context(reply.chunks) if in_context and reply.chunks else reply.chunks
        return flask.Response(chunks or "ok", reply.status, reply.headers)

    view: Any = x
    for one in reversed(declared):
        view = ratekit.flask.rate_limit(**one.stated, by=one.by, **one.options)(view)
    app.add_url_rule("/x", "x", view)
    return app


@front
def flask_view(declared: tuple[Declared, ...], store: str, **options: Any) -> Iterator[Send]:
    yield wsgi_sender(flask_app(declared, store, **options))


def django_sender(declared: tuple[Declared, ...], store: str, sender: Any, handler: Any, x: Any, **options: Any) -> Any:
    """Send requests to a view that is decorated in turn, through Django's own handler, with the middleware."""
    view: Any = x
    for one in reversed(declared):
        view = ratekit_django.rate_limit(**one.stated, by=one.by, **one.options)(view)
    settings = {"STORE_URL": store} | {name.upper(): value for name, value in options.items()}
    middleware = ["ratekit_django.middleware.RateLimitMiddleware"]
    with override_settings(ROOT_URLCONF=(django_path("x", view),), RATEKIT=settings, MIDDLEWARE=middleware):
        for signal in (request_started, request_finished):
            signal.disconnect(close_old_connections)  # as Django's test client does: there is no database
        try:
            yield from sender(handler())
        finally:
            for signal in (request_started, request_finished):
                signal.connect(close_old_connections)


@front
def django_view(declared: tuple[Declared, ...], store: str, **options: Any) -> Iterator[Send]:
    def x(request: Any) -> Any:
        reply = perform(request.headers["X-Do"], ratekit_django.usage_of(request))
        kind = StreamingHttpResponse if reply.chunks is not None else HttpResponse
        return kind(reply.chunks or "ok", status=reply.status, headers=reply.headers)

    yield from django_sender(declared, store, lambda app: iter([wsgi_sender(app)]), WSGIHandler, x, **options)


@front
def django_async_view(declared: tuple[Declared, ...], store: str, **options: Any) -> Iterator[Send]:
    async def x(request: Any) -> Any:
        reply = perform(request.headers["X-Do"], ratekit_django.usage_of(request))
        if reply.chunks is None:
            return HttpResponse("ok", status=reply.status, headers=reply.headers)
        return StreamingHttpResponse(awaited(reply.chunks))

    yield from django_sender(declared, store, asgi_sender, ASGIHandler, x, **options)


async def awaited(chunks: Iterator[bytes]) -> Any:
    for chunk in chunks:
        yield chunk


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    with start_cluster() as cluster:
        yield cluster.url


@pytest.fixture(params=["memory", "redis", "cluster"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of each kind of store, empty."""
    if request.param == "memory":
        shared("settled").clear()
        return "memory://settled"
    if request.param == "cluster":
        url = request.getfixturevalue("cluster_url")
        with cluster_client(url) as client:
            client.flushall()
        return f"{url}?socket_timeout=5&socket_connect_timeout=5"
    return f"{request.getfixturevalue('redis_server').url}?socket_timeout=5&socket_connect_timeout=5"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("of", FRONTS)
def test_counters_hold_what_requests_have_cost_in_the_end(of, name, store):
    case = CASES[name]
    if of in SLOTLESS and any(isinstance(one.policy, Policy) and one.policy.has_slots for one in case.declared):
        pytest.skip("its limits take no slots")
    for send in FRONTS[of](case.declared, store, deadline=5, **case.settings):
        for sent in case.sent:
            for time in range(sent.times):
                answer = send(sent.do, sent.account)
                assert answer.status == sent.status, (sent, time)
                is_hidden = any(one.options.get("hide") for one in case.declared)
                assert not is_hidden or "x-usage-tokens" not in answer.headers
            if sent.remaining is not None:
                assert answer.headers["ratelimit-remaining"] == str(sent.remaining)
            if name == "an estimate above the limit":
                assert "retry-after" not in answer.headers
    assert used_in(store) == case.used


CROWD = 1000


def made(of: str, declared: tuple[Declared, ...], store: str) -> Any:
    """The application of a front."""
    if of == "asgi_rules":
        return behind_asgi(asgi_app, declared, store, deadline=5)
    if of == "wsgi_rules":
        return behind_wsgi(wsgi_app, declared, store, deadline=5)
    return (fastapi_app if of == "fastapi_route" else flask_app)(declared, store, deadline=5)


@pytest.mark.parametrize("of", ["asgi_rules", "fastapi_route", "wsgi_rules", "flask_view"])
@pytest.mark.parametrize(("do", "used"), [("401", 5), ("200", 0)], ids=["wrong", "right"])
def test_a_crowd_of_wrong_passwords_admits_exactly_five_and_right_ones_leave_nothing(of, do, used, store):
    declared = limited(LOGINS, count=401)
    statuses = Counter(
        in_threads(of, declared, store, do) if of in ("wsgi_rules", "flask_view") else at_once(of, declared, store, do)
    )
    assert set(statuses) <= {int(do), 429}
    assert do == "200" or statuses == {401: 5, 429: CROWD - 5}
    assert used_in(store).get("logins", 0) == used


def at_once(of: str, declared: tuple[Declared, ...], store: str, do: str) -> list[int]:
    async def crowd() -> list[int]:
        app = (
            behind_asgi(asgi_app, declared, store, deadline=5)
            if of == "asgi_rules"
            else fastapi_app(declared, store, deadline=5)
        )
        async with asgi_client(app) as client:
            headers = {"X-Do": do, "X-Account": "ann"}
            answers = await asyncio.gather(*(client.get("/x", headers=headers) for _ in range(CROWD)))
        return [answer.status_code for answer in answers]

    return asyncio.run(crowd())


def in_threads(of: str, declared: tuple[Declared, ...], store: str, do: str) -> list[int]:
    app = (
        behind_wsgi(wsgi_app, declared, store, deadline=5) if of == "wsgi_rules" else flask_app(declared, store, deadline=5)
    )
    send = wsgi_sender(app)
    with ThreadPoolExecutor(16) as pool:
        return [answer.status for answer in pool.map(lambda _: send(do, "ann"), range(CROWD))]


@pytest.mark.parametrize("of", ["asgi_rules", "fastapi_route"])
@pytest.mark.parametrize(
    ("declared", "used"),
    [(BOTH, {"logins": 1, "accounts": 1}), (limited(LLM, estimate=800), {"calls": 1, "tokens": 800})],
    ids=["count", "estimate"],
)
def test_a_request_that_is_cancelled_counts(of, declared, used, store):
    async def hang_up() -> None:
        arrived.clear()
        async with asgi_client(made(of, declared, store)) as client:
            sending = asyncio.create_task(client.get("/x", headers={"X-Do": "hang", "X-Account": "ann"}))
            await asyncio.wait_for(asyncio.to_thread(arrived.wait, 10), 10)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending

    asyncio.run(hang_up())
    assert used_in(store) == used


@pytest.mark.parametrize("of", ["wsgi_rules", "flask_view", "flask_stream_with_context"])
@pytest.mark.parametrize(("do", "tokens"), [("stream", 5), ("chunks", 800)], ids=["added", "estimated"])
def test_a_client_that_hangs_up_pays_what_was_added_or_else_the_estimate(of, do, tokens, store):
    declared = limited(LLM, estimate=800)
    app = (
        behind_wsgi(wsgi_app, declared, store)
        if of == "wsgi_rules"
        else flask_app(declared, store, in_context=of == "flask_stream_with_context")
    )
    wsgi_sender(app)(do, "ann", hangs_up=True)
    assert used_in(store) == {"calls": 1, "tokens": tokens}


def test_stream_in_the_context_of_its_request_that_breaks_returns_its_estimate(store):
    send = wsgi_sender(flask_app(limited(LLM, estimate=800), store, in_context=True))
    assert [send(do, "ann").status for do in ("raise in chunks", "chunks")] == [200, 200]
    assert used_in(store) == {"calls": 1, "tokens": 800}


def test_background_tasks_are_over_before_it_is_settled(store):
    for send in asgi_sender(fastapi_app(limited(LLM, estimate=800), store)):
        assert send("later", "ann").status == 200
    assert used_in(store) == {"calls": 1, "tokens": 3}


@pytest.mark.parametrize("of", FRONTS)
@pytest.mark.parametrize("on_outage", ["open", "closed", "local"])
def test_outage_is_treated_as_with_any_limit(of, on_outage):
    away = "redis://127.0.0.1:1"
    expected = {"open": [401] * 7, "closed": [503] * 7, "local": [401] * 5 + [429] * 2}[on_outage]
    for send in FRONTS[of](limited(LOGINS, count=401), away, on_outage=on_outage):
        assert [send("200", "ann").status for _ in range(3)] == ([503] * 3 if on_outage == "closed" else [200] * 3)
        assert [send("401", "ann").status for _ in range(7)] == expected
    for send in FRONTS[of](limited(LLM, estimate=800), away, on_outage=on_outage):
        expected = {"open": [200] * 4, "closed": [503] * 4, "local": [200] * 4}[on_outage]
        assert [send("settle:10", "ann").status for _ in range(4)] == expected


def test_what_cannot_be_settled_is_counted_and_logged(caplog, redis_server):
    registry = CollectorRegistry()
    remove = prometheus.install(registry)
    try:
        for send in asgi_rules(limited(LOGINS, count=401), "redis://127.0.0.1:1"):
            assert send("200", "ann").status == 200
        labels = {"policy": "logins", "reason": "connect"}
        counted = {
            sample.labels["policy"]: sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name == "ratekit_unsettled_total"
        }
        assert counted == {labels["policy"]: 1}
    finally:
        remove()
    assert "could not be given back" in caplog.text


def test_settling_does_not_delay_the_last_byte(redis_server):
    """The last byte is with the server before the store is asked to settle."""
    events: list[str] = []

    async def talk() -> None:
        app = asgi.RateLimitMiddleware(asgi_app, store=redis_server.url, **of_rule(limited(LOGINS, count=401)[0]))
        give_back = app.limiter.give_back

        async def noted(batch: Any) -> None:
            events.append("settle")
            await give_back(batch)

        app.limiter.give_back = noted  # type: ignore[method-assign]

        async def send(message: Any) -> None:
            events.append("last byte" if message["type"].endswith("body") and not message.get("more_body") else "start")

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        scope = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"x-do", b"200")], "client": ("192.0.2.7", 1)}
        await app({**scope, "query_string": b""}, receive, send)

    asyncio.run(talk())
    assert events == ["start", "last byte", "settle"]


def test_reservation_takes_nothing_after_the_response_has_ended():
    from ratekit import ConfigurationError

    kept: list[Any] = []
    reserving = ReserveLimiter(policy=LLM, by="ip", estimate=5)
    app = FastAPI()
    install(app, store="memory://settled-late")

    @app.get("/x")
    async def x(usage: Reservation = Depends(reserving)) -> int:  # noqa: B008 - as in FastAPI
        kept.append(usage)
        return 1

    for send in asgi_sender(app):
        assert send("200", "ann").status == 200
    with pytest.raises(ConfigurationError, match="settled when the response had ended"):
        kept[0].add(5)


def test_threads_of_one_process_share_nothing_but_the_counters(store):
    """Reservations of requests that run at once are settled each for itself."""
    app = behind_wsgi(wsgi_app, limited(LLM, estimate=50), store, deadline=5)
    send, barrier = wsgi_sender(app), threading.Barrier(4)

    def one(number: int) -> int:
        barrier.wait()
        return send(f"settle:{number}", "ann").status

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, [1, 2, 3, 4])) == [200] * 4
    assert used_in(store) == {"calls": 4, "tokens": 10}
