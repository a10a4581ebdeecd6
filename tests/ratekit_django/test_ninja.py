"""The throttle of Django Ninja, by its own test client and by Django's."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import ninja
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client
from django.urls import path
from ninja import NinjaAPI, Router
from ninja.security import APIKeyHeader
from ninja.testing import TestAsyncClient as NinjaAsyncClient
from ninja.testing import TestClient as NinjaClient

from ratekit import ConfigurationError
from ratekit_django import rate_limit
from ratekit_django.ninja import RateLimitThrottle
from support.servers import free_port

_names = count()


@pytest.fixture(autouse=True)
def _clock(request):
    if "redis_url" not in request.fixturenames:
        request.getfixturevalue("ratekit_clock")


def api(**options) -> NinjaAPI:
    return NinjaAPI(urls_namespace=f"api-{next(_names)}", **options)


def with_operation(throttle, **options) -> NinjaAPI:
    made = api()

    @made.get("/x/{n}", throttle=throttle, **options)
    def x(request, n: int):
        return {"n": n}

    return made


@pytest.fixture
def client(settings):
    def make(ninja: NinjaAPI, **ratekit) -> Client:
        settings.ROOT_URLCONF = (path("api/", ninja.urls),)
        settings.RATEKIT = ratekit
        return Client(raise_request_exception=False)

    return make


def statuses(client, times=3, url="/api/x/1", **options):
    return [client.get(url, **options).status_code for _ in range(times)]


def test_throttle_limits_and_the_middleware_writes_the_headers(client, keys):
    http = client(with_operation([RateLimitThrottle("2/min")]))
    answers = [http.get(f"/api/x/{n}") for n in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert (answers[2]["Retry-After"], answers[2]["Cache-Control"]) == ("60", "no-store")
    assert answers[2].json() == {"detail": "Too many requests."}
    assert keys() == ["ratelimit:/api/x/<n>:{ip:127.0.0.1}:60s"]


def test_throttle_limits_in_the_test_client_of_ninja():
    made = NinjaClient(with_operation([RateLimitThrottle("2/min", by="endpoint", endpoint="x")]))
    answers = [made.get("/x/1") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    writes_it = tuple(map(int, ninja.__version__.split(".")[:2])) >= (1, 7)  # before, the middleware alone
    assert answers[2].headers.get("Retry-After") == ("60" if writes_it else None)


async def test_throttle_limits_in_the_async_test_client_of_ninja():
    made = api()

    @made.get("/x", throttle=[RateLimitThrottle("2/min", by="endpoint", endpoint="x")])
    async def x(request):
        return {}

    ninja = NinjaAsyncClient(made)
    assert [(await ninja.get("/x")).status_code for _ in range(3)] == [200, 200, 429]


def test_one_throttle_serves_many_operations_and_keeps_nothing(client, keys):
    throttle = RateLimitThrottle("1/min")
    before = dict(vars(throttle))
    made, router = api(), Router()
    for name in ("a", "b"):
        router.get(f"/{name}", throttle=throttle, url_name=name)(lambda request: {})
    made.add_router("/inner", router)
    http = client(made)
    assert statuses(http, 2, "/api/inner/a") == [200, 429]
    assert statuses(http, 2, "/api/inner/b") == [200, 429]
    assert vars(throttle) == before
    assert len(keys()) == 2


def test_users_are_limited_each(client, keys):
    class Key(APIKeyHeader):
        param_name = "X-User"

        def authenticate(self, request, key):
            request.user = User(pk=int(key))
            return key

    http = client(with_operation([RateLimitThrottle("1/min")], auth=Key()))
    assert [http.get("/api/x/1", headers={"x-user": name}).status_code for name in ("1", "1", "2")] == [200, 429, 200]
    assert [key.split(":{")[1].split("}")[0] for key in keys()] == ["user:1", "user:2"]


def test_refusal_by_one_throttle_spends_from_none(client, store):
    http = client(with_operation([RateLimitThrottle("20/h"), RateLimitThrottle("2/s"), RateLimitThrottle("9/day")]))
    assert statuses(http, 6) == [200] * 2 + [429] * 4
    for name in store.execute("KEYS", "ratelimit:"):
        assert int(store.execute("HGET", name, "n")) == 2, name


@pytest.mark.parametrize("by_throttle", [True, False])
def test_operations_of_one_path_are_counted_apart(client, by_throttle):
    made = api()
    for method, rate in (("get", "9/min"), ("post", "2/min")):
        throttle = {"throttle": RateLimitThrottle(rate)} if by_throttle else {}
        decorate = (lambda view: view) if by_throttle else rate_limit(limits=rate, by="ip")
        getattr(made, method)("/x", **throttle)(decorate(lambda request: {}))
    http = client(made)
    assert statuses(http, 5, "/api/x") == [200] * 5
    assert [http.post("/api/x").status_code for _ in range(3)] == [200, 200, 429]


def test_several_rates_are_one_throttle(client):
    answer = client(with_operation(RateLimitThrottle(["2/s", "5/min"]))).get("/api/x/1")
    assert answer["RateLimit-Remaining"] == "1"


@pytest.mark.parametrize(("on_outage", "status"), [("open", 200), ("closed", 503)])
def test_outage_is_never_a_429_nor_a_500(client, on_outage, status):
    throttle = RateLimitThrottle("1/min", on_outage=on_outage)
    http = client(with_operation(throttle), STORE_URL=f"redis://127.0.0.1:{free_port()}")
    assert statuses(http, 2) == [status] * 2


def test_request_that_names_nobody_usable_is_a_400(client):
    assert statuses(client(with_operation(RateLimitThrottle("1/min", by=lambda request: ""))), 1) == [400]


def test_rate_that_makes_no_sense_is_refused_where_it_stands():
    with pytest.raises(ConfigurationError, match="5/fortnight"):
        RateLimitThrottle("5/fortnight")


def test_async_operation_is_limited_by_the_decorator_without_blocking(settings, redis_url, caplog):
    made = api()

    @made.get("/x/{n}")
    @rate_limit(2, 60, by="ip")
    async def x(request, n: int):
        return {"n": n}

    settings.ROOT_URLCONF = (path("api/", made.urls),)
    settings.RATEKIT = {"STORE_URL": redis_url}
    answers = [async_to_sync(AsyncClient().get)("/api/x/1") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json() == {"n": 1}
    assert answers[2]["Content-Type"] == "application/problem+json"
    assert "blocks the event loop" not in caplog.text


def test_throttle_of_an_async_operation_says_that_it_blocks_the_event_loop(settings, redis_url, caplog):
    made = api()

    @made.get("/x", throttle=RateLimitThrottle("2/min"))
    async def x(request):
        return {}

    settings.ROOT_URLCONF = (path("api/", made.urls),)
    settings.RATEKIT = {"STORE_URL": redis_url}
    answers = [async_to_sync(AsyncClient().get)("/api/x").status_code for _ in range(3)]
    assert answers == [200, 200, 429]
    assert caplog.text.count("blocks the event loop") == 1


async def _project(request):
    return "acme"


def test_throttle_of_an_async_operation_takes_an_async_identity(settings, keys):
    made = api()

    @made.get("/x", throttle=RateLimitThrottle("1/min", by="project"))
    async def x(request):
        return {}

    settings.ROOT_URLCONF = (path("api/", made.urls),)
    settings.RATEKIT = {"IDENTIFY": _project}
    assert [async_to_sync(AsyncClient().get)("/api/x").status_code for _ in range(2)] == [200, 429]
    assert keys() == ["ratelimit:/api/x:{acme}:60s"]


def test_300_requests_at_once_under_20_a_minute_admit_exactly_20(settings, redis_url):
    """And each refused one is told its own wait, though all share one throttle."""
    settings.ROOT_URLCONF = (path("api/", with_operation(RateLimitThrottle("20/min")).urls),)
    settings.RATEKIT = {"STORE_URL": redis_url}
    start = threading.Barrier(20)

    def fire(_):
        http = Client()
        start.wait()
        return [http.get("/api/x/1") for _ in range(15)]

    with ThreadPoolExecutor(20) as pool:
        answers = [answer for batch in pool.map(fire, range(20)) for answer in batch]
    codes = [answer.status_code for answer in answers]
    assert (codes.count(200), codes.count(429)) == (20, 280)
    assert all(1 <= int(answer["Retry-After"]) <= 60 for answer in answers if answer.status_code == 429)
