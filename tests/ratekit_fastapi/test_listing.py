"""ratekit limits: every endpoint of an application, with its limits and where they come from."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.testclient import TestClient

import ratekit_fastapi as own
from ratekit.asgi import RateLimitMiddleware
from ratekit.cli import program
from ratekit_fastapi import PathRateLimiter, install


@pytest.fixture
def application(monkeypatch):
    app = FastAPI(openapi_url=None)
    rules = [{"name": "chat", "match": {"method": "POST", "path": "/v1/{x}/chat"}, "by": "header:X-Key", "limits": "5/s"}]
    install(app, rules={"rules": rules})
    app.add_middleware(RateLimitMiddleware, default=None, rules={"GET /health": "9/s"})
    router = APIRouter(prefix="/v1")

    @router.post("/{tenant}/chat", dependencies=[Depends(PathRateLimiter(limits="20/s", by="ip"))])
    async def chat(tenant: str) -> None: ...

    @app.get("/health")
    async def health() -> None: ...

    @app.get("/free")
    async def free() -> None: ...

    app.include_router(router)
    module = ModuleType("listed_shop")
    module.app = app
    monkeypatch.setitem(sys.modules, "listed_shop", module)


def test_limits_lists_code_middleware_and_rules(application, capsys):
    assert program.run(["limits", "listed_shop:app", "--json"]) == 0
    rows = [tuple(row.values()) for row in json.loads(capsys.readouterr().out)]
    assert sorted(rows, key=str) == sorted(
        [
            ("/health", "GET", "get-1s=9/s", "ip", "/health", "middleware"),
            ("/free", "GET", None, None, None, None),
            ("/v1/{tenant}/chat", "POST", "post-1s=20/s", "client_ip", "/v1/{tenant}/chat", "code"),
            ("/v1/{tenant}/chat", "POST", "post-1s=5/s", "header:x-key", "/v1/{x}/chat", "rule chat of code"),
        ],
        key=str,
    )


def test_limits_of_something_else_is_told(capsys):
    assert program.run(["limits", "json:dumps"]) == 2
    assert "is a function: limits are listed for applications of fastapi" in capsys.readouterr().err


@pytest.fixture
def whole(monkeypatch, redis_url):
    """An application with a middleware that knows routes, limits by address, and another application mounted in it."""
    app, inner = FastAPI(openapi_url=None), FastAPI(openapi_url=None)
    install(app, store=redis_url, plans={"free": "9/min"}, plan_of=lambda request: "free")
    default = {"limits": "300/min", "per_route": True}
    app.add_middleware(own.RateLimitMiddleware, store=redis_url, default=default, attempt_limit="99/s", exempt=["/health"])
    inner.get("/items/{item}", dependencies=[Depends(PathRateLimiter(limits="2/min", by="ip"))])(lambda item: None)
    inner.post("/items/{item}", dependencies=[Depends(PathRateLimiter(limits="1/min", by="ip"))])(lambda item: None)
    app.get("/search", dependencies=[Depends(PathRateLimiter(limits="plan", by="ip"))])(lambda: None)
    app.get("/health")(lambda: None)
    app.mount("/v2", inner)
    module = ModuleType("whole_shop")
    module.app = app
    monkeypatch.setitem(sys.modules, "whole_shop", module)
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", redis_url)
    with TestClient(app, client=("192.0.2.7", 1)) as client:
        yield client


def test_limits_lists_mounted_applications_routes_that_a_middleware_knows_and_limits_by_address(whole, capsys):
    assert program.run(["limits", "whole_shop:app", "--json"]) == 0
    rows = [tuple(row.values()) for row in json.loads(capsys.readouterr().out)]
    everywhere = [
        (path, method, *line)
        for path, method in (("/search", "GET"), ("/v2/items/{item}", "GET"), ("/v2/items/{item}", "POST"))
        for line in (
            ("300/min", "ip", path, "middleware"),
            ("99/s", "client_ip", "attempts", "middleware"),
        )
    ]
    assert sorted(rows, key=str) == sorted(
        [
            ("/search", "GET", "asked for each request", "client_ip", "/search", "code"),
            ("/health", "GET", None, None, None, None),
            ("/v2/items/{item}", "GET", "2/min", "client_ip", "/v2/items/{item}", "code"),
            ("/v2/items/{item}", "POST", "post-60s=1/min", "client_ip", "/v2/items/{item}", "code"),
            *everywhere,
        ],
        key=str,
    )


def test_explain_takes_the_limits_of_an_application(whole, capsys):
    assert [whole.post("/v2/items/7").status_code for _ in range(2)] == [200, 429]
    asked = ["explain", "POST /v2/items/{item}", "ip:192.0.2.7", "--rules", "whole_shop:app"]
    assert program.run(asked) == 0
    told = capsys.readouterr().out
    assert told.startswith("refused")
    assert "limit     post-60s (1/min): 1 of 1 used" in told
    assert program.run(["inspect", "/search", "ip:192.0.2.7", "--rules", "whole_shop:app"]) == 0
    assert (
        program.run(["overrides", "set", "/serach", "ip:192.0.2.7", "--max-requests", "5", "--rules", "whole_shop:app"]) == 2
    )
    assert "no limit is declared for the endpoint '/serach'" in capsys.readouterr().err


def test_explain_finds_the_counters_of_a_method_and_a_path(whole, capsys):
    assert [whole.post("/v2/items/7").status_code for _ in range(2)] == [200, 429]
    assert program.run(["explain", "POST /v2/items/{item}", "ip:192.0.2.7"]) == 0
    assert "post-60s  fixed_window  -       1" in capsys.readouterr().out
    assert program.run(["explain", "post /v2/items/{item}", "ip:192.0.2.7", "--limit", "1/min"]) == 0
    assert capsys.readouterr().out.startswith("refused")
