"""Key functions that look into the body leave it to the endpoint; in a dependency, and in the middleware around the app."""

from __future__ import annotations

import json

import pytest
from fastapi import Body, Depends, FastAPI, Form, Request, UploadFile
from pydantic import BaseModel
from starlette.testclient import TestClient

from ratekit.asgi import RateLimitMiddleware
from ratekit.web.identity import first_of, form_field, json_field
from ratekit_fastapi import PathRateLimiter, install

pytestmark = pytest.mark.filterwarnings("ignore::ratekit.web.options.UnverifiedIdentityWarning")

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


@pytest.mark.parametrize("path", ["/raw", "/stream"])
def test_form_that_counts_can_be_read_raw(path, make, ratekit_clock):
    answer = make("form:user").post(path, data={"user": "ann"})
    assert answer.json() == {"size": len("user=ann")}


def test_field_of_an_upload_counts_and_the_upload_stays_intact(make, ratekit_clock):
    client = make("form:user")
    content = bytes(range(256)) * 200
    for user in ("ann", "bob"):
        answers = [client.post("/upload", files={"file": ("a.bin", content)}, data={"user": user}) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].json() == {"size": len(content), "name": "a.bin", "user": user}


def test_upload_that_fastapi_has_on_the_disk_may_be_large(ratekit_clock):
    app = endpoints([Depends(PathRateLimiter(limits=["1/min"], by="form:user"))])
    install(app)
    client = TestClient(app)
    answers = [client.post("/upload", files={"file": ("a", b"x" * 300_000)}, data={"user": "ann"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]


SEVERAL = {
    "form": {"content": "user=x&user=victim", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
    "multipart": {"files": [("user", (None, "x")), ("user", (None, "victim")), ("file", ("a", b"1"))]},
}


@pytest.mark.parametrize("path", ["/form", "/raw-form", "/raw"])
@pytest.mark.parametrize("kind", SEVERAL)
def test_several_different_values_of_a_field_are_a_400(kind, path, make, ratekit_clock):
    assert make("form:user").post(path, **SEVERAL[kind]).status_code == 400


def test_field_that_is_a_text_and_a_file_is_a_400(make, ratekit_clock):
    fields = [("user", (None, "x")), ("user", ("a", b"victim"))]
    assert make("form:user").post("/raw-form", files=fields).status_code == 400


@pytest.mark.parametrize("body", [b"x", b"--b\r\nX y: z\r\n\r\n\r\n--b--\r\n"])
def test_malformed_multipart_form_is_a_400(body, make, ratekit_clock):
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert make("form:user").post("/raw", content=body, headers=kind).status_code == 400


def test_json_under_the_label_of_a_form_is_read(make, ratekit_clock):
    """As curl -d sends it, and as an endpoint that calls request.json() reads it."""
    client, form = make("json:user.id"), {"Content-Type": "application/x-www-form-urlencoded"}
    for user in ("ann", "bob"):
        body = json.dumps({"user": {"id": user}})
        assert [client.post("/raw", content=body, headers=form).status_code for _ in range(3)] == [200, 200, 429]


def test_form_where_json_is_asked_for_is_a_400(make, ratekit_clock):
    assert make("json:user.id").post("/form", data={"user": "ann"}).status_code == 400


def test_thousands_of_parameters_before_a_field_of_the_body_are_a_400(make, ratekit_clock):
    client = make(first_of("query:q", "json:user.id"))
    assert client.post("/raw?" + "&".join(f"q{number}=1" for number in range(1500)), json={}).status_code == 400


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


class Upload:
    """A request with a body of a hundred chunks, which counts how many of them were asked for."""

    def __init__(self, app: FastAPI, *, with_length: bool) -> None:
        self.app = app
        self.received = 0
        self.status = None
        self.answer = b""
        self.lines = [(b"content-type", b"application/json"), *([(b"content-length", b"1000000")] if with_length else [])]

    async def receive(self):
        self.received += 1
        return {"type": "http.request", "body": b" " * 10_000, "more_body": self.received < 100}

    async def send(self, message):
        self.status = message.get("status", self.status)
        self.answer += message.get("body", b"")

    async def post(self, path: str) -> None:
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": self.lines}
        await self.app(scope | {"client": ("203.0.113.7", 1), "http_version": "1.1"}, self.receive, self.send)


def app_by(by, **options) -> FastAPI:
    app = endpoints([Depends(PathRateLimiter(limits=["9/min"], by=by, **options))])
    install(app)
    return app


@pytest.mark.parametrize("path", ["/model", "/sync", "/raw", "/stream"])
@pytest.mark.parametrize("with_length", [True, False])
async def test_no_more_is_read_of_a_body_than_the_bound(path, with_length, ratekit_clock):
    """FastAPI reads the body of /model and /sync itself, before any limiter runs."""
    upload = Upload(app_by("json:user.id"), with_length=with_length)
    await upload.post(path)
    assert upload.status == json.loads(upload.answer)["status"] == 413
    assert upload.received == (0 if with_length else 7)


async def test_no_more_is_read_of_a_body_than_the_bound_without_install(ratekit_clock):
    upload = Upload(endpoints([Depends(PathRateLimiter(limits=["9/min"], by="json:user.id"))]), with_length=False)
    await upload.post("/raw")
    assert (upload.status, upload.received) == (413, 7)


@pytest.mark.parametrize("path", ["/raw", "/stream"])
@pytest.mark.parametrize("with_length", [True, False])
async def test_endpoint_gets_all_of_a_body_that_is_too_long_while_monitoring(path, with_length, ratekit_clock):
    upload = Upload(app_by("json:user.id", mode="monitor"), with_length=with_length)
    await upload.post(path)
    assert (upload.status, json.loads(upload.answer)) == (200, {"size": 1_000_000})


async def test_body_has_no_bound_where_nobody_looks_into_it(ratekit_clock):
    upload = Upload(app_by(first_of("ip", "json:user.id")), with_length=False)
    await upload.post("/raw")
    assert (upload.status, json.loads(upload.answer)) == (200, {"size": 1_000_000})


async def test_body_has_no_bound_where_the_limiter_is_overridden(ratekit_clock):
    limiter = PathRateLimiter(limits=["9/min"], by="json:user.id")
    app = endpoints([Depends(limiter)])
    install(app)
    app.dependency_overrides[limiter] = lambda: None
    upload = Upload(app, with_length=False)
    await upload.post("/raw")
    assert (upload.status, json.loads(upload.answer)) == (200, {"size": 1_000_000})
