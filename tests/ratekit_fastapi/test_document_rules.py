"""install(app, rules=…): a document limits the whole application, beside the limiters of its routes."""

from __future__ import annotations

from fastapi import Depends, FastAPI, Request
from starlette.testclient import TestClient

from ratekit_fastapi import PathRateLimiter, install
from support import published_key_parsers  # noqa: F401 - named by a document


def application(*limiters, **options) -> TestClient:
    app = FastAPI()
    install(app, **options)

    @app.post("/v1/{tenant}/chat", dependencies=[Depends(limiter) for limiter in limiters])
    async def chat(tenant: str, request: Request) -> object:
        return await request.json()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {}

    return TestClient(app)


def test_document_limits_by_what_the_body_says_and_leaves_it_to_the_route():
    rule = {
        "match": {"path": "/v1/{tenant}/chat"},
        "by": {"tenant": "path:tenant", "model": "json:model"},
        "limits": "1/min",
        "custom": {"tenant:acme:*": "2/min"},
    }
    client = application(rules={"rules": [rule]})
    asked = [("free", "a"), ("free", "a"), ("free", "b"), ("acme", "a"), ("acme", "a"), ("acme", "a")]
    answers = [client.post(f"/v1/{tenant}/chat", json={"model": model}) for tenant, model in asked]
    assert [answer.status_code for answer in answers] == [200, 429, 200, 200, 200, 429]
    assert answers[0].json() == {"model": "a"}
    assert answers[0].headers["RateLimit-Limit"] == "1"
    assert client.get("/health").status_code == 200


def test_key_parser_of_a_document_works_as_it_is_written():
    rule = {"by": "function:support.published_key_parsers:sentiment", "limits": "1/min"}
    client = application(rules={"rules": [rule]}, service="sentiment")
    asked = [{"tenant_id": "a", "language": "en"}] * 2 + [{"tenant_id": "a", "language": "de"}]
    assert [client.post("/v1/a/chat", json=values).status_code for values in asked] == [200, 429, 200]


def test_request_that_a_route_refuses_has_spent_nothing_of_the_document():
    client = application(PathRateLimiter(limits="1/min"), rules={"rules": [{"limits": "2/min"}]})
    assert [client.post("/v1/a/chat", json={}).status_code for _ in range(3)] == [200, 429, 429]
    assert [client.get("/health").status_code for _ in range(2)] == [200, 429]


def test_plan_of_gets_the_request_of_the_application():
    async def plan_of(request: Request) -> str | None:
        return request.headers.get("x-plan")

    rules = {"plans": {"free": "1/min", "pro": "2/min"}, "rules": [{"limits": "plan", "by": "header:x-plan"}]}
    client = application(rules=rules, plan_of=plan_of)
    plans = ["free", "free", "pro", "pro", "pro"]
    assert [client.get("/health", headers={"X-Plan": plan}).status_code for plan in plans] == [200, 429, 200, 200, 429]
