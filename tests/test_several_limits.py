"""The table of several limits, over every front and store; and what it means while requests are under way at once."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import flask
import httpx2
import pytest
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from fastapi import APIRouter, Depends, FastAPI
from starlette.testclient import TestClient

import ratekit.flask
from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter, RateLimitExceeded, asgi, wsgi
from ratekit.stores.memory import shared
from ratekit_django import rate_limit
from ratekit_django.conf import conf
from ratekit_fastapi import PathRateLimiter, install
from support import django_ready  # noqa: F401
from support.counters import cluster_client, used_in
from support.several_limits import CASES, USER, WIDE, Case, Declared, limit
from support.topologies import start_cluster

_names = itertools.count()  # Ninja wants a name of its own for each API

pytestmark = pytest.mark.filterwarnings("ignore::ratekit.web.options.UnverifiedIdentityWarning")
Send = Callable[[str], int]  # a user's request: its status
FRONTS: dict[str, Callable[..., Any]] = {}


def front(function: Callable[..., Any]) -> Callable[..., Any]:
    FRONTS[function.__name__] = function
    return function


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def middleware_options(one: Declared, store: str) -> dict[str, Any]:
    rule = {"limits": one.limit} | ({"on_outage": one.on_outage} if one.on_outage else {})
    return {"store": store, "default": None, "rules": {"/x": rule}, "by": one.by, "cost": one.cost, "mode": one.mode}


def behind_asgi(app: Any, declared: tuple[Declared, ...], store: str) -> Any:
    for one in reversed(declared):
        app = asgi.RateLimitMiddleware(app, **middleware_options(one, store))
    return app


def asgi_sender(app: Any) -> Iterator[Send]:
    with asyncio.Runner() as runner:
        client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app, client=("192.0.2.7", 1)), base_url="http://api")
        yield lambda user: runner.run(client.get("/x", headers={"X-User": user})).status_code
        runner.run(client.aclose())


@front
def asgi_middlewares(case: Case, store: str, settings: Any) -> Iterator[Send]:
    yield from asgi_sender(behind_asgi(asgi_app, case.declared, store))


@front
def wsgi_middlewares(case: Case, store: str, settings: Any) -> Iterator[Send]:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"ok"]

    for one in reversed(case.declared):
        app = wsgi.RateLimitMiddleware(app, **middleware_options(one, store))

    yield wsgi_sender(app)


def wsgi_sender(app: Any) -> Send:
    def send(user: str) -> int:
        found: list[str] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "REMOTE_ADDR": "192.0.2.7", "HTTP_X_USER": user}
        environ |= {"wsgi.input": io.BytesIO(), "QUERY_STRING": "", "SERVER_NAME": "api", "SERVER_PORT": "80"}
        environ |= {"wsgi.url_scheme": "http"}
        body = app(environ, lambda status, lines, *more: found.append(status))
        b"".join(body)
        getattr(body, "close", lambda: None)()
        return int(found[0][:3])

    return send


def limiter_of(one: Declared) -> PathRateLimiter:
    return PathRateLimiter(policy=one.limit, by=one.by, cost=one.cost, mode=one.mode, on_outage=one.on_outage)


def nothing() -> dict[str, str]:
    return {}


def fastapi_app(on_router: tuple[Declared, ...], on_route: tuple[Declared, ...], store: str, between: bool) -> FastAPI:
    async def authenticate() -> None: ...

    app = FastAPI()
    install(app, store=store)
    router = APIRouter(dependencies=[Depends(limiter_of(one)) for one in on_router])
    inner = [Depends(authenticate)] if between else []
    router.get("/x", dependencies=[*inner, *(Depends(limiter_of(one)) for one in on_route)])(nothing)
    app.include_router(router)
    return app


def fastapi_sender(app: Any) -> Iterator[Send]:
    with TestClient(app, client=("192.0.2.7", 1)) as client:
        yield lambda user: client.get("/x", headers={"X-User": user}).status_code


@front
def fastapi_route(case: Case, store: str, settings: Any) -> Iterator[Send]:
    yield from fastapi_sender(fastapi_app((), case.declared, store, between=False))


@front
def fastapi_router_then_authentication_then_route(case: Case, store: str, settings: Any) -> Iterator[Send]:
    yield from fastapi_sender(fastapi_app(case.declared[:1], case.declared[1:], store, between=True))


@front
def fastapi_behind_asgi_middleware(case: Case, store: str, settings: Any) -> Iterator[Send]:
    app = fastapi_app((), case.declared[1:], store, between=False)
    yield from fastapi_sender(behind_asgi(app, case.declared[:1], store))


def options_of(one: Declared) -> dict[str, Any]:
    return {"policy": one.limit, "by": one.by, "cost": one.cost, "mode": one.mode, "on_outage": one.on_outage}


def django_site(settings: Any, store: str, view: Any, rules: dict[str, Any] | None = None) -> None:
    settings.ROOT_URLCONF = (path("x", view),)
    settings.RATEKIT = {"STORE_URL": store, "DEADLINE": 5} | ({"RULES": rules} if rules else {})
    settings.MIDDLEWARE = ["ratekit_django.middleware.RateLimitMiddleware"]


def decorated(view: Any, declared: tuple[Declared, ...]) -> Any:
    for one in reversed(declared):
        view = rate_limit(**options_of(one))(view)
    return view


def django_sender() -> Iterator[Send]:
    client = Client(REMOTE_ADDR="192.0.2.7")
    yield lambda user: client.get("/x", HTTP_X_USER=user).status_code


def flask_app(store: str, *declared: Declared, blueprint: tuple[Declared, ...] = (), rule: Declared | None = None) -> Any:
    app = flask.Flask("several")
    rules = {"/x": options_of(rule)} if rule else None
    ratekit.flask.install(app, store=store, deadline=5, rules=rules)
    shop = flask.Blueprint("shop", "several")
    for one in blueprint:
        ratekit.flask.rate_limit(**options_of(one))(shop)
    view: Any = lambda: "ok"  # noqa: E731
    for one in reversed(declared):
        view = ratekit.flask.rate_limit(**options_of(one))(view)
    shop.add_url_rule("/x", "x", view)
    app.register_blueprint(shop)
    return app


@front
def flask_view(case: Case, store: str, settings: Any) -> Iterator[Send]:
    yield wsgi_sender(flask_app(store, *case.declared))


@front
def flask_rule_then_blueprint_then_view(case: Case, store: str, settings: Any) -> Iterator[Send]:
    yield wsgi_sender(flask_app(store, *case.declared[2:], blueprint=case.declared[1:2], rule=case.declared[0]))


@front
def flask_behind_wsgi_middleware(case: Case, store: str, settings: Any) -> Iterator[Send]:
    app = flask_app(store, *case.declared[1:])
    yield wsgi_sender(wsgi.RateLimitMiddleware(app, **middleware_options(case.declared[0], store)))


@front
def django_view(case: Case, store: str, settings: Any) -> Iterator[Send]:
    django_site(settings, store, decorated(lambda request: HttpResponse("ok"), case.declared))
    yield from django_sender()


@front
def django_async_view(case: Case, store: str, settings: Any) -> Iterator[Send]:
    async def view(request: Any) -> HttpResponse:
        return HttpResponse("ok")

    django_site(settings, store, decorated(view, case.declared))
    client = AsyncClient()
    with asyncio.Runner() as runner:
        yield lambda user: runner.run(client.get("/x", headers={"X-User": user})).status_code


@front
def django_rule_then_view(case: Case, store: str, settings: Any) -> Iterator[Send]:
    view = decorated(lambda request: HttpResponse("ok"), case.declared[1:])
    django_site(settings, store, view, {"/x": options_of(case.declared[0])})
    yield from django_sender()


@front
def django_behind_wsgi_middleware(case: Case, store: str, settings: Any) -> Iterator[Send]:
    from django.core.signals import request_finished, request_started
    from django.core.wsgi import get_wsgi_application
    from django.db import close_old_connections

    for signal in (request_started, request_finished):  # it would look at the database that other tests have opened
        signal.disconnect(close_old_connections)
    django_site(settings, store, decorated(lambda request: HttpResponse("ok"), case.declared[1:]))
    app = wsgi.RateLimitMiddleware(get_wsgi_application(), **middleware_options(case.declared[0], store))
    yield wsgi_sender(app)


@front
def django_behind_asgi_middleware(case: Case, store: str, settings: Any) -> Iterator[Send]:
    from django.core.asgi import get_asgi_application

    django_site(settings, store, decorated(lambda request: HttpResponse("ok"), case.declared[1:]))
    yield from asgi_sender(behind_asgi(get_asgi_application(), case.declared[:1], store))


@front
def django_rest_framework(case: Case, store: str, settings: Any) -> Iterator[Send]:
    from rest_framework.response import Response
    from rest_framework.views import APIView

    from ratekit_django.drf import RateLimitThrottle

    options = [options_of(one) for one in case.declared]
    throttles = [RateLimitThrottle.of(each.pop("policy"), **each) for each in options]

    class View(APIView):
        throttle_classes = throttles
        authentication_classes = ()
        permission_classes = ()

        def get(self, request: Any) -> Response:
            return Response({})

    django_site(settings, store, View.as_view())
    yield from django_sender()


@front
def django_ninja(case: Case, store: str, settings: Any) -> Iterator[Send]:
    from ninja import NinjaAPI

    from ratekit_django.ninja import RateLimitThrottle

    options = [options_of(one) for one in case.declared]
    api = NinjaAPI(urls_namespace=f"several-{next(_names)}")
    api.get("", throttle=[RateLimitThrottle(each.pop("policy"), **each) for each in options])(lambda request: {})
    django_site(settings, store, lambda request: None)
    settings.ROOT_URLCONF = (path("x", api.urls),)
    yield from django_sender()


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    with start_cluster() as cluster:
        yield cluster.url


@pytest.fixture(params=["memory", "redis", "cluster"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of each kind of store, empty."""
    conf.reset()
    if request.param == "memory":
        shared("several").clear()
        yield "memory://several"
    elif request.param == "redis":
        yield f"{request.getfixturevalue('redis_server').url}?socket_timeout=5&socket_connect_timeout=5"
    else:
        url = request.getfixturevalue("cluster_url")
        with cluster_client(url) as client:
            client.flushall()
        yield f"{url}?socket_timeout=5&socket_connect_timeout=5"
    conf.reset()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("of", FRONTS)
def test_refused_request_has_spent_nothing(of, name, store, settings):
    case = CASES[name]
    for send in FRONTS[of](case, store, settings):
        statuses = [send(sent.user) for sent in case.sent for _ in range(sent.times)]
        assert statuses == [sent.status for sent in case.sent for _ in range(sent.times)]
        assert used_in(store) == case.used


SLOT = Declared(Limit(1, 60, algorithm="concurrency", name="slot"))


@pytest.mark.parametrize("of", ["asgi_middlewares", "wsgi_middlewares"])
@pytest.mark.parametrize("declared", [(SLOT, USER), (USER, SLOT)], ids=["slot first", "slot last"])
def test_slot_is_free_after_every_request_and_refusals_spend_nothing(of, declared, store, settings):
    for send in FRONTS[of](Case(declared, ()), store, settings):
        assert [send(user) for user in ("ann", "ann", "bob", "ann", "eve")] == [200, 429, 200, 429, 200]
        assert {name: used for name, used in used_in(store).items() if name != "slot"} == {"user": 3}


async def raising_app(scope: Any, receive: Any, send: Any) -> None:
    """An application that uses a limiter of its own, and lets its error pass."""
    limiter = AsyncRateLimiter("memory://own")
    result = await limiter.check(Policy("own", Limit(1, 3600)), dict(scope["headers"])[b"x-user"].decode())
    if result.is_over_limit:
        raise RateLimitExceeded(result)
    await asgi_app(scope, receive, send)


def raising_wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    result = RateLimiter("memory://own").check(Policy("own", Limit(1, 3600)), environ["HTTP_X_USER"])
    if result.is_over_limit:
        raise RateLimitExceeded(result)
    start_response("200 OK", [])
    return [b"ok"]


def test_refusal_by_the_application_behind_asgi_gives_back(store):
    shared("own").clear()
    for send in asgi_sender(behind_asgi(raising_app, (WIDE,), store)):
        assert [send(user) for user in ("ann", "ann", "ann", "bob")] == [200, 429, 429, 200]
        assert used_in(store) == {"route": 2}


def test_refusal_by_the_application_behind_wsgi_gives_back(store):
    shared("own").clear()
    send = wsgi_sender(wsgi.RateLimitMiddleware(raising_wsgi_app, **middleware_options(WIDE, store)))
    assert [send(user) for user in ("ann", "ann", "ann", "bob")] == [200, 429, 429, 200]
    assert used_in(store) == {"route": 2}


@pytest.mark.parametrize("of", ["asgi_middlewares", "fastapi_route", "fastapi_router_then_authentication_then_route"])
def test_requests_at_once_admit_exactly_the_limit_and_charge_for_those_alone(of, store, settings):
    declared = (Declared(limit(1000, "route"), cost=3), Declared(limit(20, "user"), by="header:X-User"))
    apps = {
        "asgi_middlewares": lambda: behind_asgi(asgi_app, declared, store),
        "fastapi_route": lambda: fastapi_app((), declared, store, between=False),
        "fastapi_router_then_authentication_then_route": lambda: fastapi_app(
            declared[:1], declared[1:], store, between=True
        ),
    }

    async def many() -> list[int]:
        transport = httpx2.ASGITransport(apps[of](), client=("192.0.2.7", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
            answers = await asyncio.gather(*(client.get("/x", headers={"X-User": "ann"}) for _ in range(60)))
        return [answer.status_code for answer in answers]

    assert Counter(asyncio.run(many())) == {200: 20, 429: 40}
    assert used_in(store) == {"route": 60, "user": 20}


@pytest.mark.parametrize("of", ["asgi", "wsgi"])
@pytest.mark.parametrize(
    ("seconds", "used"), [(0.5, 2), (50.0, 2), (61.0, 2)], ids=["at once", "late", "in the next window"]
)
def test_what_was_spent_is_given_back_within_its_window_or_not_at_all(of, seconds, used, ratekit_clock):
    """The application takes its time, two others are charged meanwhile, and then a limit of its own refuses the request."""
    shared("several").clear()
    limiter, policy = RateLimiter("memory://several"), Policy("/x", Limit(5, 60))

    def take_time() -> None:
        ratekit_clock.advance(seconds)
        limiter.charge(policy, "ip:192.0.2.7", cost=2)
        raise RateLimitExceeded(RateLimiter("memory://").check(Policy("own", Limit(1, 60)), "ann", cost=5))

    async def slow_asgi(scope: Any, receive: Any, send: Any) -> None:
        take_time()

    def slow_wsgi(environ: Any, start_response: Any) -> list[bytes]:
        take_time()
        return []

    options: Any = {"store": "memory://several", "default": None, "rules": {"/x": "5/min"}}
    if of == "asgi":
        for send in asgi_sender(asgi.RateLimitMiddleware(slow_asgi, **options)):
            assert send("ann") == 429
    else:
        assert wsgi_sender(wsgi.RateLimitMiddleware(slow_wsgi, **options))("ann") == 429
    assert limiter.peek(policy, "ip:192.0.2.7", cost=0).request_count == used
