"""Limits that depend on who asks, over every front: see support/who_asks.py."""

from __future__ import annotations

import asyncio
import io
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Flask
from flask import Request as FlaskRequest
from starlette.requests import Request
from starlette.testclient import TestClient

import ratekit.flask
from ratekit import ConfigurationError, asgi, wsgi
from ratekit.stores.memory import shared
from ratekit.web.plans import Plans
from ratekit.web.requests import FrontRequest
from ratekit_django import rate_limit
from ratekit_django.conf import conf
from ratekit_fastapi import PathRateLimiter, RateLimitMiddleware, install
from support import django_ready  # noqa: F401
from support.who_asks import ASYNC_CASES, CASES, PLANS, RULE_CASES, Case, declared, of_request

pytestmark = pytest.mark.filterwarnings("ignore::ratekit.web.options.UnverifiedIdentityWarning")
STORE = "memory://who-asks"
ADDRESS = "192.0.2.7"
_names = itertools.count()  # Ninja wants a name of its own for each API
Send = Callable[[str], int]  # a user's request: its status


def nothing() -> dict[str, str]:
    return {}


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"ok"]


def set_for_all(case: Case, plans: Plans) -> dict[str, Any]:
    return {"plans": plans, "plan_of": of_request(case.plan_of)}


def middleware_options(case: Case, plans: Plans) -> dict[str, Any]:
    return {"store": STORE, "default": None, "rules": {"/x": declared(case)}, **set_for_all(case, plans)}


def asgi_sender(app: Any) -> Iterator[Send]:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False, client=(ADDRESS, 1))
    with asyncio.Runner() as runner:
        client = httpx2.AsyncClient(transport=transport, base_url="http://api")
        yield lambda user: runner.run(client.get("/x", headers={"X-User": user})).status_code
        runner.run(client.aclose())


def asgi_rule(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    yield from asgi_sender(asgi.RateLimitMiddleware(asgi_app, **middleware_options(case, plans)))


def wsgi_rule(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    app = wsgi.RateLimitMiddleware(wsgi_app, **middleware_options(case, plans))

    def send(user: str) -> int:
        found: list[str] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "REMOTE_ADDR": ADDRESS, "HTTP_X_USER": user}
        environ |= {"wsgi.input": io.BytesIO(), "QUERY_STRING": "", "SERVER_NAME": "api", "SERVER_PORT": "80"}
        try:
            b"".join(app(environ, lambda status, lines, *more: found.append(status)))
        except Exception:  # noqa: BLE001 - what a server makes of it
            return 500
        return int(found[0][:3])

    yield send


def fastapi_sender(app: Any) -> Iterator[Send]:
    with TestClient(app, client=(ADDRESS, 1), raise_server_exceptions=False) as client:
        yield lambda user: client.get("/x", headers={"X-User": user}).status_code


def fastapi_dependency(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    app = FastAPI()
    install(app, store=STORE, **set_for_all(case, plans))
    app.get("/x", dependencies=[Depends(PathRateLimiter(**declared(case)))])(nothing)
    yield from fastapi_sender(app)


def fastapi_middleware(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    app = FastAPI()
    app.get("/x")(nothing)
    app.add_middleware(RateLimitMiddleware, **middleware_options(case, plans))
    yield from fastapi_sender(app)


def django_site(settings: Any, case: Case, plans: Plans, view: Any, **more: Any) -> None:
    settings.ROOT_URLCONF = (path("x", view),)
    settings.RATEKIT = {"STORE_URL": STORE, "PLANS": plans, "PLAN_OF": of_request(case.plan_of), **more}
    settings.MIDDLEWARE = ["ratekit_django.middleware.RateLimitMiddleware"]


def django_sender() -> Iterator[Send]:
    client = Client(raise_request_exception=False, REMOTE_ADDR=ADDRESS)
    yield lambda user: client.get("/x", HTTP_X_USER=user).status_code


def plain_view(request: Any) -> HttpResponse:
    return HttpResponse("ok")


def django_view(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    django_site(settings, case, plans, rate_limit(**declared(case))(plain_view))
    yield from django_sender()


def django_async_view(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    async def view(request: Any) -> HttpResponse:
        return HttpResponse("ok")

    django_site(settings, case, plans, rate_limit(**declared(case))(view))
    yield from asgi_sender(get_asgi_application())


def django_rule(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    django_site(settings, case, plans, plain_view, RULES={"/x": declared(case)})
    yield from django_sender()


def django_rest_framework(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    from rest_framework.response import Response
    from rest_framework.views import APIView

    from ratekit_django.drf import RateLimitThrottle

    options = declared(case)

    class View(APIView):
        throttle_classes = (RateLimitThrottle.of(options.pop("limits"), **options),)
        authentication_classes = ()
        permission_classes = ()

        def get(self, request: Any) -> Response:
            return Response({})

    django_site(settings, case, plans, View.as_view())
    yield from django_sender()


def django_ninja(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    from ninja import NinjaAPI

    from ratekit_django.ninja import RateLimitThrottle

    options = declared(case)
    api = NinjaAPI(urls_namespace=f"who-asks-{next(_names)}")
    api.get("", throttle=[RateLimitThrottle(options.pop("limits"), **options)])(lambda request: {})
    django_site(settings, case, plans, plain_view)
    settings.ROOT_URLCONF = (path("x", api.urls),)
    yield from django_sender()


def flask_sender(case: Case, plans: Plans, view: Any, **more: Any) -> Iterator[Send]:
    app = Flask("api")
    app.add_url_rule("/x", "x", view)
    ratekit.flask.install(app, store=STORE, **set_for_all(case, plans), **more)
    client = app.test_client()
    yield lambda user: client.get("/x", headers={"X-User": user}, environ_base={"REMOTE_ADDR": ADDRESS}).status_code


def flask_view(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    yield from flask_sender(case, plans, ratekit.flask.rate_limit(**declared(case))(nothing))


def flask_rule(case: Case, plans: Plans, settings: Any) -> Iterator[Send]:
    yield from flask_sender(case, plans, nothing, rules={"/x": declared(case)})


Front = Callable[[Case, Plans, Any], Iterator[Send]]
MIDDLEWARES: list[Front] = [asgi_rule, wsgi_rule, fastapi_middleware]
VIEWS: list[Front] = [
    django_view, django_async_view, django_rule, django_rest_framework, django_ninja, flask_view, flask_rule,
]  # fmt: skip
FRONTS: list[Front] = [*MIDDLEWARES, fastapi_dependency, *VIEWS]
NO_LOOP = [wsgi_rule]


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    conf.reset()
    shared("who-asks").clear()
    yield
    conf.reset()


def assert_case(front: Front, case: Case, settings: Any, plans: Plans | None = None) -> None:
    for send in front(case, plans or Plans(PLANS), settings):
        statuses = [send(sent.user) for sent in case.sent for _ in range(sent.times)]
        assert statuses == [sent.status for sent in case.sent for _ in range(sent.times)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("front", FRONTS)
def test_limits_are_those_of_who_asks(front, name, settings):
    assert_case(front, CASES[name], settings)
    if used := CASES[name].used:
        assert counters() == used


@pytest.mark.parametrize("name", ASYNC_CASES)
@pytest.mark.parametrize("front", [front for front in FRONTS if front not in NO_LOOP])
def test_callables_may_be_awaited(front, name, settings):
    assert_case(front, ASYNC_CASES[name], settings)


@pytest.mark.parametrize("name", ASYNC_CASES)
@pytest.mark.parametrize("front", NO_LOOP)
def test_callable_that_is_awaited_is_an_error_at_the_start_where_there_is_no_event_loop(front, name, settings):
    with pytest.raises(ConfigurationError, match=r"(limits|plan_of) <function .* has to be awaited"):
        list(front(ASYNC_CASES[name], Plans(PLANS), settings))


@pytest.mark.parametrize("name", RULE_CASES)
@pytest.mark.parametrize("front", [*MIDDLEWARES, *VIEWS])
def test_rules_say_what_is_exempt_and_what_is_counted_together(front, name, settings):
    case = RULE_CASES[name]
    if "exempt" in case.names:
        case = replace(case, options={**case.options, "exempt": [of_request(one) for one in case.options["exempt"]]})
        case = replace(case, names=("limits",))
    assert_case(front, case, settings)


@pytest.mark.parametrize("front", FRONTS)
def test_plans_are_replaced_while_requests_are_decided(front, settings):
    plans = Plans({"free": "1/min"})
    case = Case({"limits": lambda user: "free"}, ())
    for send in front(case, plans, settings):
        assert [send("ann") for _ in range(2)] == [200, 429]
        plans.replace({"free": "3/min"})  # what was used in the minute still counts
        assert [send("ann") for _ in range(3)] == [200, 200, 429]
        plans.replace({"pro": "3/min"})
        assert send("ann") == 500


@pytest.mark.parametrize("front", FRONTS)
def test_change_of_plan_keeps_what_was_used(front, settings):
    plan = {"ann": "free"}
    for send in front(Case({"limits": plan.__getitem__}, ()), Plans(PLANS), settings):
        assert [send("ann") for _ in range(3)] == [200, 200, 429]
        plan["ann"] = "pro"
        assert [send("ann") for _ in range(3)] == [200, 200, 429]
        plan["ann"] = "free"
        assert send("ann") == 429


@pytest.mark.parametrize("front", FRONTS)
def test_request_that_is_not_limited_is_said_once_and_faults_without_the_value(front, settings, caplog):
    answers: dict[str, Any] = {"eve": None, "ann": {"password": "hunter2"}}
    with caplog.at_level(logging.WARNING, logger="ratekit.web"):
        for send in front(Case({"limits": answers.__getitem__}, ()), Plans(PLANS), settings):
            assert [send("eve"), send("eve"), send("ann")] == [200, 200, 500]
    own = "".join(record.getMessage() for record in caplog.records if record.name == "ratekit.web")
    assert own.count("is not limited: limits has answered None") <= 1
    assert "limits gave a value of the type dict" in own
    assert "hunter2" not in own


KINDS = dict.fromkeys((asgi_rule, wsgi_rule), FrontRequest)
KINDS |= dict.fromkeys((fastapi_dependency, fastapi_middleware), Request)
KINDS |= dict.fromkeys((flask_view, flask_rule), FlaskRequest)


@pytest.mark.parametrize("front", FRONTS)
def test_every_callable_of_a_front_gets_the_same_kind_of_request(front, settings):
    seen: list[Any] = []

    def answering(value: Any) -> Any:
        def answer(request: Any) -> Any:
            seen.append(request)
            return value

        return answer

    options = {"limits": answering("9/min"), "cost": answering(1)}
    options |= {} if front is fastapi_dependency else {"counter": answering("c"), "exempt": [answering(False)]}
    for by in (answering("ann"), ratekit.identity.first_of(answering(None), answering("ann"))):
        for send in front(Case(options, (), by=by, names=()), Plans(PLANS), settings):
            assert send("ann") == 200
    assert len(seen) >= 7
    kind = KINDS.get(front)
    if kind is None:  # Django's own, or that of Django REST framework, which is made around it
        assert all(isinstance(getattr(request, "_request", request), HttpRequest) for request in seen)
        assert len({type(request) for request in seen}) == 1
    else:
        assert all(isinstance(request, kind) for request in seen)


def counters() -> dict[str, int]:
    """What the counters of each limit have been charged."""
    store = shared("who-asks")
    found: dict[str, int] = {}
    for key in store.execute("KEYS", "ratelimit:"):
        name = key.decode().rpartition(":")[2]
        found[name] = found.get(name, 0) + int(store.execute("HMGET", key, "n")[0])
    return found


def test_lookup_of_plans_that_nobody_has_given_is_an_error_at_the_start(settings):
    for front in (asgi_rule, wsgi_rule, fastapi_middleware, flask_rule):
        with pytest.raises(ConfigurationError, match="limits 'plan' needs plan_of"):
            list(front(Case({"limits": "plan"}, ()), Plans(PLANS), settings))
    django_site(settings, Case({}, ()), Plans(PLANS), plain_view, RULES={"/x": "plan"})
    with pytest.raises(ConfigurationError, match="limits 'plan' needs plan_of"):
        conf.check()
