"""The document says 429 for exactly the operations that are limited."""

from __future__ import annotations

import pytest
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from openapi_spec_validator import validate
from starlette.testclient import TestClient

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
