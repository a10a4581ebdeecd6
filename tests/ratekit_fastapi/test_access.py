"""What an application gets of ratekit in code: its limiter, and the health of the store."""

from __future__ import annotations

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ratekit import AsyncRateLimiter, ConfigurationError, Limit
from ratekit_fastapi import PathRateLimiter, apply_rate_limit, install, limiter_of


def nothing():
    return {}


def test_limiter_of_an_application_counts_what_its_routes_count(ratekit_store):
    app = FastAPI()
    install(app)
    app.get("/x", dependencies=[Depends(PathRateLimiter(5, 60, by="ip"))])(nothing)

    @app.get("/left")
    async def left() -> int:
        look = await limiter_of(app).peek(Limit(5, 60), "ip:192.0.2.7", endpoint="/x")
        return look.remaining

    client = TestClient(app, client=("192.0.2.7", 1))
    client.get("/x")
    assert client.get("/left").json() == 4


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_limiter_has_the_store_the_prefix_and_the_health_of_its_application(kind):
    app = kind()
    install(app, store="memory://other", prefix="shop")
    limiter = limiter_of(app)
    assert isinstance(limiter, AsyncRateLimiter)
    assert limiter is limiter_of(app)
    assert limiter.prefix == "shop"
    assert (limiter.health().state, limiter.health().reason) == ("up", None)


def test_health_says_why_a_store_is_not_up():
    app = FastAPI()
    install(app, store="redis://127.0.0.1:1")
    app.get("/x", dependencies=[Depends(PathRateLimiter(5, 60))])(nothing)
    with TestClient(app) as client:
        for _ in range(10):
            client.get("/x")
        health = limiter_of(app).health()
        assert health.state != "up"
        assert health.reason


def test_application_without_install_has_no_limiter():
    with pytest.raises(ConfigurationError, match=r"call install\(app\) first"):
        limiter_of(FastAPI())


def test_starlette_is_installed_in_and_limited_by_hand(ratekit_store):
    async def limited(request):
        await apply_rate_limit(request, PlainTextResponse(), max_requests=1, expiry=60, subject="ann")
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/x", limited)])
    install(app)
    client = TestClient(app)
    answers = [client.get("/x") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert [answer.headers["RateLimit-Limit"] for answer in answers] == ["1", "1"]
    assert answers[1].headers["Content-Type"] == "application/problem+json"
