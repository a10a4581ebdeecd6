"""When the store cannot tell: pass, refuse with a 503, or count a share in the process; never a 429, never a 500."""

from __future__ import annotations

import signal
import time

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ratekit.asgi import RateLimitMiddleware
from ratekit_fastapi import PathRateLimiter, ProjectRateLimiter, install
from ratekit_fastapi.settings import reset_default_settings
from support.servers import free_port, start_server, stop_server, wheel_server


@pytest.fixture
def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}"


def test_requests_pass_without_headers_when_open(limited, nowhere):
    with limited(PathRateLimiter(1, 60), store=nowhere) as client:
        answers = [client.get("/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert not any(name.startswith("ratelimit") for answer in answers for name in answer.headers)


def assert_unavailable(answer) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == 503
    assert answer.json()["type"].endswith("#temporary-reduced-capacity")


def test_requests_are_refused_by_a_503_when_the_limiter_is_closed(limited, nowhere):
    with limited(PathRateLimiter(1, 60, on_outage="closed"), store=nowhere) as client:
        for _ in range(3):
            assert_unavailable(client.get("/x"))


def test_requests_are_refused_by_a_503_when_the_app_is_closed(limited, nowhere):
    with limited(PathRateLimiter(1, 60), store=nowhere, on_outage="closed") as client:
        assert_unavailable(client.get("/x"))


def test_own_choice_of_a_limiter_wins_over_that_of_the_app(limited, nowhere):
    with limited(PathRateLimiter(1, 60, on_outage="open"), store=nowhere, on_outage="closed") as client:
        assert client.get("/x").status_code == 200


def test_closed_limiter_beside_an_open_one_refuses(limited, nowhere):
    limiters = PathRateLimiter(9, 60), PathRateLimiter(9, 3600, on_outage="closed")
    with limited(*limiters, store=nowhere) as client:
        assert_unavailable(client.get("/x"))


def test_share_of_the_limit_is_counted_in_the_process_when_local(limited, nowhere, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_INSTANCES", "2")
    with limited(PathRateLimiter(4, 600, on_outage="local"), store=nowhere) as client:
        assert [client.get("/x").status_code for _ in range(3)] == [200, 200, 429]


def test_closed_limiter_lets_pass_while_monitoring(limited, nowhere, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    with limited(PathRateLimiter(1, 60, on_outage="closed"), store=nowhere) as client:
        assert client.get("/x").status_code == 200


def test_closed_limiter_answers_503_without_install(monkeypatch, nowhere):
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", nowhere)
    app = FastAPI()

    @app.get("/x", dependencies=[Depends(PathRateLimiter(1, 60, on_outage="closed"))])
    async def x():
        return {}

    with TestClient(app) as client:
        answer = client.get("/x")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_fault_of_configuration_follows_on_outage_too(redis_server, redis_url, limited, caplog):
    """A counter's key that holds something else is WRONGTYPE."""
    with redis_server.client() as raw:
        raw.lpush("ratelimit:/x:{me}:60s", "x")
    options = {"store": redis_url, "identify": lambda request: "me"}
    with limited(ProjectRateLimiter(1, 60), **options) as client:
        assert client.get("/x").status_code == 200
    with limited(ProjectRateLimiter(1, 60, on_outage="closed"), **options) as client:
        assert_unavailable(client.get("/x"))
    assert any(record.levelname == "ERROR" for record in caplog.records)


def test_limits_hold_again_when_the_store_answers_again(limited):
    """A server that is stopped answers late; a server that is stopped and continued has forgotten nothing."""
    server = start_server(wheel_server())
    try:
        with limited(PathRateLimiter(1, 600), store=server.url) as client:
            assert _settled(client, 429)
            server.process.send_signal(signal.SIGSTOP)
            assert client.get("/x").status_code == 200
            server.process.send_signal(signal.SIGCONT)
            assert _settled(client, 429)
    finally:
        server.process.send_signal(signal.SIGCONT)
        stop_server(server)


def _settled(client: TestClient, status: int) -> bool:
    """Whether an answer comes within some seconds: on a busy machine a healthy server may be late, too."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if client.get("/x").status_code == status:
            return True
    return False


def test_install_without_a_running_store_is_no_error(nowhere):
    app = FastAPI()
    install(app, store=nowhere)
    with TestClient(app) as client:
        assert client.get("/openapi.json").status_code == 200


def wait_for_connections(client, expected: int) -> None:
    deadline = time.monotonic() + 5
    while len(client.client_list()) != expected:
        assert time.monotonic() < deadline, client.client_list()
        time.sleep(0.01)


@pytest.mark.parametrize("front", ["install", "middleware"])
def test_connection_is_opened_when_the_application_starts(redis_server, front):
    app = FastAPI()
    if front == "install":
        install(app, store=redis_server.url)
    served = app if front == "install" else RateLimitMiddleware(app, store=redis_server.url)
    with redis_server.client() as client:
        wait_for_connections(client, 1)  # this test's own
        with TestClient(served):
            wait_for_connections(client, 2)
        wait_for_connections(client, 1)


@pytest.mark.parametrize("front", ["install", "middleware"])
def test_application_starts_at_once_when_the_store_is_away(nowhere, front):
    app = FastAPI()
    if front == "install":
        install(app, store=nowhere)
    with TestClient(app if front == "install" else RateLimitMiddleware(app, store=nowhere)) as client:
        assert client.get("/nothing").status_code == 404


def test_limiters_that_differ_in_an_outage_share_one_connection(redis_server):
    app = FastAPI()
    install(app, store=f"{redis_server.url}?socket_timeout=5")

    async def read():
        return {}

    for choice in ("open", "closed", "local"):
        app.get(f"/{choice}", dependencies=[Depends(PathRateLimiter(5, 60, on_outage=choice))])(read)
    with redis_server.client() as redis, TestClient(app) as client:
        for choice in ("open", "closed", "local"):
            assert client.get(f"/{choice}").headers["RateLimit-Remaining"] == "4"
        wait_for_connections(redis, 2)  # the application's, and this test's


@pytest.mark.parametrize("is_installed", [True, False])
def test_503_does_not_name_the_store(is_installed, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", "redis://127.0.0.1:1")
    reset_default_settings()
    app = FastAPI()
    if is_installed:
        install(app)
    app.get("/x", dependencies=[Depends(PathRateLimiter(5, 60, on_outage="closed"))])(lambda: None)
    answer = TestClient(app).get("/x")
    reset_default_settings()
    assert answer.status_code == 503
    assert answer.json()["detail"] == "The rate limit cannot be checked now: connection"
    assert "127.0.0.1" not in answer.text + str(answer.headers)
