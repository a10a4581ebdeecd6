"""The rule that ratekit finds is that of the route which the application runs: odd methods and paths through every front."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import flask
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path, re_path
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratekit import asgi, wsgi
from ratekit.core import events
from support import django_ready  # noqa: F401
from support.odd_requests import Sent, draw_route
from support.reading_fronts import ask_asgi, ask_wsgi

FUZZ = int(os.environ.get("RATEKIT_FUZZ", "1"))
REQUESTS = 400 * FUZZ  # through each front
LIMIT = "1000000/h"
A, ITEM, FILE, DEEP = "/a", "/items/{id}", "/files/{name:path}", "/deep/{x:path}/b/{y:path}/c"
RULES = {"POST /a": LIMIT, A: LIMIT, ITEM: LIMIT, FILE: LIMIT, DEEP: LIMIT}


def starlette_route(ran: list[str], route: str) -> Any:
    async def endpoint(request: Any) -> PlainTextResponse:
        ran.append(route)
        return PlainTextResponse("ok")

    return Route(route, endpoint, methods=["GET", "POST", "PUT", "OPTIONS"])


def starlette(ran: list[str]) -> Callable[[Sent], int]:
    app = Starlette(routes=[starlette_route(ran, route) for route in (A, ITEM, FILE, DEEP)])
    return partial(ask_asgi, asgi.RateLimitMiddleware(app, default=None, rules=RULES))


def fastapi(ran: list[str]) -> Callable[[Sent], int]:
    app = FastAPI(routes=[starlette_route(ran, route) for route in (A, ITEM, FILE, DEEP)])
    return partial(ask_asgi, asgi.RateLimitMiddleware(app, default=None, rules=RULES))


def flask_app(ran: list[str]) -> Callable[[Sent], int]:
    app = flask.Flask("routing")
    flask_routes = {A: "/a", ITEM: "/items/<id>", FILE: "/files/<path:name>", DEEP: "/deep/<path:x>/b/<path:y>/c"}
    for route, text in flask_routes.items():
        view = partial(lambda route, **_: ran.append(route) or "ok", route)
        app.add_url_rule(text, route, view, methods=["GET", "POST", "PUT", "OPTIONS"], provide_automatic_options=False)
    return partial(ask_wsgi, wsgi.RateLimitMiddleware(app, default=None, rules=RULES))


def django_urls(ran: list[str]) -> tuple[Any, ...]:
    def view(request: Any, route: str, **_: Any) -> HttpResponse:
        ran.append(route)
        return HttpResponse("ok")

    return (
        re_path("^a/?$", view, {"route": A}),
        path("items/<str:id>", view, {"route": ITEM}),
        path("files/<path:name>", view, {"route": FILE}),
        re_path("^deep/(?P<x>.+)/b/(?P<y>.+)/c$", view, {"route": DEEP}),
    )


def django(ran: list[str], handler: Any, front: Any, ask: Any) -> Callable[[Sent], int]:
    with override_settings(ROOT_URLCONF=django_urls(ran)):
        app = front.RateLimitMiddleware(handler(), default=None, rules=RULES)
    urls = django_urls(ran)

    def send(sent: Sent) -> int:
        with override_settings(ROOT_URLCONF=urls):
            return ask(app, sent)

    return send


FRONTS: dict[str, Callable[[list[str]], Callable[[Sent], int]]] = {
    "starlette": starlette,
    "fastapi": fastapi,
    "flask": flask_app,
    "django_asgi": lambda ran: django(ran, ASGIHandler, asgi, ask_asgi),
    "django_wsgi": lambda ran: django(ran, WSGIHandler, wsgi, ask_wsgi),
}


@pytest.mark.parametrize("name", FRONTS)
def test_application_runs_the_route_whose_rule_has_decided(name, ratekit_store, caplog):
    for logger in ("django", "ratekit", "asyncio"):
        caplog.set_level(logging.CRITICAL, logger)
    ran: list[str] = []
    send, rng, met = FRONTS[name](ran), Random(f"{name} {FUZZ}"), Counter[str]()
    for _ in range(REQUESTS):
        sent, decided = draw_route(rng), []
        ran.clear()
        remove = events.on_decision(lambda decision: decided.append((decision.endpoint, decision.result.limit)))  # noqa: B023
        try:
            send(sent)
        finally:
            remove()
        if ran:
            (route,) = ran
            assert [endpoint for endpoint, _ in decided] == [route], (sent, decided)
            # A declared method has counters of its own, and OPTIONS has where none is declared.
            own = {"POST": "post-3600s", "OPTIONS": "options-3600s"}.get(sent.method.upper(), "3600s")
            assert decided[0][1] == (own if route == A or "post" not in own else "3600s"), (sent, decided)
        met[ran[0] if ran else "none"] += 1
    assert all(met[route] > REQUESTS // 50 for route in (A, ITEM, FILE, DEEP, "none")), met
