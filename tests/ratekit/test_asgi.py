"""The ASGI middleware: what it does to messages, slots, bodies and WebSockets; in Starlette, in Litestar, under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import litestar
import litestar.middleware
import litestar.response
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from ratekit import AsyncRateLimiter, Limit
from ratekit.asgi import RateLimitMiddleware
from ratekit.web.identity import form_field, json_field
from support.fetching import fetch
from support.servers import free_port, serving, wait_until

ONE_SLOT = Limit(1, 600, algorithm="concurrency", name="slots")
DENIAL = {"extensions": {"websocket.http.response": {}}}
PEER = ("192.0.2.7", 4711)
pytestmark = pytest.mark.usefixtures("ratekit_store")


def scope_of(path="/", kind="http", headers=(), **more) -> dict:
    scope = {"type": kind, "path": path, "headers": list(headers), "query_string": b"", "client": PEER, "root_path": ""}
    return scope | ({"method": "GET"} if kind == "http" else {}) | more


async def call(app, scope, *messages) -> list[dict]:
    """Run an application on messages, and return those that it sends. Who asks for more waits for ever."""
    sent, waiting = [], list(messages)

    async def receive():
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def status(app, path="/", **more) -> int:
    return (await call(app, scope_of(path, **more)))[0]["status"]


def headers_of(message) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in message["headers"]}


def chunk(body=b"", more_body=False) -> dict:
    return {"type": "http.request", "body": body, "more_body": more_body}


async def plain(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"1")]})
    await send({"type": "http.response.body", "body": b"ok"})


class Streaming:
    """An application that sends a chunk, waits to be told, and goes on; or that raises instead."""

    def __init__(self, error: Exception | None = None) -> None:
        self.started, self.go_on, self.error = asyncio.Event(), asyncio.Event(), error

    async def __call__(self, scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        self.started.set()
        await self.go_on.wait()
        if self.error:
            raise self.error
        await send({"type": "http.response.body", "body": b"b", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Reader:
    """An application that keeps every message that it receives, up to the first one after the body."""

    def __init__(self, number: int) -> None:
        self.number, self.messages = number, []

    async def __call__(self, scope, receive, send):
        self.messages = [await receive() for _ in range(self.number)]
        await plain(scope, receive, send)


async def test_response_starts_once_however_many_chunks_it_has():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for index in range(5):
            await send({"type": "http.response.body", "body": b"%d" % index, "more_body": True})
        await send({"type": "http.response.body"})

    sent = await call(RateLimitMiddleware(app, default="9/min"), scope_of())
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * 6
    assert headers_of(sent[0])["ratelimit-remaining"] == "8"
    assert sent[1:] == [{"type": "http.response.body", "body": b"%d" % index, "more_body": True} for index in range(5)] + [
        {"type": "http.response.body"}
    ]


async def test_chunks_are_passed_on_as_they_come():
    app = Streaming()
    sent = []

    async def send(message):
        sent.append(message)

    task = asyncio.create_task(RateLimitMiddleware(app)(scope_of(), None, send))
    await app.started.wait()
    assert [message.get("body") for message in sent] == [None, b"a"]
    app.go_on.set()
    await task
    assert [message.get("body") for message in sent] == [None, b"a", b"b", b""]


async def test_other_messages_pass_as_they_are():
    messages = [
        {"type": "http.response.start", "status": 200, "headers": [], "trailers": True},
        {"type": "http.response.push", "path": "/x", "headers": []},
        {"type": "http.response.pathsend", "path": "/etc/hostname"},
        {"type": "http.response.trailers", "headers": [(b"x", b"1")], "more_trailers": False},
    ]

    async def app(scope, receive, send):
        for message in messages:
            await send(message)

    sent = await call(RateLimitMiddleware(app), scope_of())
    assert sent[1:] == messages[1:]
    assert sent[0]["trailers"] is True


async def test_message_of_the_application_is_not_changed():
    start = {"type": "http.response.start", "status": 200, "headers": [(b"RateLimit-Limit", b"theirs")]}

    async def app(scope, receive, send):
        await send(start)

    sent = await call(RateLimitMiddleware(app, default="9/min"), scope_of())
    assert start["headers"] == [(b"RateLimit-Limit", b"theirs")]
    assert headers_of(sent[0])["ratelimit-limit"] == "9"
    assert len(sent[0]["headers"]) == 3


@pytest.mark.parametrize("headers", [None, (), iter(())])
async def test_headers_may_be_left_out_or_be_any_iterable(headers):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204} | ({} if headers is None else {"headers": headers}))

    sent = await call(RateLimitMiddleware(app, default="9/min"), scope_of())
    assert headers_of(sent[0])["ratelimit-limit"] == "9"


async def test_refusal_is_two_messages_and_the_application_is_not_called():
    calls = []

    async def app(scope, receive, send):
        calls.append(scope)
        await plain(scope, receive, send)

    limited = RateLimitMiddleware(app, default="1/min")
    await call(limited, scope_of())
    start, body = await call(limited, scope_of())
    assert (start["type"], start["status"]) == ("http.response.start", 429)
    assert all(name == name.lower() for name, _ in start["headers"])
    assert headers_of(start)["content-length"] == str(len(body["body"]))
    assert body["type"] == "http.response.body"
    assert not body.get("more_body")
    assert json.loads(body["body"])["status"] == 429
    assert len(calls) == 1


async def test_request_is_not_touched_when_no_key_needs_its_body():
    reader = Reader(2)
    await call(RateLimitMiddleware(reader), scope_of(), chunk(b"a", more_body=True), {"type": "http.disconnect"})
    assert [message["type"] for message in reader.messages] == ["http.request", "http.disconnect"]


async def test_lifespan_passes_through(ratekit_store):
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["type"], (await receive())["type"]))
        await send({"type": "lifespan.startup.complete"})

    sent = await call(RateLimitMiddleware(app), {"type": "lifespan"}, {"type": "lifespan.startup"})
    assert seen == [("lifespan", "lifespan.startup")]
    assert sent == [{"type": "lifespan.startup.complete"}]
    assert len(ratekit_store) == 0


async def test_slot_is_held_until_the_response_has_ended():
    app = Streaming()
    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    first = asyncio.create_task(call(limited, scope_of()))
    await app.started.wait()
    refused = await call(limited, scope_of())
    assert refused[0]["status"] == 429
    assert json.loads(refused[1]["body"])["violated-policies"] == ["slots"]
    app.go_on.set()
    assert headers_of((await first)[0])["ratelimit-remaining"] == "0"
    assert await status(limited) == 200


async def test_slot_is_freed_when_the_application_raises_while_it_streams():
    app = Streaming(RuntimeError("broken"))
    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    first = asyncio.create_task(call(limited, scope_of()))
    await app.started.wait()
    app.go_on.set()
    with pytest.raises(RuntimeError, match="broken"):
        await first
    app.error = None
    assert await status(limited) == 200


async def test_slot_is_freed_when_the_application_raises_before_it_answers():
    async def app(scope, receive, send):
        raise RuntimeError("broken")

    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken"):
            await call(limited, scope_of())


async def test_slot_is_freed_when_the_request_is_cancelled():
    app = Streaming()
    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    first = asyncio.create_task(call(limited, scope_of()))
    await app.started.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    app.go_on.set()
    assert await status(limited) == 200


async def test_slot_is_freed_on_redis_when_the_request_is_cancelled(redis_server):
    app = Streaming()
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        limited = RateLimitMiddleware(app, default=ONE_SLOT, limiter=limiter)
        first = asyncio.create_task(call(limited, scope_of()))
        await app.started.wait()
        assert await status(limited) == 429
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        app.go_on.set()
        assert await status(limited) == 200


class Waiting(AsyncRateLimiter):
    """A limiter whose answers to one operation never arrive, although the store has decided."""

    def __init__(self, store, operation: str) -> None:
        super().__init__(store)
        self.operation, self.decided = operation, asyncio.Event()

    async def decide(self, call, *mode):
        result = await super().decide(call, *mode)
        if call.operation == self.operation:
            self.decided.set()
            await asyncio.Event().wait()
        return result


async def test_slot_is_freed_when_the_request_is_cancelled_while_it_is_decided(ratekit_store):
    limiter = Waiting(ratekit_store, "acquire")
    limited = RateLimitMiddleware(plain, default="9/min", address_limit=ONE_SLOT, limiter=limiter)
    task = asyncio.create_task(call(limited, scope_of()))
    await limiter.decided.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await status(RateLimitMiddleware(plain, address_limit=ONE_SLOT)) == 200


async def test_slot_is_freed_when_the_client_disconnects():
    started = asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        started.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    messages = asyncio.Queue()
    first = asyncio.create_task(limited(scope_of(), messages.get, lambda message: asyncio.sleep(0)))
    await started.wait()
    refused = await call(limited, scope_of(), {"type": "http.disconnect"})
    assert refused[0]["status"] == 429
    await messages.put({"type": "http.disconnect"})
    await first
    assert (await call(limited, scope_of(), {"type": "http.disconnect"}))[0]["status"] == 200


async def test_forgotten_slot_is_free_after_its_window(ratekit_clock):
    app = Streaming()
    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    first = asyncio.create_task(call(limited, scope_of()))
    await app.started.wait()
    ratekit_clock.advance(601)
    app.go_on.set()
    assert await status(limited) == 200
    await first


async def test_limits_beside_slots_are_spent_with_them():
    app = Streaming()
    limited = RateLimitMiddleware(app, default=[Limit(2, 600, algorithm="concurrency", name="slots"), "3/min"])
    app.go_on.set()
    assert [await status(limited) for _ in range(4)] == [200, 200, 200, 429]


async def test_refused_slot_spends_nothing_beside_it():
    app = Streaming()
    limited = RateLimitMiddleware(app, default=[ONE_SLOT, "2/min"])
    first = asyncio.create_task(call(limited, scope_of()))
    await app.started.wait()
    assert await status(limited) == 429
    app.go_on.set()
    await first
    assert [await status(limited) for _ in range(2)] == [200, 429]


async def test_many_at_once_hold_no_more_slots_than_there_are():
    app = Streaming()
    limited = RateLimitMiddleware(app, default=Limit(5, 600, algorithm="concurrency"))
    tasks = [asyncio.create_task(status(limited)) for _ in range(20)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    app.go_on.set()
    assert sorted(await asyncio.gather(*tasks)) == [200] * 5 + [429] * 15


async def test_body_is_received_again_chunk_by_chunk_and_then_what_follows():
    reader = Reader(4)
    limited = RateLimitMiddleware(reader, by=json_field("user"), address_limit="9/min")
    chunks = [chunk(b'{"us', more_body=True), chunk(b'er": "ann"', more_body=True), chunk(b"}")]
    await call(limited, scope_of(method="POST"), *chunks, {"type": "http.disconnect"})
    assert reader.messages == [*chunks, {"type": "http.disconnect"}]


async def test_empty_body_is_received_again():
    reader = Reader(1)
    limited = RateLimitMiddleware(reader, by=form_field("user"), address_limit="9/min")
    await call(limited, scope_of(method="POST"), {"type": "http.request"})
    assert reader.messages == [{"type": "http.request"}]


async def test_disconnect_within_the_body_is_received_again():
    reader = Reader(2)
    limited = RateLimitMiddleware(reader, by=form_field("user"), address_limit="9/min")
    messages = [chunk(b"user=a", more_body=True), {"type": "http.disconnect"}]
    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    await call(limited, scope_of(method="POST", headers=headers), *messages)
    assert reader.messages == messages


async def test_body_over_the_bound_is_not_read_to_its_end():
    taken = []

    async def receive():
        taken.append(1)
        return chunk(b"x" * 10, more_body=True)

    sent = []

    async def send(message):
        sent.append(message)

    limited = RateLimitMiddleware(plain, by=json_field("user", most_body=25), address_limit="9/min")
    await limited(scope_of(method="POST"), receive, send)
    assert sent[0]["status"] == 413
    assert len(taken) == 3


async def test_body_over_the_bound_is_received_whole_in_monitor_mode(monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    reader = Reader(3)
    limited = RateLimitMiddleware(reader, by=json_field("user", most_body=5), address_limit="9/min")
    chunks = [chunk(b"0123", more_body=True), chunk(b"4567", more_body=True), chunk(b"89")]
    await call(limited, scope_of(method="POST"), *chunks, {"type": "http.disconnect"}, {"type": "http.disconnect"})
    assert reader.messages == chunks


async def test_peer_of_a_unix_socket_is_limited_by_the_header_of_its_proxy():
    limited = RateLimitMiddleware(plain, default="1/min", trusted_hops=1)
    headers = [(b"x-forwarded-for", b"203.0.113.9")]
    answers = [await status(limited, client=client, headers=headers) for client in (None, ("", 0), PEER)]
    assert answers == [200, 429, 429]


async def test_scope_without_a_client_is_no_error():
    scope = scope_of()
    del scope["client"], scope["root_path"], scope["query_string"]
    assert (await call(RateLimitMiddleware(plain), scope))[0]["status"] == 200


async def test_websocket_is_counted_and_passed_on():
    async def app(scope, receive, send):
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})

    limited = RateLimitMiddleware(app, default="1/min")
    sent = await call(limited, scope_of(kind="websocket"), {"type": "websocket.connect"})
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.close"]
    assert (await call(limited, scope_of(kind="websocket"), {"type": "websocket.connect"}))[0]["type"] == "websocket.close"


async def test_websocket_is_denied_with_a_429_where_the_server_can():
    limited = RateLimitMiddleware(plain, default="1/min")
    await call(limited, scope_of())
    start, body = await call(limited, scope_of(kind="websocket", **DENIAL), {"type": "websocket.connect"})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert headers_of(start)["retry-after"]
    assert headers_of(start)["content-type"] == "application/problem+json"
    assert body["type"] == "websocket.http.response.body"
    assert json.loads(body["body"])["status"] == 429


@pytest.mark.parametrize("more", [{}, {"extensions": {}}, {"extensions": None}])
async def test_websocket_is_closed_with_1008_where_the_server_cannot_deny(more):
    limited = RateLimitMiddleware(plain, default="1/min")
    await call(limited, scope_of())
    sent = await call(limited, scope_of(kind="websocket", **more), {"type": "websocket.connect"})
    assert [(message["type"], message["code"]) for message in sent] == [("websocket.close", 1008)]


async def test_denial_of_the_application_s_own_gets_headers():
    async def app(scope, receive, send):
        await send({"type": "websocket.http.response.start", "status": 403, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b""})

    sent = await call(RateLimitMiddleware(app, default="9/min"), scope_of(kind="websocket", **DENIAL))
    assert headers_of(sent[0])["ratelimit-remaining"] == "8"


async def test_websocket_holds_its_slot_until_it_is_closed():
    open_, close = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})
        open_.set()
        await close.wait()

    limited = RateLimitMiddleware(app, default=ONE_SLOT)
    first = asyncio.create_task(call(limited, scope_of(kind="websocket", **DENIAL)))
    await open_.wait()
    sent = await call(limited, scope_of(kind="websocket", **DENIAL), {"type": "websocket.connect"})
    assert sent[0]["status"] == 429
    close.set()
    await first
    assert (await call(limited, scope_of(kind="websocket")))[0]["type"] == "websocket.accept"


async def test_outage_denies_a_websocket_with_a_503_when_closed():
    limited = RateLimitMiddleware(plain, store=f"redis://127.0.0.1:{free_port()}", on_outage="closed")
    sent = await call(limited, scope_of(kind="websocket", **DENIAL), {"type": "websocket.connect"})
    assert sent[0]["status"] == 503
    await limited.limiter.aclose()


async def test_many_at_once_on_redis_are_admitted_exactly(redis_server):
    async with AsyncRateLimiter(redis_server.url, deadline=5) as limiter:
        limited = RateLimitMiddleware(plain, default="50/h", limiter=limiter)
        answers = await asyncio.gather(*(status(limited) for _ in range(120)))
    assert sorted(answers) == [200] * 50 + [429] * 70


async def test_one_middleware_serves_several_event_loops(redis_server):
    limiter = AsyncRateLimiter(redis_server.url, deadline=5)
    limited = RateLimitMiddleware(plain, default="2/h", limiter=limiter)
    answers = [await asyncio.to_thread(asyncio.run, status(limited)) for _ in range(3)]
    assert answers == [200, 200, 429]


async def home(request):
    return JSONResponse({"path": request.url.path})


async def stream(request):
    async def chunks():
        for index in range(3):
            yield f"data: {index}\n\n"

    return StreamingResponse(chunks(), media_type="text/event-stream")


async def broken(request):
    raise RuntimeError("broken")


async def echo(request):
    return PlainTextResponse(await request.body())


async def chat(websocket):
    await websocket.accept()
    await websocket.send_text(await websocket.receive_text())
    await websocket.close()


def starlette_app(**options) -> Starlette:
    routes = [
        Route("/", home),
        Route("/items/{id}", home),
        Route("/files/{name:path}", home),
        Route("/stream", stream),
        Route("/broken", broken),
        Route("/echo", echo, methods=["POST"]),
        WebSocketRoute("/chat", chat),
        Mount("/sub", Starlette(routes=[Route("/items/{id}", home)])),
    ]
    return Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, **options)])


def test_starlette_is_limited_by_its_paths():
    with TestClient(starlette_app(default=None, rules={"/items/{id}": "2/min"}), client=PEER) as client:
        answers = [client.get(f"/items/{index}") for index in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["ratelimit-remaining"] == "1"
        assert answers[2].json()["status"] == 429
        assert client.get("/").status_code == 200


def test_starlette_gets_headers_on_every_outcome():
    client = TestClient(starlette_app(default="9/min"), client=PEER)
    for path, expected in [("/", 200), ("/stream", 200), ("/nowhere", 404), ("/echo", 405), ("/sub/items/1", 200)]:
        response = client.get(path)
        assert response.status_code == expected
        assert len(response.headers.get_list("ratelimit-remaining")) == 1, path


def test_starlette_streams_behind_it():
    response = TestClient(starlette_app(default=ONE_SLOT), client=PEER).get("/stream")
    assert response.text == "data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert response.headers["ratelimit-limit"] == "1"


def test_starlette_reports_its_exceptions_and_slots_are_freed():
    client = TestClient(starlette_app(default=ONE_SLOT), client=PEER, raise_server_exceptions=False)
    assert [client.get("/broken").status_code for _ in range(3)] == [500] * 3
    with pytest.raises(RuntimeError, match="broken"):
        TestClient(starlette_app(default=ONE_SLOT), client=PEER).get("/broken")


def test_starlette_reads_a_body_that_was_read_for_the_key():
    app = starlette_app(default="1/min", by=json_field("user"), address_limit="99/min")
    client = TestClient(app, client=PEER)
    for user, expected in [("ann", 200), ("bob", 200), ("ann", 429)]:
        response = client.post("/echo", json={"user": user})
        assert response.status_code == expected
        assert expected == 429 or response.json() == {"user": user}


def test_starlette_websocket_is_denied_with_a_429():
    client = TestClient(starlette_app(default="1/min"), client=PEER)
    with client.websocket_connect("/chat") as session:
        session.send_text("hello")
        assert session.receive_text() == "hello"
        with pytest.raises(WebSocketDisconnect):
            session.receive_text()
    with pytest.raises(WebSocketDenialResponse) as caught, client.websocket_connect("/chat"):
        pass
    assert caught.value.status_code == 429
    assert caught.value.headers["retry-after"]
    assert caught.value.json()["status"] == 429


def test_starlette_route_with_an_empty_path_parameter_is_limited():
    client = TestClient(starlette_app(default=None, rules={"/files/{name:path}": "1/min"}), client=PEER)
    assert [client.get("/files/").status_code for _ in range(2)] == [200, 429]


def test_starlette_mount_has_rules_of_its_own_without_its_prefix():
    inner = RateLimitMiddleware(Starlette(routes=[Route("/items/{id}", home)]), default=None, rules={"/items/{id}": "1/min"})
    app = Starlette(routes=[Mount("/api", inner)])
    client = TestClient(app, client=PEER)
    assert [client.get(f"/api/items/{index}").status_code for index in range(2)] == [200, 429]


def test_starlette_mount_and_its_parent_send_one_set_of_headers():
    inner = RateLimitMiddleware(Starlette(routes=[Route("/", home)]), default="2/min")
    app = RateLimitMiddleware(Starlette(routes=[Mount("/api", inner)]), rules={"/api/*": "9/h"})
    client = TestClient(app, client=PEER)
    answers = [client.get("/api/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers.get_list("ratelimit-limit") for answer in answers] == [["2"]] * 3


def test_cors_outside_answers_preflights_itself_and_lets_browsers_read_a_429():
    cors = {"allow_origins": ["*"], "expose_headers": ["RateLimit-Limit", "Retry-After"]}
    app = Starlette(routes=[Route("/", home)])
    app.add_middleware(RateLimitMiddleware, default="1/min")
    app.add_middleware(CORSMiddleware, **cors)  # what is added last stands outside
    client = TestClient(app, client=PEER)
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
    assert [client.options("/", headers=preflight).status_code for _ in range(3)] == [200] * 3
    answers = [client.get("/", headers={"Origin": "https://a.example"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].headers["access-control-allow-origin"] == "*"
    assert answers[1].headers["access-control-expose-headers"] == "RateLimit-Limit, Retry-After"


def test_cors_inside_has_preflights_limited_in_a_counter_of_their_own():
    inside = RateLimitMiddleware(CORSMiddleware(Starlette(routes=[Route("/", home)]), allow_origins=["*"]), default="2/min")
    client = TestClient(inside, client=PEER)
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
    assert [client.options("/", headers=preflight).status_code for _ in range(3)] == [200, 200, 429]
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_lifespan_of_starlette_runs_behind_it():
    events = []

    @contextlib.asynccontextmanager
    async def lifespan(app):
        events.append("start")
        yield {"value": 5}
        events.append("stop")

    async def state(request):
        return JSONResponse(request.state.value)

    app = RateLimitMiddleware(Starlette(routes=[Route("/", state)], lifespan=lifespan), default="9/min")
    with TestClient(app, client=PEER) as client:
        assert client.get("/").json() == 5
    assert events == ["start", "stop"]


@litestar.get("/items/{item_id:int}")
async def item(request: litestar.Request) -> dict[str, int]:
    return {"id": request.path_params["item_id"]}


@litestar.get("/health")
async def health() -> str:
    return "fine"


@litestar.get("/stream")
async def events() -> litestar.response.Stream:
    async def chunks():
        for index in range(3):
            yield f"{index};"

    return litestar.response.Stream(chunks())


@litestar.post("/upload")
async def upload(request: litestar.Request) -> dict[str, int]:
    form = await request.form()
    return {"size": len(await form["data"].read())}


@litestar.post("/echo")
async def echo_json(request: litestar.Request) -> dict[str, str]:
    return await request.json()


HANDLERS = [item, health, events, upload, echo_json]


def wrapped(**options):
    return RateLimitMiddleware(litestar.Litestar(HANDLERS), **options)


def defined(**options):
    return litestar.Litestar(HANDLERS, middleware=[litestar.middleware.DefineMiddleware(RateLimitMiddleware, **options)])


@pytest.fixture(params=[wrapped, defined])
async def litestar_client(request):
    """Make a client of a Litestar application, with the middleware around it or within."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**options) -> httpx2.AsyncClient:
            transport = httpx2.ASGITransport(request.param(**options), client=PEER)
            return await stack.enter_async_context(httpx2.AsyncClient(transport=transport, base_url="http://api"))

        yield make


async def test_litestar_is_limited_by_its_paths(litestar_client):
    client = await litestar_client(default="9/min", rules={"/items/{id}": "2/min"}, exempt=["/health"])
    answers = [await client.get(f"/items/{index}") for index in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json() == {"id": 0}
    assert answers[0].headers["ratelimit-remaining"] == "1"
    assert answers[2].headers["content-type"] == "application/problem+json"
    health = await client.get("/health")
    assert health.text == "fine"
    assert "ratelimit-limit" not in health.headers


async def test_litestar_streams_behind_it(litestar_client):
    client = await litestar_client(default=ONE_SLOT)
    for _ in range(2):
        response = await client.get("/stream")
        assert response.text == "0;1;2;"
        assert response.headers["ratelimit-limit"] == "1"


async def test_litestar_gets_uploads_intact(litestar_client):
    client = await litestar_client(default="9/min", by=form_field("user", most_body=10_000), address_limit="9/min")
    response = await client.post("/upload", files={"data": ("f.bin", bytes(range(256)) * 10)})
    assert response.json() == {"size": 2560}


async def test_litestar_gets_large_uploads_intact(litestar_client):
    client = await litestar_client(default="9/min", by=form_field("user", most_body=400_000), address_limit="9/min")
    response = await client.post("/upload", files={"data": ("f.bin", b"\x00" * 300_000)})
    assert response.json() == {"size": 300_000}


async def test_litestar_reads_a_body_that_was_read_for_the_key(litestar_client):
    client = await litestar_client(default="1/min", by=json_field("user"), address_limit="9/min")
    for user, expected in [("ann", 201), ("bob", 201), ("ann", 429)]:
        response = await client.post("/echo", json={"user": user})
        assert response.status_code == expected
        assert expected == 429 or response.json() == {"user": user}


SERVED = textwrap.dedent(
    """
    import os, time
    from ratekit import AsyncRateLimiter, Limit
    from ratekit.asgi import RateLimitMiddleware

    async def application(scope, receive, send):
        if scope["type"] != "http":
            return
        if scope["path"] == "/busy":
            time.sleep(0.2)  # so that another worker has to take the next connection
        headers = [(b"x-pid", str(os.getpid()).encode()), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok", "more_body": scope["path"] == "/slot"})
        while scope["path"] == "/slot" and (await receive())["type"] != "http.disconnect":
            pass

    app = RateLimitMiddleware(
        application,
        limiter=AsyncRateLimiter(os.environ["STORE"], deadline=5),
        default="20/h",
        rules={"/slot": Limit(1, 600, algorithm="concurrency")},
        exempt=["/busy"],
    )
    """
)


@contextlib.contextmanager
def uvicorn(folder: Path, store: str, *options: str) -> Iterator[str]:
    """Run the application above under uvicorn, and give its URL; its mode is in the file "mode" of the folder."""
    (folder / "served.py").write_text(SERVED)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "served:app", "--port", str(port), "--app-dir", str(folder), *options]
    environment = {"STORE": store, "RATE_LIMIT_MODE_FILE": str(folder / "mode"), "PYTHONWARNINGS": "error"}
    with serving(command, port, folder, **environment) as url:
        assert fetch(f"{url}/busy").status_code == 200
        yield url


@pytest.fixture(params=["memory", "redis"])
def store_url(request) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue("redis_server").url


def test_uvicorn_serves_limits_and_follows_the_mode_file(tmp_path, store_url):
    with uvicorn(tmp_path, store_url) as url, httpx2.Client(base_url=url) as client:
        answers = [client.get("/") for _ in range(22)]
        assert [answer.status_code for answer in answers] == [200] * 20 + [429] * 2
        assert answers[0].headers["ratelimit-remaining"] == "19"
        assert answers[21].json()["violated-policies"] == ["hour"]
        assert int(answers[21].headers["retry-after"]) in range(3590, 3601)
        for mode, status in [("monitor", 200), ("on", 429), ("off", 200), ("on", 429)]:
            (tmp_path / "mode").write_text(mode)
            response = client.get("/")
            assert response.status_code == status
            assert ("ratelimit-limit" in response.headers) is (mode != "off")
        assert client.head("/").status_code == 429
        assert client.options("/").status_code == 200


def test_uvicorn_frees_the_slot_when_the_client_hangs_up(tmp_path):
    with uvicorn(tmp_path, "memory://") as url, httpx2.Client(base_url=url) as client:
        with client.stream("GET", "/slot") as response:
            received = response.iter_bytes()
            assert next(received) == b"ok"
            assert httpx2.get(f"{url}/slot").status_code == 429

        def is_free() -> bool:
            with client.stream("GET", "/slot") as response:
                return response.status_code == 200

        wait_until(is_free, "the slot is not free again")


def test_two_uvicorn_workers_on_one_redis_admit_exactly_the_limit(tmp_path, redis_server):
    with uvicorn(tmp_path, redis_server.url, "--workers", "2") as url, contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2))
        clients: dict[str, httpx2.Client] = {}

        def found_both() -> bool:
            pair = [stack.enter_context(httpx2.Client(base_url=url)) for _ in range(2)]
            for client, response in zip(pair, pool.map(lambda client: client.get("/busy"), pair), strict=True):
                clients.setdefault(response.headers["x-pid"], client)
            return len(clients) == 2

        wait_until(found_both, "one worker takes all connections")
        runs = pool.map(lambda client: [client.get("/") for _ in range(15)], clients.values())
        answers = [answer for run in runs for answer in run]
        assert sorted(answer.status_code for answer in answers) == [200] * 20 + [429] * 10
        assert {answer.headers["x-pid"] for answer in answers if answer.status_code == 200} == set(clients)
