"""`install`: store, identity, headers on every answer, problem bodies, OpenAPI, and an end with the application's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Unpack

from fastapi import FastAPI, routing

from ratekit.addresses import X_FORWARDED_FOR, TrustedProxies
from ratekit.asgi import App, Receive
from ratekit.errors import ConfigurationError
from ratekit.front import Answers, BodyFunction
from ratekit.headers import DEFAULT_STYLE, PROBLEM_TYPE
from ratekit.keys import DEFAULT_PREFIX, check_prefix
from ratekit.modes import get_rate_limit_mode
from ratekit.operations import LimiterOptions
from ratekit.scopes import Scope, Send, results_in, with_headers
from ratekit_fastapi.errors import REFUSALS, answer
from ratekit_fastapi.routes import calls_of, is_limiter
from ratekit_fastapi.settings import SETTINGS, Identify, Settings

RATE_LIMIT_RESPONSES: dict[int | str, dict[str, Any]] = {
    429: {
        "description": "Too many requests: the limit is exceeded until the time that Retry-After names",
        "headers": {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer"}}},
        "content": {
            PROBLEM_TYPE: {
                "schema": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "violated-policies": {"type": "array", "items": {"type": "string"}},
                    },
                }
            }
        },
    }
}


def install(
    app: FastAPI,
    *,
    store: Any = None,
    identify: Identify | None = None,
    headers: str | Iterable[str] = DEFAULT_STYLE,
    body: BodyFunction | None = None,
    trusted_hops: int | Iterable[str] | str | None = None,
    trusted_header: str = X_FORWARDED_FOR,
    prefix: str = DEFAULT_PREFIX,
    document: bool = True,
    fleet_mode: bool = False,
    **limiter: Unpack[LimiterOptions],
) -> Settings:
    """Set up ratekit for an application and what is mounted in it.

    identify says for which project a request was authenticated: (org_id, project_id), a subject, or None; it may be async.
    Without it, request.state.org_id and request.state.project_id count. document adds the 429 to OpenAPI.
    on_outage, deadline, instances and refusal_cache are those of AsyncRateLimiter.
    fleet_mode follows the mode that the store has for every process (`ratekit mode monitor`).
    """
    get_rate_limit_mode()  # a mode that makes no sense is told now
    settings = Settings(
        store,
        identify=identify,
        answers=Answers(headers, body),
        proxies=TrustedProxies.of(trusted_hops, trusted_header),
        prefix=check_prefix(prefix),
        **limiter,
    )
    settings.limiter()  # a store that makes no sense is told now
    if fleet_mode:
        settings.follow_fleet()
    app.state.ratekit = settings
    if identify is not None and not callable(identify):
        raise ConfigurationError(f"identify {identify!r} is not a callable of the request")
    _connect(app, settings)
    if document:
        _document(app)
    return settings


class HeadersMiddleware:
    """Writes the headers of what the limiters have decided, whatever the outcome."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] in ("http", "websocket"):
            scope[SETTINGS] = self.settings
            # The list is made here, so that the copies of the scope which mounts make share it.
            send = with_headers(send, results_in(scope), self.settings.answers)
        await self.app(scope, receive, send)


def _connect(app: FastAPI, settings: Settings) -> None:
    for error in REFUSALS:
        app.add_exception_handler(error, answer)
    app.add_middleware(HeadersMiddleware, settings=settings)
    _close_with(app, settings)


def _close_with(app: FastAPI, settings: Settings) -> None:
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: Any) -> AsyncIterator[Any]:
        await settings.limiter().warm()
        settings.resume()
        async with inner(running) as state:
            try:
                yield state
            finally:
                await settings.aclose()

    app.router.lifespan_context = lifespan


def _document(app: FastAPI) -> None:
    make: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make()
        for path, methods in _limited(app):
            operations = schema.get("paths", {}).get(path, {})
            for method in methods:
                operation = operations.get(method.lower())
                if operation is not None:
                    operation.setdefault("responses", {}).setdefault("429", RATE_LIMIT_RESPONSES[429])
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _limited(app: FastAPI) -> Iterator[tuple[str, set[str]]]:
    """Yield path and methods of every operation that one of our limiters is declared on."""
    contexts: Callable[[Any], Iterator[Any]] = getattr(routing, "iter_route_contexts", iter)  # since FastAPI 0.137
    for route in contexts(app.routes):
        if any(is_limiter(call) for call in calls_of(route)):
            yield route.path_format, getattr(route, "methods", None) or set()
