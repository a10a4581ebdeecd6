"""ratekit limits: every endpoint of an application, with its limits and where they come from."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest
from fastapi import APIRouter, Depends, FastAPI

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
