"""Limits that the endpoint itself applies, by what it has found in the request."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
import redis.asyncio
from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.testclient import TestClient

import ratekit
from ratekit.testing import assert_admits
from ratekit.web.identity import passes
from ratekit_fastapi import (
    ProjectRateLimiter,
    RateLimitExceeded,
    apply_element_rate_limit,
    apply_rate_limit,
    install,
)


class Matrix(BaseModel):
    rows: list[list[float]]


TEN_BY_FIVE = {"rows": [[0.0] * 5] * 10}


def applying(apply, *, path="/x", identify=lambda request: ("acme", "p1"), install_options=None, **options):
    """Make a client of an application whose endpoint applies a limit, and the list of results that it got."""
    app = FastAPI()
    install(app, identify=identify, **(install_options or {}))
    results = []

    @app.post(path)
    async def endpoint(request: Request, response: Response):
        results.append(await apply(request, response, **options))
        return {}

    client = TestClient(app, raise_server_exceptions=False)
    client.results = results
    return client


def matrix_client(**install_options):
    """Five requests and 120 elements a minute."""
    app = FastAPI()
    install(app, identify=lambda request: ("acme", "p1"), **install_options)

    @app.post("/matrix")
    async def matrix(body: Matrix, request: Request, response: Response):
        await apply_rate_limit(request, response, max_requests=5, expiry=60)
        elements = sum(len(row) for row in body.rows)
        result = await apply_element_rate_limit(request, response, max_requests=120, expiry=60, increment_amount=elements)
        return {"used": result.request_count}

    return TestClient(app, raise_server_exceptions=False)


def test_endpoint_can_limit_by_numbers_it_has_found(ratekit_clock):
    client = applying(apply_rate_limit, max_requests=3, expiry=60)
    assert_admits(lambda: client.post("/x"), exactly=3)


def test_result_is_returned(ratekit_clock):
    client = applying(apply_rate_limit, max_requests=3, expiry=60, increment_amount=2)
    client.post("/x")
    result = client.results[0]
    assert (result.request_count, result.remaining, result.max_requests, result.ttl) == (2, 1, 3, 60)


def test_headers_are_those_of_the_applied_limit(ratekit_clock):
    client = applying(apply_rate_limit, max_requests=1, expiry=60)
    passed, refused = client.post("/x"), client.post("/x")
    assert (passed.headers["RateLimit-Limit"], passed.headers["RateLimit-Remaining"]) == ("1", "0")
    assert "Retry-After" not in passed.headers
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")
    assert refused.json()["violated-policies"] == ["post minute"]


def test_matrix_of_ten_by_five_costs_fifty(ratekit_clock):
    client = matrix_client()
    answer = client.post("/matrix", json=TEN_BY_FIVE)
    assert answer.json() == {"used": 50}
    assert client.post("/matrix", json=TEN_BY_FIVE).json() == {"used": 100}
    assert client.post("/matrix", json=TEN_BY_FIVE).status_code == 429
    assert client.post("/matrix", json={"rows": [[0.0] * 20]}).json() == {"used": 120}


def test_elements_and_requests_are_two_independent_limits(keys, ratekit_clock):
    client = matrix_client()
    client.post("/matrix", json=TEN_BY_FIVE)
    assert keys() == ["ratelimit:/matrix:/elements:{acme:p1}:post-60s", "ratelimit:/matrix:{acme:p1}:post-60s"]
    small = {"rows": [[1.0]]}
    assert [client.post("/matrix", json=small).status_code for _ in range(5)] == [200, 200, 200, 200, 429]


def test_headers_are_those_of_the_limit_closest_to_refusing_for_its_size(ratekit_clock):
    answer = matrix_client().post("/matrix", json=TEN_BY_FIVE)
    assert (answer.headers["RateLimit-Limit"], answer.headers["RateLimit-Remaining"]) == ("120", "70")


def test_elements_have_an_override_of_their_own(store, ratekit_clock):
    store.execute("HSET", "ratelimit_override:/matrix:/elements:{acme:p1}", "max_requests", "50")
    client = matrix_client()
    assert client.post("/matrix", json=TEN_BY_FIVE).status_code == 200
    assert client.post("/matrix", json={"rows": [[1.0]]}).status_code == 429


def test_suffix_of_elements_can_be_chosen(keys, ratekit_clock):
    client = applying(apply_element_rate_limit, max_requests=9, expiry=60, increment_amount=3, key_suffix="/cells")
    client.post("/x")
    assert keys() == ["ratelimit:/x:/cells:{acme:p1}:post-60s"]
    assert client.results[0].remaining == 6


def test_endpoint_of_elements_can_be_chosen(keys, ratekit_clock):
    client = applying(apply_element_rate_limit, max_requests=9, expiry=60, increment_amount=3, endpoint="matrices")
    client.post("/x")
    assert keys() == ["ratelimit:matrices:/elements:{acme:p1}:60s"]


def test_more_elements_than_ever_fit_are_refused_without_retry_after(ratekit_clock):
    client = applying(apply_element_rate_limit, max_requests=49, expiry=60, increment_amount=50)
    answer = client.post("/x")
    assert answer.status_code == 429
    assert "Retry-After" not in answer.headers


@pytest.mark.parametrize("apply", [apply_rate_limit, apply_element_rate_limit])
def test_client_that_is_brought_is_used_in_place_of_the_store(apply, redis_server, keys):
    async def main():
        async with redis.asyncio.Redis.from_url(redis_server.url, socket_timeout=5) as client:
            app = applying(apply, max_requests=2, expiry=600, increment_amount=1, redis_client=client).app
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
                return [(await http.post("/x")).status_code for _ in range(3)]

    assert asyncio.run(main()) == [200, 200, 429]
    suffix = ":/elements" if apply is apply_element_rate_limit else ""
    with redis_server.client() as raw:
        assert raw.keys("ratelimit:*") == [f"ratelimit:/x{suffix}:{{acme:p1}}:post-600s".encode()]
    assert keys() == []


def test_subject_can_be_given(keys, ratekit_clock):
    client = applying(apply_rate_limit, max_requests=2, expiry=60, subject="job:7", identify=None)
    assert_admits(lambda: client.post("/x"), exactly=2)
    assert keys() == ["ratelimit:/x:{job:7}:post-60s"]


def test_request_without_a_project_is_not_limited_when_asked_and_counted(ratekit_clock):
    client = applying(apply_rate_limit, max_requests=1, expiry=60, identify=None, anonymous="pass")
    assert [client.post("/x").status_code for _ in range(2)] == [200, 200]
    assert client.results == [None, None]
    assert passes == {"/x": 2}


@pytest.mark.parametrize(("anonymous", "status"), [(None, 429), ("ip", 429), ("refuse", 401)])
def test_request_without_a_project_is_treated_as_asked(anonymous, status, ratekit_clock):
    client = applying(apply_rate_limit, max_requests=1, expiry=60, identify=None, anonymous=anonymous)
    client = TestClient(client.app, client=("203.0.113.7", 1))
    client.post("/x")
    assert client.post("/x").status_code == status


def test_endpoint_may_catch_the_refusal(ratekit_clock):
    app = FastAPI()
    install(app, identify=lambda request: "me")
    caught = []

    @app.get("/x")
    async def x(request: Request, response: Response):
        try:
            await apply_rate_limit(request, response, max_requests=1, expiry=60)
        except ratekit.RateLimitExceeded as error:
            caught.append(error)
            return {"cached": True}
        return {"cached": False}

    client = TestClient(app)
    assert [client.get("/x").json()["cached"] for _ in range(2)] == [False, True]
    assert isinstance(caught[0], RateLimitExceeded)
    assert isinstance(caught[0], StarletteHTTPException)
    assert caught[0].result.is_over_limit
    assert caught[0].status_code == 429


def test_answer_after_a_caught_refusal_has_no_retry_after(ratekit_clock):
    app = FastAPI()
    install(app, identify=lambda request: "me")

    @app.get("/x")
    async def x(request: Request, response: Response):
        try:
            await apply_rate_limit(request, response, max_requests=1, expiry=60)
        except RateLimitExceeded:
            return {"cached": True}
        return {}

    client = TestClient(app)
    client.get("/x")
    answer = client.get("/x")
    assert answer.status_code == 200
    assert answer.headers["RateLimit-Remaining"] == "0"
    assert "Retry-After" not in answer.headers


@pytest.mark.parametrize(
    ("mode", "statuses"), [("off", [200, 200, 200]), ("monitor", [200, 200, 200]), ("on", [200, 429, 429])]
)
def test_mode_holds_for_applied_limits(mode, statuses, monkeypatch, ratekit_clock):
    monkeypatch.setenv("RATE_LIMIT_MODE", mode)
    client = applying(apply_rate_limit, max_requests=1, expiry=60)
    answers = [client.post("/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == statuses
    assert ("RateLimit-Limit" in answers[0].headers) is (mode != "off")


def test_applied_limit_stands_beside_a_declared_one(keys, ratekit_clock):
    app = FastAPI()
    install(app, identify=lambda request: "me")

    @app.get("/x", dependencies=[Depends(ProjectRateLimiter(9, 1))])
    async def x(request: Request, response: Response):
        await apply_rate_limit(request, response, max_requests=2, expiry=60)
        return {}

    client = TestClient(app)
    assert_admits(lambda: client.get("/x"), exactly=2)
    assert keys() == ["ratelimit:/x:{me}:1s", "ratelimit:/x:{me}:60s"]


def test_limit_is_applied_without_install(ratekit_clock):
    app = FastAPI()

    @app.get("/x")
    async def x(request: Request, response: Response):
        await apply_rate_limit(request, response, max_requests=1, expiry=60, subject="me")
        return {}

    client = TestClient(app)
    passed, refused = client.get("/x"), client.get("/x")
    assert (passed.status_code, passed.headers["RateLimit-Remaining"]) == (200, "0")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "60")


@pytest.mark.parametrize("amount", ["x", 1.5, None, True])
@pytest.mark.parametrize("apply", [apply_rate_limit, apply_element_rate_limit])
def test_amount_of_a_wrong_type_is_a_500(apply, amount, ratekit_clock):
    assert applying(apply, max_requests=9, expiry=60, increment_amount=amount).post("/x").status_code == 500


@pytest.mark.parametrize("amount", [-1, 10**13])
@pytest.mark.parametrize("apply", [apply_rate_limit, apply_element_rate_limit])
def test_amount_that_cannot_be_spent_is_a_400(apply, amount, ratekit_clock):
    answer = applying(apply, max_requests=9, expiry=60, increment_amount=amount).post("/x")
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert repr(amount) in answer.json()["detail"]


@pytest.mark.parametrize("options", [{"max_requests": 0}, {"expiry": -1}, {"mode": "x"}, {"on_outage": "x"}], ids=str)
async def test_number_that_makes_no_sense_is_told_to_the_endpoint(options):
    request = Request({"type": "http", "headers": [], "path": "/", "method": "GET"})
    with pytest.raises(ratekit.ConfigurationError):
        await apply_rate_limit(request, Response(), **({"max_requests": 5, "expiry": 60} | options))
