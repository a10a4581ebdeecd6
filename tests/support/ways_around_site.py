"""Sites that answer with what they have read of a request, limited to two a minute by the same: one for each framework."""

from __future__ import annotations

from typing import Any

import flask
from django.http import HttpResponse
from django.urls import path, re_path
from fastapi import Depends, FastAPI, Request, WebSocket
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratekit import asgi, wsgi
from ratekit_django import rate_limit
from ratekit_fastapi import PathRateLimiter, install
from support import django_ready  # noqa: F401

LIMIT = "2/h"
BY = {"form": "form:email", "query": "query:email", "cookie": "cookie:email", "json": "json:email"}
RULES: dict[str, Any] = {
    "/any": LIMIT,
    "/methods": LIMIT,
    "/peer": LIMIT,
    "/deep/{a:path}/x/{b:path}/y/{c:path}/z": LIMIT,
} | {f"POST /{kind}" if kind in ("form", "json") else f"/{kind}": {"limits": LIMIT, "by": by} for kind, by in BY.items()}
OPTIONS: dict[str, Any] = {"store": "memory://", "default": None, "rules": RULES, "attempt_limit": "100000/h"}
METHODS = ["GET", "POST", "OPTIONS"]


def said(value: Any) -> str:
    """What the site has read, as it looks up accounts."""
    return value.strip().lower() if isinstance(value, str) else ""


# Starlette behind ratekit.asgi, FastAPI with limiters of its routes


async def read_by_starlette(request: Request) -> PlainTextResponse:
    kind = request.url.path.strip("/\n")
    if kind == "form":
        async with request.form() as form:
            return PlainTextResponse(said(form.get("email")))
    if kind == "json":
        return PlainTextResponse(said((await request.json()).get("email")))
    place = {"query": request.query_params, "cookie": request.cookies}.get(kind, {})
    return PlainTextResponse(said(place.get("email")))


async def anything(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("")(scope, receive, send)


fields = [Route(f"/{kind}", read_by_starlette, methods=["GET", "POST"]) for kind in BY]
starlette = asgi.RateLimitMiddleware(Starlette(routes=[*fields, Mount("", app=anything)]), **OPTIONS)

fastapi = FastAPI()
install(fastapi, store="memory://")


def limited(by: str = "ip") -> Any:
    return Depends(PathRateLimiter(limits=LIMIT, by=by))


for kind, by in BY.items():
    verb = "POST" if kind in ("form", "json") else "GET"
    fastapi.api_route(f"/{kind}", methods=[verb], dependencies=[limited(by)])(read_by_starlette)
for name in ("any", "methods", "peer"):
    for verb in METHODS:
        fastapi.api_route(f"/{name}", methods=[verb], dependencies=[limited()])(lambda: PlainTextResponse(""))
tenant = FastAPI()
tenant.get("/page", dependencies=[limited()])(lambda: PlainTextResponse(""))
fastapi.router.routes.append(Mount("/tenants/{tenant:int}", app=tenant))
per_message = PathRateLimiter(limits=LIMIT, endpoint="/messages", by="ip")


@fastapi.websocket("/ws")
async def ws(websocket: WebSocket) -> None:
    from ratekit_fastapi import RateLimitExceeded

    await websocket.accept()
    for _ in range(6):
        await websocket.receive_text()
        try:
            await per_message(websocket)
        except RateLimitExceeded:
            await websocket.send_text("refused")
        else:
            await websocket.send_text("passed")
    await websocket.close()


# Flask behind ratekit.wsgi


flask_app = flask.Flask("ways")


@flask_app.route("/<path:kind>", methods=METHODS, provide_automatic_options=False)
def read_by_flask(kind: str) -> str:
    request = flask.request
    if kind == "json":
        return said((request.get_json(silent=True) or {}).get("email"))
    place = {"query": request.args, "cookie": request.cookies, "form": request.form}.get(kind, {})
    return said(place.get("email"))


flask_app.wsgi_app = wsgi.RateLimitMiddleware(flask_app.wsgi_app, **OPTIONS)  # type: ignore[method-assign]


# Django with decorators on views


def read_by_django(request: Any) -> HttpResponse:
    import json

    kind = request.path.strip("/\n")
    if kind == "json":
        return HttpResponse(said(json.loads(request.body).get("email")))
    place = {"query": request.GET, "cookie": request.COOKIES, "form": request.POST}.get(kind, {})
    return HttpResponse(said(place.get("email")))


ADDRESS = rate_limit(limits=LIMIT, by="ip")
urlpatterns = [
    *(path(kind, rate_limit(limits=LIMIT, by=by)(read_by_django)) for kind, by in BY.items()),
    *(path(name, ADDRESS(read_by_django)) for name in ("any", "methods", "peer")),
    re_path("^deep/", ADDRESS(read_by_django)),
]


def _django() -> tuple[Any, Any]:
    from django.conf import settings
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler

    settings.ROOT_URLCONF = "support.ways_around_site"
    settings.ALLOWED_HOSTS = ["*"]
    settings.MIDDLEWARE = ["ratekit_django.middleware.RateLimitMiddleware"]
    settings.RATEKIT = {"STORE_URL": "memory://"}
    return WSGIHandler(), ASGIHandler()


django_wsgi, django_asgi = _django()
