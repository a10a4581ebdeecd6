"""A default limit means the same in every front: one counter for all that no rule names, or on request one a route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from fastapi import FastAPI
from flask import Flask
from starlette.testclient import TestClient

from ratekit import flask
from ratekit.stores.memory import MemoryStore
from ratekit_fastapi import RateLimitMiddleware
from support import django_ready  # noqa: F401

Ask = Callable[[str], int]
Front = Callable[[Mapping[str, Any]], Ask]


def fastapi_front(default: Mapping[str, Any]) -> Ask:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, store=MemoryStore(), default=dict(default), rules={"/own": "9/min"})
    app.get("/own")(lambda: None)
    app.get("/items/{item}")(lambda item: None)
    app.get("/search")(lambda: None)
    client = TestClient(app)
    return lambda url: client.get(url).status_code


def flask_front(default: Mapping[str, Any]) -> Ask:
    app = Flask("defaults")
    flask.install(app, store=MemoryStore(), default=default, rules={"/own": "9/min"})
    app.add_url_rule("/own", "own", lambda: "")
    app.add_url_rule("/items/<item>", "items", lambda item: "")
    app.add_url_rule("/search", "search", lambda: "")
    client = app.test_client()
    return lambda url: client.get(url).status_code


def django_front(default: Mapping[str, Any]) -> Ask:
    def ask(url: str) -> int:
        given = {"DEFAULT": dict(default), "RULES": {"own": "9/min"}}
        with override_settings(ROOT_URLCONF=__name__, RATEKIT=given, MIDDLEWARE=[MIDDLEWARE]):
            return Client().get(url).status_code

    return ask


MIDDLEWARE = "ratekit_django.middleware.RateLimitMiddleware"


def view(request: HttpRequest, **_: object) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("own", view, name="own"), path("items/<item>", view, name="items"), path("search", view, name="search")]


@pytest.fixture(params=[fastapi_front, flask_front, django_front], ids=["fastapi", "flask", "django"])
def front(request: pytest.FixtureRequest, ratekit_store: MemoryStore) -> Front:
    made: Front = request.param
    return made


def test_default_is_one_counter_for_all_that_no_rule_names(front: Front) -> None:
    ask = front({"limits": "2/min"})
    assert [ask(url) for url in ("/items/1", "/search", "/items/2", "/search", "/own")] == [200, 200, 429, 429, 200]


def test_default_counts_each_route_for_itself_on_request(front: Front) -> None:
    ask = front({"limits": "2/min", "per_route": True})
    assert [ask(url) for url in ("/items/1", "/items/2", "/items/3", "/search", "/search", "/search")] == [
        200, 200, 429, 200, 200, 429,
    ]  # fmt: skip
    assert ask("/own") == 200
