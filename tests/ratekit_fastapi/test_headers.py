"""Headers stand on every answer, whatever the endpoint does; without install a dependency sets what it can."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, HTTPException, UploadFile
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, StreamingResponse
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route
from starlette.testclient import TestClient

from ratekit_fastapi import PathRateLimiter, install

LINES = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")


def nothing():
    return {}


class Item(BaseModel):
    size: int


class TeapotError(Exception):
    """What the application has a handler of its own for."""


async def stream():
    for number in range(5):
        yield f"{number}\n"


async def events():
    for number in range(3):
        yield f"data: {number}\n\n"


def outcomes(limiter) -> APIRouter:
    """One route for each way to answer."""
    router = APIRouter(dependencies=[Depends(limiter)])

    @router.get("/dict")
    async def answer_dict():
        return {"a": 1}

    @router.get("/model", response_model=Item)
    async def answer_model():
        return Item(size=1)

    @router.get("/sync")
    def answer_sync():
        return {"a": 1}

    @router.get("/response")
    async def answer_response():
        return PlainTextResponse("text")

    @router.get("/json-response")
    async def answer_json_response():
        return JSONResponse({"a": 1}, status_code=201)

    @router.get("/empty", status_code=204)
    async def answer_empty():
        return None

    @router.get("/redirect")
    async def answer_redirect():
        return RedirectResponse("/dict")

    @router.get("/file")
    async def answer_file():
        return FileResponse(__file__)

    @router.get("/stream")
    async def answer_stream():
        return StreamingResponse(stream())

    @router.get("/events")
    async def answer_events():
        return StreamingResponse(events(), media_type="text/event-stream")

    @router.get("/not-found")
    async def answer_not_found():
        raise HTTPException(404, "nothing here")

    @router.get("/teapot")
    async def answer_teapot():
        raise TeapotError

    @router.get("/invalid")
    async def answer_invalid(number: int):
        return number

    @router.post("/items")
    async def answer_item(item: Item):
        return item

    return router


def full_app(*, installed=True) -> FastAPI:
    app = FastAPI()
    if installed:
        install(app)
    app.include_router(outcomes(PathRateLimiter(5, 60)))

    @app.exception_handler(TeapotError)
    async def teapot(request, error):
        return PlainTextResponse("teapot", status_code=418)

    return app


def lines_of(answer) -> tuple[str | None, ...]:
    return tuple(answer.headers.get(name) for name in LINES)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/dict", 200),
        ("/model", 200),
        ("/sync", 200),
        ("/response", 200),
        ("/json-response", 201),
        ("/empty", 204),
        ("/redirect", 307),
        ("/file", 200),
        ("/stream", 200),
        ("/events", 200),
        ("/not-found", 404),
        ("/teapot", 418),
        ("/invalid?number=x", 422),
    ],
)
def test_headers_stand_on_every_outcome(path, status, ratekit_clock):
    answer = TestClient(full_app(), follow_redirects=False).get(path)
    assert answer.status_code == status
    assert lines_of(answer) == ("5", "4", "60")
    assert all(len(answer.headers.get_list(name)) == 1 for name in LINES)
    assert "Retry-After" not in answer.headers


def test_headers_stand_on_an_invalid_body(ratekit_clock):
    answer = TestClient(full_app()).post("/items", json={"size": "x"})
    assert (answer.status_code, lines_of(answer)) == (422, ("5", "4", "60"))


@pytest.mark.parametrize("path", ["/dict", "/response", "/stream", "/events", "/not-found", "/invalid?number=x"])
def test_refusal_comes_in_place_of_every_outcome(path, ratekit_clock):
    client = TestClient(full_app())
    for _ in range(5):
        client.get(path)
    answer = client.get(path)
    assert (answer.status_code, lines_of(answer)) == (429, ("5", "0", "60"))
    assert answer.headers["Retry-After"] == "60"
    assert answer.headers["Cache-Control"] == "no-store"
    assert all(len(answer.headers.get_list(name)) == 1 for name in (*LINES, "Retry-After", "Cache-Control", "Content-Type"))


def test_retry_after_never_stands_on_what_passes(ratekit_clock):
    client = TestClient(full_app())
    answers = [client.get("/dict") for _ in range(8)]
    assert [("Retry-After" in answer.headers) for answer in answers] == [False] * 5 + [True] * 3


def test_reset_and_retry_after_are_whole_seconds_of_at_least_one(ratekit_clock):
    client = TestClient(full_app())
    for _ in range(5):
        client.get("/dict")
    ratekit_clock.advance(59.7)
    answer = client.get("/dict")
    assert (answer.headers["RateLimit-Reset"], answer.headers["Retry-After"]) == ("1", "1")


def test_server_sent_events_of_the_framework_have_headers(ratekit_clock):
    sse = pytest.importorskip("fastapi.sse", reason="this FastAPI has no server-sent events of its own")
    app = FastAPI()
    install(app)

    @app.get("/events", response_class=sse.EventSourceResponse, dependencies=[Depends(PathRateLimiter(5, 60))])
    async def answer_events():
        for number in range(3):
            yield {"number": number}

    answer = TestClient(app).get("/events")
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.text.count("data:") == 3
    assert lines_of(answer) == ("5", "4", "60")


async def exchange(app, path, on_message=lambda message: None) -> list:
    """Send a request as a server does, and return every message of the answer."""
    messages, requests = [], [{"type": "http.request", "body": b"", "more_body": False}]

    async def send(message):
        messages.append(message)
        on_message(message)

    async def receive():
        return requests.pop() if requests else await asyncio.Event().wait()

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [],
        "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("test", 80), "client": ("10.0.0.1", 1),
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), 10)
    return messages


@pytest.mark.parametrize("path", ["/stream", "/events", "/file", "/dict"])
async def test_response_starts_once_for_a_stream(path, ratekit_clock):
    messages = await exchange(full_app(), path)
    assert [message["type"] for message in messages].count("http.response.start") == 1
    names = [name for name, _ in messages[0]["headers"]]
    assert names.count(b"ratelimit-limit") == 1
    assert not messages[-1].get("more_body", False)


async def test_stream_is_not_held_back(ratekit_clock):
    """The second chunk is made only when the first has been sent."""
    app = FastAPI()
    install(app)
    gate = asyncio.Event()

    @app.get("/x", dependencies=[Depends(PathRateLimiter(5, 60))])
    async def x():
        async def chunks():
            yield b"first"
            await gate.wait()
            yield b"second"

        return StreamingResponse(chunks())

    def open_gate(message):
        if message.get("body") == b"first":
            gate.set()

    messages = await exchange(app, "/x", open_gate)
    assert [message.get("body") for message in messages] == [None, b"first", b"second", b""]


def test_background_task_runs_and_headers_stand(ratekit_clock):
    app = FastAPI()
    install(app)
    done = []

    @app.get("/x", dependencies=[Depends(PathRateLimiter(1, 60))])
    async def x(tasks: BackgroundTasks):
        tasks.add_task(done.append, 1)
        return {}

    client = TestClient(app)
    answer = client.get("/x")
    assert lines_of(answer) == ("1", "0", "60")
    assert done == [1]
    assert client.get("/x").status_code == 429
    assert done == [1]


def test_headers_stand_on_the_answers_of_a_mounted_app(ratekit_clock):
    inner = FastAPI()
    inner.include_router(outcomes(PathRateLimiter(5, 60)))
    app = FastAPI()
    install(app)
    app.mount("/sub", inner)
    client = TestClient(app)
    for path, status in (("/sub/dict", 200), ("/sub/stream", 200), ("/sub/not-found", 404), ("/sub/invalid?number=x", 422)):
        answer = client.get(path)
        assert (answer.status_code, lines_of(answer)) == (status, ("5", "4", "60"))


def test_refusal_of_a_mounted_app_is_that_of_the_app_around_it(ratekit_clock):
    """install sets up an application and what is mounted in it, whose exception handlers are its own."""
    inner = FastAPI()
    inner.get("/x", dependencies=[Depends(PathRateLimiter(1, 60))])(nothing)
    app = FastAPI()
    install(app)
    app.mount("/sub", inner)
    client = TestClient(app)
    client.get("/sub/x")
    answer = client.get("/sub/x")
    assert (answer.status_code, lines_of(answer), answer.headers["Retry-After"]) == (429, ("1", "0", "60"), "60")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["violated-policies"] == ["minute"]


def test_route_without_a_limiter_has_no_headers(ratekit_clock):
    app = full_app()
    app.get("/free")(nothing)
    client = TestClient(app)
    client.get("/dict")
    for path in ("/free", "/nowhere"):
        assert lines_of(client.get(path)) == (None, None, None)
    assert lines_of(client.delete("/dict")) == (None, None, None)


def test_route_of_starlette_in_the_app_is_left_alone():
    async def plain(request):
        return PlainTextResponse("plain")

    app = FastAPI(routes=[Route("/plain", plain)])
    install(app)
    app.mount("/star", Starlette(routes=[Route("/plain", plain)]))
    client = TestClient(app)
    assert client.get("/plain").text == client.get("/star/plain").text == "plain"


def test_exception_that_nobody_handles_stays_what_it_is(ratekit_clock):
    app = FastAPI()
    install(app)

    @app.get("/x", dependencies=[Depends(PathRateLimiter(1, 60))])
    async def x():
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        TestClient(app).get("/x")
    assert TestClient(app, raise_server_exceptions=False).get("/x").status_code == 429


def test_headers_pass_through_other_middleware(ratekit_clock):
    app = full_app()

    async def dispatch(request, call_next):
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    app.add_middleware(GZipMiddleware, minimum_size=1)
    for path in ("/dict", "/stream", "/not-found"):
        assert lines_of(TestClient(app).get(path)) == ("5", "4", "60")


def test_headers_pass_when_other_middleware_is_within(ratekit_clock):
    app = FastAPI()

    async def dispatch(request, call_next):
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    install(app)
    app.include_router(outcomes(PathRateLimiter(5, 60)))
    for path in ("/dict", "/stream", "/not-found"):
        assert lines_of(TestClient(app).get(path)) == ("5", "4", "60")


def test_refusal_has_cors_headers_and_preflights_pass(ratekit_clock):
    app = FastAPI()
    install(app)
    app.include_router(outcomes(PathRateLimiter(1, 60)))
    app.add_middleware(CORSMiddleware, allow_origins=["https://shop.example"], expose_headers=["RateLimit-Limit"])
    client = TestClient(app)
    asking = {"Origin": "https://shop.example", "Access-Control-Request-Method": "GET"}
    assert [client.options("/dict", headers=asking).status_code for _ in range(3)] == [200, 200, 200]
    answers = [client.get("/dict", headers={"Origin": "https://shop.example"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].headers["Access-Control-Allow-Origin"] == "https://shop.example"


def test_upload_passes_through(ratekit_clock):
    app = FastAPI()
    install(app)

    @app.post("/x", dependencies=[Depends(PathRateLimiter(5, 60))])
    async def x(file: UploadFile):
        return {"size": len(await file.read())}

    answer = TestClient(app).post("/x", files={"file": ("a.bin", b"\0" * 300_000)})
    assert answer.json() == {"size": 300_000}
    assert lines_of(answer) == ("5", "4", "60")


def test_dependency_alone_limits_and_sets_what_it_can(ratekit_clock):
    client = TestClient(full_app(installed=False))
    assert lines_of(client.get("/dict")) == ("5", "4", "60")
    assert lines_of(client.get("/sync")) == ("5", "4", "60")
    assert client.get("/response").status_code == 200
    for _ in range(4):
        client.get("/dict")
    refused = client.get("/dict")
    assert (refused.status_code, lines_of(refused)) == (429, ("5", "0", "60"))
    assert (refused.headers["Retry-After"], refused.headers["Cache-Control"]) == ("60", "no-store")
    assert "over limit" in refused.json()["detail"]


def test_dependency_alone_takes_its_store_from_the_environment(monkeypatch, redis_server, redis_url):
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", redis_url)
    with TestClient(full_app(installed=False)) as client:
        assert [client.get("/dict").status_code for _ in range(6)] == [200] * 5 + [429]
    with redis_server.client() as raw:
        assert raw.keys("ratelimit:*") == [b"ratelimit:/dict:{*/dict}:60s"]


def test_app_that_is_installed_twice_answers_once(ratekit_clock):
    app = FastAPI()
    install(app)
    install(app)
    app.include_router(outcomes(PathRateLimiter(1, 60)))
    client = TestClient(app)
    for status in (200, 429):
        answer = client.get("/stream")
        assert answer.status_code == status
        assert [len(answer.headers.get_list(name)) for name in LINES] == [1, 1, 1]


def test_lifespan_of_the_application_still_runs(ratekit_clock):
    from contextlib import asynccontextmanager

    seen = []

    @asynccontextmanager
    async def lifespan(app):
        seen.append("start")
        yield {"answer": 42}
        seen.append("end")

    app = FastAPI(lifespan=lifespan)
    install(app)

    @app.get("/x", dependencies=[Depends(PathRateLimiter(5, 60))])
    async def x():
        return {}

    with TestClient(app) as client:
        assert client.get("/x").status_code == 200
        assert client.app_state == {"answer": 42}
    assert seen == ["start", "end"]


def test_client_ends_with_the_lifespan_and_begins_again(redis_server, redis_store):
    app = FastAPI()
    install(app, store=redis_store)
    app.get("/x", dependencies=[Depends(PathRateLimiter(2, 600))])(nothing)
    statuses = []
    with redis_server.client() as raw:
        before = len(raw.client_list())
        for _ in range(3):
            with TestClient(app) as client:
                statuses.append(client.get("/x").status_code)
                assert len(raw.client_list()) == before + 1
            _wait_for(lambda: len(raw.client_list()) == before)
    assert statuses == [200, 200, 429]


def test_app_works_without_a_lifespan(redis_store):
    """Each request of such a client has an event loop of its own."""
    app = FastAPI()
    install(app, store=redis_store)
    app.get("/x", dependencies=[Depends(PathRateLimiter(4, 600))])(nothing)
    client = TestClient(app)
    assert [client.get("/x").status_code for _ in range(6)] == [200, 200, 200, 200, 429, 429]


async def test_app_works_behind_the_transport_of_a_client(redis_store):
    app = FastAPI()
    install(app, store=redis_store)
    app.get("/x", dependencies=[Depends(PathRateLimiter(4, 600))])(nothing)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        answers = await asyncio.gather(*(client.get("/x") for _ in range(12)))
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429] * 8
    await app.state.ratekit.aclose()


def _wait_for(condition) -> None:
    """A server notices a closed connection a moment later."""
    import time

    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
