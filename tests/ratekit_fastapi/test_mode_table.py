"""The table of modes, cell by cell, for every front of ASGI and WSGI, with ddtrace's real tracer."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request, Response
from starlette.testclient import TestClient

from ratekit import Limit, RateLimiter
from ratekit.asgi import RateLimitMiddleware
from ratekit.stores.memory import MemoryStore
from ratekit.wsgi import RateLimitMiddleware as WsgiMiddleware
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, apply_rate_limit, install
from support.mode_table import REQUESTS, TABLE, Answer, assert_row, recorded_spans, root_span

Send = Callable[[], Answer]


class Traced:
    """Opens the root span of a request, in the context in which the application runs."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with root_span():
            await self.app(scope, receive, send)


def sending(app: FastAPI) -> Send:
    app.add_middleware(Traced)
    client = TestClient(app)
    return lambda: Answer.of(client.get("/x"))


def by_dependency(mode: str | None) -> Send:
    app = FastAPI()
    install(app)

    @app.get("/x", dependencies=[Depends(PathRateLimiter(1, 60, mode=mode))])
    async def x() -> None: ...

    return sending(app)


def by_project(mode: str | None) -> Send:
    app = FastAPI()
    install(app, identify=lambda request: (1, 42))

    @app.get("/x", dependencies=[Depends(ProjectRateLimiter(1, 60, mode=mode))])
    def x() -> None: ...

    return sending(app)


def by_hand(mode: str | None) -> Send:
    app = FastAPI()
    install(app)

    @app.get("/x")
    async def x(request: Request, response: Response) -> None:
        await apply_rate_limit(request, response, max_requests=1, expiry=60, subject="me", mode=mode)

    return sending(app)


def by_asgi(mode: str | None) -> Send:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, default=None, rules={"/x": "1/min"}, by=lambda request: "u", mode=mode)

    @app.get("/x")
    async def x() -> None: ...

    return sending(app)


def by_wsgi(mode: str | None) -> Send:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b""]

    limited = WsgiMiddleware(app, default=None, rules={"/x": "1/min"}, by=lambda request: "u", mode=mode)

    def send() -> Answer:
        started: list[Any] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "wsgi.input": io.BytesIO()}
        with root_span():
            list(limited(environ, lambda status, headers, error=None: started.extend([status, headers])))
        return Answer(int(started[0][:3]), {name.lower(): value for name, value in started[1]})

    return send


FRONTS = {
    "dependency": (by_dependency, "*/x"),
    "project": (by_project, "1:42"),
    "by hand": (by_hand, "me"),
    "asgi": (by_asgi, "u"),
    "wsgi": (by_wsgi, "u"),
}


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> tuple[Callable[[str | None], Send], str]:
    return FRONTS[request.param]


def used(store: MemoryStore, subject: str) -> int:
    return RateLimiter(store).peek(Limit(1, 60), subject, endpoint="/x").request_count


@pytest.mark.parametrize("mode", TABLE)
@pytest.mark.parametrize("where", ["everywhere", "limiter"])
def test_every_cell_of_the_table_of_modes(mode, where, front, store, monkeypatch, ratekit_clock):
    make, subject = front
    send = make(mode if where == "limiter" else None)
    if where == "everywhere":
        monkeypatch.setenv("RATE_LIMIT_MODE", mode)
    with recorded_spans() as spans:
        answers = [send() for _ in range(REQUESTS)]
    assert_row(mode, "/x", answers, spans, used(store, subject))


def test_mode_is_switched_between_two_requests_of_one_trace_each(front, store, monkeypatch, ratekit_clock):
    make, subject = front
    send = make(None)
    seen = []
    with recorded_spans() as spans:
        for mode in ("on", "on", "monitor", "off", "monitor", "on"):
            monkeypatch.setenv("RATE_LIMIT_MODE", mode)
            answer = send()
            seen.append((mode, answer.status, bool(answer.limit_headers), spans[-1].get("ratelimit.over_limit")))
    assert seen == [
        ("on", 200, True, None),
        ("on", 429, True, None),
        ("monitor", 200, True, "/x"),
        ("off", 200, False, None),
        ("monitor", 200, True, "/x"),
        ("on", 429, True, None),
    ]
    assert used(store, subject) == 1
