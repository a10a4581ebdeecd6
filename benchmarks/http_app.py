"""The same small FastAPI application, limited in different ways; RATEKIT_BENCHMARK_CASE says which."""

from __future__ import annotations

import os
from typing import Any

from fastapi import Depends, FastAPI, Response

from ratekit.asgi import RateLimitMiddleware
from ratekit_fastapi import PathRateLimiter, install

MANY = 10**9


def set_constant_headers(response: Response) -> None:
    """Set what a limiter would set, and decide nothing."""
    response.headers["RateLimit-Limit"] = "100"
    response.headers["RateLimit-Remaining"] = "99"
    response.headers["RateLimit-Reset"] = "60"


async def set_constant_headers_async(response: Response) -> None:
    """Do the same without a thread."""
    set_constant_headers(response)


def make(case: str, store: str | None) -> Any:
    """Make the application of a case."""
    app = FastAPI()
    dependencies: list[Any] = []
    if case == "constant headers":
        dependencies = [Depends(set_constant_headers_async)]
    elif case == "dependency":
        dependencies = [Depends(PathRateLimiter(MANY, 60))]
    elif case == "dependency, installed":
        dependencies = [Depends(PathRateLimiter(MANY, 60))]
        install(app, store=store)
    elif case == "dependency by address, installed":
        dependencies = [Depends(PathRateLimiter(MANY, 60, by="ip"))]
        install(app, store=store)

    @app.get("/", dependencies=dependencies)
    async def read() -> dict[str, str]:
        return {"hello": "world"}

    return RateLimitMiddleware(app, store=store, default=f"{MANY}/min") if case == "middleware" else app


app = make(os.environ.get("RATEKIT_BENCHMARK_CASE", "plain"), os.environ.get("RATE_LIMIT_STORE_URL"))
