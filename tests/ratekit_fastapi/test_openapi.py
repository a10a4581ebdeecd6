"""The document says 429 for exactly the operations that are limited."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.responses import PlainTextResponse
from openapi_spec_validator import validate
from starlette.testclient import TestClient

import ratekit
import ratekit_fastapi
from ratekit.core.errors import RatekitError
from ratekit_fastapi import RATE_LIMIT_RESPONSES, PathRateLimiter, ProjectRateLimiter, install

LIMITER = PathRateLimiter(5, 60)


def nothing():
    return {}


def documented(app: FastAPI) -> dict[str, list[str]]:
    """Return the operations that a 429 is documented for, of a document that is valid."""
    schema = TestClient(app).get("/openapi.json").json()
    validate(schema)
    found = {
        path: sorted(method for method, operation in operations.items() if "429" in operation["responses"])
        for path, operations in schema["paths"].items()
    }
    return {path: methods for path, methods in found.items() if methods}


def test_exactly_the_limited_operations_say_429():
    app = FastAPI()
    install(app)
    app.get("/limited", dependencies=[Depends(LIMITER)])(nothing)
    app.post("/limited")(nothing)
    app.get("/free")(nothing)

    @app.put("/items/{number}", dependencies=[Depends(ProjectRateLimiter(5, 60))])
    def put(number: int):
        return number

    assert documented(app) == {"/limited": ["get"], "/items/{number}": ["put"]}


def test_operations_of_routers_say_429_under_all_their_prefixes():
    inner = APIRouter(prefix="/in")
    inner.get("/a", dependencies=[Depends(LIMITER)])(nothing)
    inner.get("/b")(nothing)
    outer = APIRouter()
    outer.include_router(inner, prefix="/out")
    app = FastAPI()
    install(app)
    for prefix in ("/v1", "/v2"):
        app.include_router(outer, prefix=prefix)
    app.include_router(inner, prefix="/all", dependencies=[Depends(LIMITER)])
    assert documented(app) == {
        "/v1/out/in/a": ["get"],
        "/v2/out/in/a": ["get"],
        "/all/in/a": ["get"],
        "/all/in/b": ["get"],
    }


def test_limiter_of_the_whole_application_is_documented_everywhere():
    app = FastAPI(dependencies=[Depends(LIMITER)])
    install(app)
    app.get("/a")(nothing)
    app.delete("/a")(nothing)
    assert documented(app) == {"/a": ["delete", "get"]}


def test_limiter_of_a_parameter_and_of_a_nested_dependency_is_documented():
    app = FastAPI()
    install(app)

    def nested(_: None = Depends(LIMITER)):
        return 1

    @app.get("/parameter")
    def parameter(_: None = Depends(LIMITER)):
        return {}

    @app.get("/nested")
    def deep(_: int = Depends(nested)):
        return {}

    assert documented(app) == {"/parameter": ["get"], "/nested": ["get"]}


def test_limiter_of_a_subclass_is_documented():
    class Mine(ProjectRateLimiter):
        pass

    app = FastAPI()
    install(app)
    app.get("/x", dependencies=[Depends(Mine(5, 60))])(nothing)
    assert documented(app) == {"/x": ["get"]}


def test_path_with_a_convertor_is_documented():
    app = FastAPI()
    install(app)

    @app.get("/files/{name:path}", dependencies=[Depends(LIMITER)])
    def file(name: str):
        return name

    assert documented(app) == {"/files/{name}": ["get"]}


def test_routes_that_are_added_after_install_are_documented():
    app = FastAPI()
    install(app)
    app.get("/x", dependencies=[Depends(LIMITER)])(nothing)
    assert documented(app) == {"/x": ["get"]}


def test_routes_that_were_there_before_install_are_documented():
    app = FastAPI()
    app.get("/x", dependencies=[Depends(LIMITER)])(nothing)
    install(app)
    assert documented(app) == {"/x": ["get"]}


def test_own_429_of_an_operation_stays():
    app = FastAPI()
    install(app)
    mine = {429: {"description": "mine"}}
    app.get("/x", dependencies=[Depends(LIMITER)], responses=mine)(nothing)
    schema = app.openapi()
    assert schema["paths"]["/x"]["get"]["responses"]["429"]["description"] == "mine"


def test_hidden_routes_and_websockets_are_no_trouble():
    app = FastAPI()
    install(app)
    app.get("/hidden", include_in_schema=False, dependencies=[Depends(LIMITER)])(nothing)
    app.mount("/sub", FastAPI())

    @app.websocket("/ws", dependencies=[Depends(LIMITER)])
    async def ws(websocket: WebSocket):
        await websocket.accept()

    router = APIRouter()
    router.websocket("/ws", dependencies=[Depends(LIMITER)])(ws)
    router.mount("/sub", FastAPI())
    app.include_router(router, prefix="/v1")
    assert documented(app) == {}


def test_document_stays_as_it_is_when_it_is_asked_for_again():
    app = FastAPI()
    install(app)
    app.get("/x", dependencies=[Depends(LIMITER)])(nothing)
    assert app.openapi() == app.openapi()
    validate(app.openapi())


def test_documenting_can_be_switched_off():
    app = FastAPI()
    install(app, document=False)
    app.get("/x", dependencies=[Depends(LIMITER)])(nothing)
    assert documented(app) == {}


def test_response_says_problem_and_retry_after():
    app = FastAPI()
    install(app)
    app.get("/x", dependencies=[Depends(LIMITER)])(nothing)
    response = app.openapi()["paths"]["/x"]["get"]["responses"]["429"]
    assert list(response["content"]) == ["application/problem+json"]
    assert "Retry-After" in response["headers"]


def test_constant_documents_a_router_without_install():
    app = FastAPI()
    router = APIRouter(responses=RATE_LIMIT_RESPONSES)
    router.get("/x")(nothing)
    app.include_router(router)
    assert documented(app) == {"/x": ["get"]}


@pytest.mark.parametrize("version", ["3.1.0", "3.0.2"])
def test_document_is_valid_in_either_version(version):
    app = FastAPI()
    app.openapi_version = version
    install(app)
    app.get("/x", dependencies=[Depends(LIMITER)])(nothing)
    assert documented(app) == {"/x": ["get"]}


def test_app_without_a_document_is_no_trouble(ratekit_clock):
    app = FastAPI(openapi_url=None)
    install(app)
    app.get("/x", dependencies=[Depends(LIMITER)])(nothing)
    assert TestClient(app).get("/x").status_code == 200


def responses_of(limiter, prepare=None, **options):
    app = FastAPI()
    install(app, **options)
    app.get("/x", dependencies=[Depends(limiter)])(nothing)
    if prepare is not None:
        prepare(app)
    validate(app.openapi())
    return app.openapi()["paths"]["/x"]["get"]["responses"], TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("style", ["ratelimit", "draft-11", "x-ratelimit", ["ratelimit", "draft-11"]])
def test_headers_that_are_sent_are_those_that_are_described(style, ratekit_store):
    responses, client = responses_of(PathRateLimiter(1, 60), headers=style)
    for status in ("200", "429"):
        answer = client.get("/x")
        assert str(answer.status_code) == status
        described = {name.lower() for name in responses[status]["headers"]}
        assert described == {name for name in answer.headers if "ratelimit" in name or name == "retry-after"}


def test_style_none_describes_no_headers_but_retry_after(ratekit_store):
    responses, _ = responses_of(PathRateLimiter(1, 60), headers="none")
    assert responses["200"]["headers"] == {}
    assert list(responses["429"]["headers"]) == ["Retry-After"]


def test_body_that_is_sent_has_the_members_that_are_described(ratekit_store):
    responses, client = responses_of(PathRateLimiter(1, 60))
    client.get("/x")
    schema = responses["429"]["content"]["application/problem+json"]["schema"]
    assert client.get("/x").json().keys() == schema["properties"].keys()


@pytest.mark.parametrize(
    ("body", "kind"),
    [(lambda result: {"error": result.limit}, "application/json"), (lambda result: "slow down", "text/plain")],
)
def test_body_of_ones_own_is_described_by_its_type(body, kind, ratekit_store):
    responses, client = responses_of(PathRateLimiter(1, 60), body=body)
    client.get("/x")
    assert list(responses["429"]["content"]) == [kind]
    assert client.get("/x").headers["Content-Type"].startswith(kind)


def test_body_that_needs_a_request_is_not_described(caplog):
    responses, _ = responses_of(PathRateLimiter(1, 60), body=lambda result: {}["request"])
    assert "content" not in responses["429"]
    assert "body=" in caplog.text


async def mine(request, error):
    return PlainTextResponse("mine", status_code=429)


@pytest.mark.parametrize(
    "kind",
    [429, ratekit.RateLimitExceeded, ratekit_fastapi.RateLimitExceeded, RatekitError],
    ids=["status", "core", "front", "base"],
)
def test_body_of_a_handler_of_ones_own_is_not_described(kind):
    responses, _ = responses_of(PathRateLimiter(1, 60), lambda app: app.add_exception_handler(kind, mine))
    assert "content" not in responses["429"]


BY_FIELD = PathRateLimiter(1, 60, by="json:email")
REFUSING = ProjectRateLimiter(1, 60, anonymous="refuse")


@pytest.mark.parametrize(
    ("limiter", "options", "statuses"),
    [
        (PathRateLimiter(1, 60), {}, {"429"}),
        (ProjectRateLimiter(1, 60), {}, {"429"}),
        (REFUSING, {}, {"401", "429"}),
        (ProjectRateLimiter(1, 60, anonymous="refuse", by="ip"), {}, {"429"}),
        (BY_FIELD, {}, {"400", "413", "429"}),
        (PathRateLimiter(1, 60, cost=lambda request: 1), {}, {"400", "429"}),
        (PathRateLimiter(1, 60, on_outage="closed"), {}, {"429", "503"}),
        (PathRateLimiter(1, 60), {"on_outage": "closed"}, {"429", "503"}),
        (PathRateLimiter(1, 60, on_outage="open"), {"on_outage": "closed"}, {"429"}),
        (PathRateLimiter(1, 60, mode="monitor", on_outage="closed"), {}, set()),
        (PathRateLimiter(1, 60, mode="off"), {}, set()),
    ],
)
def test_exactly_the_answers_that_can_occur_are_described(limiter, options, statuses):
    responses, _ = responses_of(limiter, **options)
    assert responses.keys() - {"200", "422"} == statuses


def test_answers_that_are_described_are_sent(ratekit_store):
    responses, client = responses_of(REFUSING)
    assert client.get("/x").status_code == 401
    assert list(responses["401"]["content"]) == [client.get("/x").headers["Content-Type"]]
    responses, client = responses_of(PathRateLimiter(1, 60), store="redis://127.0.0.1:1", on_outage="closed")
    answer = client.get("/x")
    assert answer.status_code == 503
    assert list(responses["503"]["content"]) == [answer.headers["Content-Type"]]
    assert list(responses["503"]["headers"]) == ["Retry-After"]
    responses, client = responses_of(BY_FIELD)
    answer = client.request("GET", "/x", content=b"x" * 100_000, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert list(responses["413"]["content"]) == [answer.headers["Content-Type"]]
