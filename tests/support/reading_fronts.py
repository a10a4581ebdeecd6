"""Applications that say what they read of a request, behind each front of ratekit, which says whom it has limited."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import flask
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, JsonResponse, QueryDict
from django.test import override_settings
from django.urls import path
from fastapi import Depends, FastAPI, Form, Request, Response
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.routing import Route

import ratekit.flask
from ratekit import asgi, wsgi
from ratekit.core import events
from ratekit.web.identity import KeyFunction, cookie, first_of, form_field, header, json_field, query
from ratekit_django import rate_limit
from ratekit_django.drf import RateLimitThrottle
from ratekit_fastapi import PathRateLimiter, install
from support.odd_requests import HEADER, NAME, Sent

PEER = "198.51.100.7"
ADDRESS = f"ip:{PEER}"
LIMIT = "1000000/min"
BY: dict[str, KeyFunction] = {
    "query": query(NAME, plain=True),
    "header": header(HEADER, plain=True),
    "cookie": cookie(NAME, plain=True),
    "form": form_field(NAME, plain=True),
    "json": json_field(NAME, plain=True),
    "either": first_of(json_field(NAME, plain=True), form_field(NAME, plain=True)),
}


class Outcome(NamedTuple):
    """What came of a request."""

    status: int
    subject: str | None  # whom ratekit has limited; None: nobody
    read: list[Any]  # what the application has read; empty if it was not asked, or has failed


class Front:
    """An application behind ratekit. `ask` sends it a request."""

    def __init__(self, kind: str, make: Callable[[str, list[Any]], Callable[[Sent], int]]) -> None:
        self._read: list[Any] = []
        self._send = make(kind, self._read)
        self._subjects: list[str] = []

    def ask(self, sent: Sent) -> Outcome:
        self._read.clear()
        self._subjects.clear()
        remove = events.on_decision(lambda decision: self._subjects.append(decision.subject))
        try:
            status = self._send(sent)
        finally:
            remove()
        return Outcome(status, self._subjects[-1] if self._subjects else None, list(self._read))


def text_of(value: Any) -> str | None:
    """A field of JSON as it is limited: texts and numbers; a whole number is written without a fraction."""
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        return None
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _field_of(body: bytes) -> str | None:
    found = json.loads(body)
    return text_of(found.get(NAME)) if isinstance(found, dict) else None


# Starlette


async def _starlette_value(kind: str, request: Request) -> Any:
    if kind == "form":
        async with request.form() as form:
            value = form.get(NAME)
            return value if isinstance(value, str) else None
    if kind == "json":
        return _field_of(body) if (body := await request.body()) else None
    place = {"query": request.query_params, "header": request.headers, "cookie": request.cookies}[kind]
    return place.get(HEADER if kind == "header" else NAME)


def fastapi_dependency(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    app = FastAPI()
    install(app)

    async def endpoint(request: Request) -> Response:
        read.append(await _starlette_value(kind, request))
        return Response("ok")

    app.api_route("/", methods=["GET", "POST", "HEAD"], dependencies=[_limiter(kind)])(endpoint)
    return partial(ask_asgi, app)


def fastapi_parameter(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    """FastAPI has parsed the form, or the JSON, before the limiter runs."""
    app = FastAPI()
    install(app)
    if kind == "form":

        async def endpoint(key: str | None = Form(None)) -> Response:
            read.append(key)
            return Response("ok")

    else:

        async def endpoint(item: dict[str, Any]) -> Response:  # type: ignore[misc]
            read.append(text_of(item.get(NAME)))
            return Response("ok")

    app.post("/", dependencies=[_limiter(kind)])(endpoint)
    return partial(ask_asgi, app)


def _limiter(kind: str) -> Any:
    return Depends(PathRateLimiter(limits=LIMIT, by=BY[kind]))


def starlette_behind_asgi(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    async def endpoint(request: Request) -> Response:
        read.append(await _starlette_value(kind, request))
        return Response("ok")

    app = Starlette(routes=[Route("/", endpoint, methods=["GET", "POST", "HEAD"])])
    return partial(ask_asgi, _behind(asgi, app, kind))


# Django


def _django_value(kind: str, request: Any) -> Any:
    if kind == "json":
        return _field_of(request.body) if request.body else None
    place = {"query": "GET", "header": "headers", "cookie": "COOKIES", "form": "POST"}[kind]
    return getattr(request, place).get(HEADER if kind == "header" else NAME)


def django_wsgi(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    def view(request: Any) -> HttpResponse:
        read.append(_django_value(kind, request))
        return HttpResponse("ok")

    return _django(ask_wsgi, WSGIHandler, rate_limit(limits=LIMIT, by=BY[kind])(view))


def django_asgi(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    async def view(request: Any) -> HttpResponse:
        read.append(_django_value(kind, request))
        return HttpResponse("ok")

    return _django(ask_asgi, ASGIHandler, rate_limit(limits=LIMIT, by=BY[kind])(view))


def django_rest_framework(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    """What request.data has: the label of the body says how it is parsed."""

    class View(APIView):
        throttle_classes = (RateLimitThrottle.of(LIMIT, by=BY[kind]),)

        def post(self, request: Any) -> HttpResponse:
            data = request.data
            is_read = isinstance(data, QueryDict) if kind == "form" else hasattr(data, "get")
            read.append(text_of(data.get(NAME)) if is_read else None)
            return JsonResponse({})

    return _django(ask_wsgi, WSGIHandler, View.as_view())


def django_behind_wsgi(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    def view(request: Any) -> HttpResponse:
        read.append(_django_value(kind, request))
        return HttpResponse("ok")

    return _django(ask_wsgi, lambda: _behind(wsgi, WSGIHandler(), kind), view)


def django_behind_asgi(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    async def view(request: Any) -> HttpResponse:
        read.append(_django_value(kind, request))
        return HttpResponse("ok")

    return _django(ask_asgi, lambda: _behind(asgi, ASGIHandler(), kind), view)


def _django(ask: Any, handler: Callable[[], Any], view: Any) -> Callable[[Sent], int]:
    urls = (path("", view),)
    with override_settings(ROOT_URLCONF=urls):
        app = handler()

    def send(sent: Sent) -> int:
        with override_settings(ROOT_URLCONF=urls):
            return ask(app, sent)

    return send


# Flask


def flask_view(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    app = flask.Flask("reading")
    ratekit.flask.install(app)
    limited = ratekit.flask.rate_limit(limits=LIMIT, by=BY[kind])(_flask_endpoint(kind, read))
    app.route("/", methods=["GET", "POST", "HEAD"])(limited)
    return partial(ask_wsgi, app)


def flask_behind_wsgi(kind: str, read: list[Any]) -> Callable[[Sent], int]:
    app = flask.Flask("reading")
    app.route("/", methods=["GET", "POST", "HEAD"])(_flask_endpoint(kind, read))
    return partial(ask_wsgi, _behind(wsgi, app, kind))


def _flask_endpoint(kind: str, read: list[Any]) -> Callable[[], str]:
    def endpoint() -> str:
        request = flask.request
        if kind == "json":
            read.append(_field_of(body) if (body := request.get_data()) else None)
        else:
            place = {"query": request.args, "header": request.headers, "cookie": request.cookies, "form": request.form}[kind]
            read.append(place.get(HEADER if kind == "header" else NAME))
        return "ok"

    return endpoint


def _behind(front: Any, app: Any, kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return front.RateLimitMiddleware(app, store="memory://", default=LIMIT, by=BY[kind])


FRONTS = {
    make.__name__: make
    for make in (
        fastapi_dependency, fastapi_parameter, starlette_behind_asgi, django_wsgi, django_asgi, django_rest_framework,
        django_behind_wsgi, django_behind_asgi, flask_behind_wsgi, flask_view,
    )
}  # fmt: skip


def kinds_of(front: str) -> list[str]:
    """What an application of a front can be asked for."""
    if front == "fastapi_parameter":
        return ["form", "json"]
    return ["form", "json", "either"] if front == "django_rest_framework" else ["query", "header", "cookie", "form", "json"]


_loop = asyncio.new_event_loop()


def ask_asgi(app: Any, sent: Sent) -> int:
    lines = [(name, value.strip(b" \t")) for name, value in sent.headers]  # as servers do
    length = (b"content-length", str(len(sent.body)).encode())
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": sent.method, "scheme": "http",
        "path": sent.path, "raw_path": quote(sent.path).encode(), "root_path": "", "query_string": sent.query,
        "client": (PEER, 1),
        "server": ("api", 80), "headers": [(b"host", b"api"), length, *lines],
    }  # fmt: skip
    step = -(-len(sent.body) // sent.chunks) or 1
    chunks = [sent.body[at : at + step] for at in range(0, len(sent.body), step)] or [b""]
    status = 500

    async def receive() -> Any:
        if chunks:
            return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}
        return {"type": "http.disconnect"} if status != 500 else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    try:
        _loop.run_until_complete(app(scope, receive, send))
    except Exception:  # noqa: BLE001 - of the application, which cannot read the request
        return 500
    return status


def ask_wsgi(app: Any, sent: Sent) -> int:
    environ: dict[str, Any] = {
        "REQUEST_METHOD": sent.method, "PATH_INFO": sent.path.encode().decode("latin-1"), "SCRIPT_NAME": "",
        "QUERY_STRING": sent.query.decode("latin-1"),
        "CONTENT_LENGTH": str(len(sent.body)), "REMOTE_ADDR": PEER, "SERVER_NAME": "api", "SERVER_PORT": "80",
        "HTTP_HOST": "api", "wsgi.input": io.BytesIO(sent.body), "wsgi.url_scheme": "http", "wsgi.errors": sys.stderr,
        "wsgi.version": (1, 0), "wsgi.multithread": False, "wsgi.multiprocess": False, "wsgi.run_once": False,
    }  # fmt: skip
    for name, value in sent.headers:
        key = name.decode("latin-1").upper().replace("-", "_")
        key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
        text = value.decode("latin-1").strip(" \t")
        environ[key] = environ[key] + sent.joined_by.decode() + text if key in environ and key != "CONTENT_TYPE" else text
    said: list[int] = [500]
    try:
        body = app(environ, lambda status, *_: said.append(int(status[:3])))
        b"".join(body)
        if hasattr(body, "close"):
            body.close()
    except Exception:  # noqa: BLE001 - of the application, which cannot read the request
        return 500
    return said[-1]
