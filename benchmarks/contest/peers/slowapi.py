"""slowapi: a decorated endpoint, called with a request. It waits for Redis on the event loop, so nothing else runs."""

from __future__ import annotations

import asyncio
import logging

from fastapi import FastAPI, Request
from slowapi import Limiter
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

from benchmarks.contest.loads import Answer, AsyncCheck, Load
from benchmarks.contest.peers.requests import request_of


async def open_async(url: str, load: Load) -> AsyncCheck:
    """Await an endpoint that does nothing."""
    logging.getLogger("slowapi").disabled = True  # a line for each refusal is not what is measured
    app, limiter = FastAPI(), Limiter(key_func=get_remote_address, storage_uri=url)

    @limiter.limit(";".join(f"{most} per {window} second" for most, window in load.limits))
    async def read(request: Request) -> None:
        """Stand for a route."""

    async def check(subject: str) -> Answer:
        await asyncio.sleep(0)  # as a request would wait for its turn behind those that block
        try:
            await read(request=request_of(app, subject))
        except RateLimitExceeded:
            return False, None, None
        return True, None, None

    return check
