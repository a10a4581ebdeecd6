"""The API that riders use. Three endpoints ask the matching service; a middleware lets each rider ask as often as is fair.

RATE_LIMIT_STORE_URL names the Redis of the limits, MATCHING_PORT the matching service. RATE_LIMIT_MODE=off limits nobody.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from matching import NoConnectionError, Pool

from ratekit import Limit, RateLimitResult
from ratekit.asgi import RateLimitMiddleware
from ratekit.identity import client_ip, first_of, header

# Riders send about three requests a second. A bucket of one, refilled in the time that a rider waits for an answer anyway.
LIMITS = {
    "/api/rides/request": Limit(3, 60, burst=1),
    "/api/fares/estimate": Limit(1, 60, burst=1),
    "/api/drivers/nearby": Limit(1, 60, burst=1),
}

pool = Pool(int(os.environ.get("MATCHING_PORT", "8100")))


def refusal(result: RateLimitResult) -> dict[str, Any]:
    return {"error": "rate_limit_exceeded", "retry_after_seconds": result.retry_after}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    await pool.open()
    yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(
    RateLimitMiddleware,
    rules=LIMITS,
    default=None,
    by=first_of(header("X-API-Key"), header("X-User-Id"), client_ip()),
    # Riders say themselves who they are: this bounds all names of one address together. Locust is one address.
    address_limit=Limit(1_000_000, 60),
    deadline=0.25,  # riders, API, matching and Redis share two processors here
    headers="x-ratelimit",
    body=refusal,
)


async def match(rider: str) -> str:
    try:
        return await pool.match(rider)
    except NoConnectionError:
        raise HTTPException(503, "no connection to the matching service") from None


@app.post("/api/rides/request")
async def request_ride(ride: dict[str, Any]) -> dict[str, str]:
    return {"driver": await match(str(ride["rider_id"]))}


@app.post("/api/fares/estimate")
async def estimate_fare(fare: dict[str, Any]) -> dict[str, Any]:
    return {"driver": await match("fare"), "fare": 12.5, "pickup": fare["pickup"]}


@app.get("/api/drivers/nearby")
async def nearby_drivers(lat: float, lng: float) -> dict[str, Any]:
    return {"drivers": [await match("nearby")], "near": [lat, lng]}


@app.get("/load")
async def load() -> dict[str, float]:
    return pool.load.document()


@app.delete("/load")
async def measure_anew() -> None:
    pool.measure_anew()
