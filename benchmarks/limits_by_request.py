"""What a request pays where a callable tells its limits, in each front, beside the same limits in code."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from fastapi import Depends, FastAPI

from benchmarks.policies import MOST
from benchmarks.rounds import Case, Pair, Row, measure
from benchmarks.settings import Settings
from ratekit import Limit, asgi, wsgi
from ratekit_fastapi import PathRateLimiter, install

_TARGET_US = 10.0
_CALLS = 400
_LIMITS = [Limit(MOST, 3600)]
_PLANS = {"pro": _LIMITS}
_numbers = count()  # a store of its own for each case


def compare_limits_by_request(settings: Settings) -> list[Row]:
    """Compare requests whose plan a callable names with requests of fixed limits, in microseconds."""
    makers: dict[str, Callable[[Any], Case]] = {"wsgi": _wsgi, "asgi": _asgi, "fastapi": _fastapi}
    pairs = [
        Pair(f"{name}: limits by a callable, us more", make(_plan_of), make(_LIMITS), _TARGET_US, _added_us)
        for name, make in makers.items()
    ]
    return measure("plans", pairs, settings.rounds)


def _plan_of(_: object) -> str:
    return "pro"


def _added_us(case: float, reference: float) -> float:
    return (case - reference) * 1_000_000


def _store() -> str:
    return f"memory://plans-{next(_numbers)}"


def _wsgi(limits: Any) -> Case:
    def app(_: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"ok"]

    front = wsgi.RateLimitMiddleware(app, store=_store(), default=limits, plans=_PLANS)
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "REMOTE_ADDR": "203.0.113.7", "wsgi.input": io.BytesIO()}
    statuses: list[str] = []

    def block() -> float:
        started = time.process_time()
        for _ in range(_CALLS):
            front(dict(environ), lambda status, lines: statuses.append(status))
        taken = time.process_time() - started
        _expect(statuses, "200 OK")
        return taken / _CALLS

    return block


def _asgi(limits: Any) -> Case:
    async def app(_: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    return _served(asgi.RateLimitMiddleware(app, store=_store(), default=limits, plans=_PLANS))


def _fastapi(limits: Any) -> Case:
    app = FastAPI()
    install(app, store=_store(), plans=_PLANS)

    @app.get("/x", dependencies=[Depends(PathRateLimiter(limits=limits, by="ip"))])
    async def answer() -> dict[str, str]:
        return {}

    return _served(app)


def _served(app: Callable[..., Awaitable[None]]) -> Case:
    """Make a case of an ASGI application, which is asked by one client, one request after the other."""
    scope = {"type": "http", "method": "GET", "path": "/x", "raw_path": b"/x", "query_string": b"", "root_path": ""}
    scope |= {"headers": [(b"host", b"api")], "client": ("203.0.113.7", 1), "server": ("api", 80), "scheme": "http"}
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def many() -> float:
        started = time.process_time()
        for _ in range(_CALLS):
            await app(dict(scope), receive, send)
        return time.process_time() - started

    def block() -> float:
        taken = asyncio.run(many())
        _expect(statuses, 200)
        return taken / _CALLS

    return block


def _expect(statuses: list[Any], status: object) -> None:
    """Raise if a request was answered otherwise: then something else was measured."""
    if set(statuses) != {status}:
        raise RuntimeError(f"requests were answered {sorted(map(str, set(statuses)))}, not {status}")
    statuses.clear()
