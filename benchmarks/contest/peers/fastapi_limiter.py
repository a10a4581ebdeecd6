"""fastapi-limiter: its dependency, called with a request; it decides by pyrate-limiter."""

from __future__ import annotations

from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi_limiter.depends import RateLimiter

from benchmarks.contest.loads import Answer, AsyncCheck, Load
from benchmarks.contest.peers.pyrate import async_limiter
from benchmarks.contest.peers.requests import request_of


async def open_async(url: str, load: Load) -> AsyncCheck:
    """Await the dependency of a route."""
    app, dependency = FastAPI(), RateLimiter(limiter=await async_limiter(url, load))

    @app.get("/", dependencies=[Depends(dependency)])
    async def read() -> None:
        """Stand for a route."""

    async def check(subject: str) -> Answer:
        try:
            await dependency(request_of(app, subject), Response())
        except HTTPException:
            return False, None, None
        return True, None, None

    return check
