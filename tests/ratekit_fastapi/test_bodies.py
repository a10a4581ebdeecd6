"""Key functions that look into the body leave it to the endpoint; in a dependency, and in the middleware around the app."""

from __future__ import annotations

import json

import pytest
from fastapi import Body, Depends, FastAPI, Form, Request, UploadFile
from pydantic import BaseModel
from starlette.testclient import TestClient

from ratekit.asgi import RateLimitMiddleware
from ratekit.identity import first_of, form_field, json_field
from ratekit_fastapi import PathRateLimiter, install

pytestmark = pytest.mark.filterwarnings("ignore::ratekit.guard.UnverifiedIdentityWarning")

FRONTS = ["dependency", "middleware"]


class Order(BaseModel):
    user: dict
    note: str = ""


def endpoints(dependencies) -> FastAPI:
    """One endpoint for each way to read a body."""
    app = FastAPI()

    @app.post("/model", dependencies=dependencies)
    async def model(order: Order):
        return order.model_dump()

    @app.post("/raw", dependencies=dependencies)
    async def raw(request: Request):
        return {"size": len(await request.body())}

    @app.post("/stream", dependencies=dependencies)
    async def stream(request: Request):
        return {"size": sum([len(chunk) async for chunk in request.stream()])}

    @app.post("/sync", dependencies=dependencies)
    def sync(order: dict = Body()):  # noqa: B008 - that is how FastAPI is told
        return order

    @app.post("/form", dependencies=dependencies)
    async def form(user: str = Form(), note: str = Form("")):
        return {"user": user, "note": note}

    @app.post("/raw-form", dependencies=dependencies)
    async def raw_form(request: Request):
        async with request.form() as fields:
            return dict(fields)

    @app.post("/upload", dependencies=dependencies)
    async def upload(file: UploadFile, user: str = Form("")):
        return {"size": len(await file.read()), "name": file.filename, "user": user}

    return app


@pytest.fixture(params=FRONTS)
def make(request):
    """Make a client of an application that is limited by something in the body."""

    def client_of(by, limit="2/min") -> TestClient:
        if request.param == "dependency":
            app = endpoints([Depends(PathRateLimiter(limits=[limit], by=by))])
            install(app)
        else:
            app = endpoints([])
            app.add_middleware(RateLimitMiddleware, store="memory://", default=limit, by=by)
        return TestClient(app, raise_server_exceptions=False, client=("203.0.113.7", 1))

    return client_of


@pytest.mark.parametrize("path", ["/model", "/sync", "/raw", "/stream"])
@pytest.mark.parametrize("by", ["json:user.id", json_field("user.id")], ids=["text", "function"])
def test_field_of_json_counts_and_the_endpoint_reads_it_too(by, path, make, ratekit_clock):
    client = make(by)
    for user in ("ann", "bob"):
        body = {"user": {"id": user}, "note": "n" * 1000}
        answers = [client.post(path, json=body) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[1].json() in (body, {"size": len(json.dumps(body, separators=(",", ":")))})


@pytest.mark.parametrize("path", ["/form", "/raw-form"])
@pytest.mark.parametrize("by", ["form:user", form_field("user")], ids=["text", "function"])
def test_field_of_a_form_counts_and_the_endpoint_reads_it_too(by, path, make, ratekit_clock):
    client = make(by)
    for user in ("ann", "bob"):
        answers = [client.post(path, data={"user": user, "note": "é&="}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[1].json() == {"user": user, "note": "é&="}


def test_upload_stays_intact(make, ratekit_clock):
    client = make("form:user")
    content = bytes(range(256)) * 200
    answer = client.post("/upload", files={"file": ("a.bin", content)}, data={"user": "ann"})
    assert answer.status_code == 200
    assert answer.json() == {"size": len(content), "name": "a.bin", "user": "ann"}


def test_body_that_is_too_large_is_a_413(make, ratekit_clock):
    client = make(json_field("user.id", most_body=100))
    assert client.post("/model", json={"user": {"id": "a"}}).status_code == 200
    answer = client.post("/model", json={"user": {"id": "a"}, "note": "n" * 200})
    assert answer.status_code == 413
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "100" in answer.json()["detail"]


def test_form_that_is_too_large_is_a_413(make, ratekit_clock):
    client = make(form_field("user", most_body=100))
    assert client.post("/form", data={"user": "a", "note": "n" * 200}).status_code == 413


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"user=1"])
def test_body_that_is_not_json_is_a_400(body, make, ratekit_clock):
    answer = make("json:user.id").post("/raw", content=body)
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "user.id" in answer.json()["detail"]


def test_who_is_not_in_the_body_does_not_pass_for_free(make, ratekit_clock):
    client = make("json:user.id")
    answers = [client.post("/model", json={"user": {}}).status_code for _ in range(3)]
    assert answers == [200, 200, 429]


def test_who_sends_no_body_does_not_pass_for_free(make, ratekit_clock):
    client = make("json:user.id")
    assert [client.post("/raw").status_code for _ in range(3)] == [200, 200, 429]


def test_chain_may_look_into_the_body(make, ratekit_clock):
    client = make(first_of("header:X-Key", "json:user.id"))
    body = {"user": {"id": "ann"}}
    assert [client.post("/model", json=body).status_code for _ in range(3)] == [200, 200, 429]
    assert client.post("/model", json=body, headers={"X-Key": "k"}).status_code == 200


def test_value_of_the_body_does_not_show_up_in_keys(make, keys, ratekit_clock):
    make("json:user.id").post("/model", json={"user": {"id": "hunter2"}})
    assert len(keys()) == 1
    assert "hunter2" not in keys()[0]


def test_get_without_a_body_is_no_500(make, ratekit_clock):
    client = make("form:user")
    client.app.get("/free")(lambda: "free")
    assert client.get("/free").status_code == 200
