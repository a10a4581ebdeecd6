"""The limiters that docs/comparison.md names, each behind a small application with the same limits.

`PEERS[name](limits)` returns a function that sends one request, and returns its status and headers. A limit is who is
counted ("user", "ip" or "all"), and how many requests an hour. What is no front answers 200 or 429 without headers.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.core.cache import caches
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path as url
from fastapi import Depends, FastAPI, Request
from flask import Flask, request
from starlette.testclient import TestClient

from support import django_ready  # noqa: F401 - the parts for Django read settings

Limits = Sequence[tuple[str, int]]
Answer = tuple[int, Mapping[str, str]]
Send = Callable[..., Answer]
MEMORY = "memory://"
USER = "X-User"
_numbers = itertools.count()


def named(by: str, user: str, address: str) -> str:
    """Name who is counted."""
    return {"user": user, "ip": address, "all": "everybody"}[by]


def headers_of(user: str, forwarded: str | None) -> dict[str, str]:
    """Make the headers of a request."""
    return {USER: user} | ({"X-Forwarded-For": forwarded} if forwarded else {})


def asking_starlette(app: FastAPI) -> Send:
    """Send requests to an application of FastAPI."""
    client = TestClient(app, raise_server_exceptions=False)

    def send(user: str = "ann", path: str = "/items/1", forwarded: str | None = None) -> Answer:
        answer = client.get(path, headers=headers_of(user, forwarded))
        return answer.status_code, answer.headers

    return send


def asking_flask(app: Flask) -> Send:
    """Send requests to an application of Flask."""

    def send(user: str = "ann", path: str = "/items/1", forwarded: str | None = None) -> Answer:
        answer = app.test_client().get(path, headers=headers_of(user, forwarded))
        return answer.status_code, dict(answer.headers)

    return send


class SharedSettings:
    """Settings of Django while at least one thread is inside: each for itself would restore what another has changed."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._inside = 0
        self._override: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._override = override_settings(**self._options)
                self._override.enable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._override.disable()


def asking_django(view: Any, cache: str | None) -> Send:
    """Send requests to a view of Django, over a cache."""
    backend = "django.core.cache.backends." + ("redis.RedisCache" if cache else "locmem.LocMemCache")
    settings = {"BACKEND": backend, "LOCATION": cache or "peers"}
    urls = (url("items/<int:item>", view),)
    with override_settings(CACHES={"default": settings}):
        if not cache:
            caches["default"].clear()

    silenced = ["django_ratelimit.E003", "django_ratelimit.W001"]
    options: Any = {"ROOT_URLCONF": urls, "CACHES": {"default": settings}, "MIDDLEWARE": []}
    ours = SharedSettings(SILENCED_SYSTEM_CHECKS=silenced, **options)

    def send(user: str = "ann", path: str = "/items/1", forwarded: str | None = None) -> Answer:
        with ours:
            answer = Client(raise_request_exception=False).get(path, headers=headers_of(user, forwarded))
            return answer.status_code, answer.headers

    return send


def asking_library(limits: Limits, hit: Callable[[int, str], bool]) -> Send:
    """Ask a library, one limit after the other; `hit` gets the place of the limit and who asks."""

    def send(user: str = "ann", path: str = "/items/1", forwarded: str | None = None) -> Answer:
        passes = all(hit(place, named(by, user, "127.0.0.1")) for place, (by, _) in enumerate(limits))
        return (200 if passes else 429), {}

    return send


def ratekit(limits: Limits, store: str | None = None) -> Send:
    """ratekit, by FastAPI."""
    from ratekit import Limit
    from ratekit_fastapi import PathRateLimiter, install

    app, keys = FastAPI(), {"user": f"header:{USER}", "ip": "ip", "all": None}
    install(app, store=store or f"memory://peer-{next(_numbers)}")
    used = [PathRateLimiter(limits=Limit(most, 3600, name=f"{by}-{most}"), by=keys[by]) for by, most in limits]

    @app.get("/items/{item}", dependencies=[Depends(limiter) for limiter in used])
    async def read(item: int) -> dict[str, int]:
        return {"item": item}

    return asking_starlette(app)


def slowapi(limits: Limits, store: str | None = None, **options: Any) -> Send:
    """slowapi, by decorators."""
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.util import get_remote_address
    from starlette.responses import PlainTextResponse

    app, limiter = FastAPI(), Limiter(key_func=get_remote_address, storage_uri=store or MEMORY, **options)
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)

    async def read(request: Request) -> PlainTextResponse:
        return PlainTextResponse("found")

    def by_user(request: Request) -> str:
        return request.headers[USER]

    for by, most in reversed(limits):  # the outermost decorator counts first
        key = {"user": by_user, "ip": get_remote_address, "all": lambda: "everybody"}[by]
        read = limiter.limit(f"{most}/hour", key_func=key)(read)
    app.get("/items/{item}")(read)
    return asking_starlette(app)


def fastapi_limiter(limits: Limits, store: str | None = None) -> Send:
    """fastapi-limiter, by dependencies; it keeps what pyrate-limiter keeps, in a bucket for each who asks."""
    from fastapi_limiter.depends import RateLimiter
    from fastapi_limiter.identifier import default_identifier

    def identifier(by: str) -> Any:
        async def identify(request: Request) -> str:
            return await default_identifier(request) if by == "ip" else named(by, request.headers[USER], "")

        return identify

    app = FastAPI()
    used = [RateLimiter(limiter=pyrate_of(most, store), identifier=identifier(by)) for by, most in limits]

    @app.get("/items/{item}", dependencies=[Depends(limiter) for limiter in used])
    async def read(item: int) -> dict[str, int]:
        return {"item": item}

    return asking_starlette(app)


def flask_limiter(limits: Limits, store: str | None = None, **options: Any) -> Send:
    """Flask-Limiter, by decorators."""
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    app = Flask("peer")
    limiter = Limiter(get_remote_address, app=app, storage_uri=store or MEMORY, **options)
    keys = {"user": lambda: request.headers[USER], "ip": get_remote_address, "all": lambda: "everybody"}

    def read(item: int) -> str:
        return f"item {item}"

    for by, most in reversed(limits):
        read = limiter.limit(f"{most}/hour", key_func=keys[by])(read)
    app.get("/items/<int:item>")(read)
    return asking_flask(app)


def django_ratelimit(limits: Limits, store: str | None = None, rate: str = "{most}/h") -> Send:
    """django-ratelimit, by decorators."""
    from django_ratelimit.decorators import ratelimit

    keys = {"user": f"header:{USER.lower()}", "ip": "ip", "all": lambda group, request: "everybody"}

    def read(request: HttpRequest, item: int) -> HttpResponse:
        return HttpResponse(f"item {item}")

    for by, most in reversed(limits):
        read = ratelimit(key=keys[by], rate=rate.format(most=most), group=f"{by}-{most}")(read)
    return asking_django(read, store)


def rest_framework(limits: Limits, store: str | None = None, rate: str = "{most}/hour") -> Send:
    """The throttles of Django REST framework."""
    from rest_framework.response import Response
    from rest_framework.throttling import SimpleRateThrottle
    from rest_framework.views import APIView

    class Throttle(SimpleRateThrottle):
        by = ""

        def get_cache_key(self, request: Any, view: Any) -> str:
            return f"{self.scope}:{named(self.by, request.headers[USER], self.get_ident(request))}"

    kinds = [
        type("Limit", (Throttle,), {"by": by, "scope": f"{by}-{most}", "rate": rate.format(most=most)})
        for by, most in limits
    ]

    class View(APIView):
        throttle_classes = kinds

        def get(self, request: Any, item: int) -> Response:
            return Response({"item": item})

    return asking_django(View.as_view(), store)


def limits(rates: Limits, store: str | None = None) -> Send:
    """limits: one hit for each rate."""
    from limits import RateLimitItemPerHour
    from limits.storage import storage_from_string
    from limits.strategies import FixedWindowRateLimiter

    limiter = FixedWindowRateLimiter(storage_from_string(store or MEMORY))
    items = [RateLimitItemPerHour(most) for _, most in rates]
    return asking_library(rates, lambda place, who: limiter.hit(items[place], str(place), who))


def throttled(limits: Limits, store: str | None = None) -> Send:
    """throttled-py: one call for each rate."""
    from throttled import Throttled, per_hour
    from throttled import store as stores

    where = stores.RedisStore(server=store) if store else stores.MemoryStore()
    used = [
        Throttled(using="fixed_window", quota=per_hour(most), store=where, key_prefix=str(place))
        for place, (_, most) in enumerate(limits)
    ]
    return asking_library(limits, lambda place, who: not used[place].limit(who).limited)


def pyrate_of(most: int, store: str | None = None) -> Any:
    """A limiter of pyrate-limiter with a bucket for each who asks: by itself it has one bucket for all."""
    from pyrate_limiter import BucketFactory, Duration, InMemoryBucket, Limiter, Rate, RateItem, RedisBucket

    class BucketForEach(BucketFactory):
        buckets: dict[str, Any]

        def wrap_item(self, name: str, weight: int = 1) -> RateItem:
            import time

            return RateItem(name, time.time_ns() // 1_000_000, weight=weight)

        def get(self, item: RateItem) -> Any:
            if item.name not in self.buckets:
                self.buckets[item.name] = made(item.name)
            return self.buckets[item.name]

    def made(name: str) -> Any:
        if store is None:
            return InMemoryBucket([Rate(most, Duration.HOUR)])
        import redis

        return RedisBucket.init([Rate(most, Duration.HOUR)], redis.Redis.from_url(store), f"pyrate:{most}:{name}")

    factory = BucketForEach()
    factory.buckets = {}
    return Limiter(factory)


def pyrate_limiter(limits: Limits, store: str | None = None) -> Send:
    """pyrate-limiter: one call for each rate."""
    used = [pyrate_of(most, store) for _, most in limits]
    return asking_library(limits, lambda place, who: bool(used[place].try_acquire(who, blocking=False)))


PEERS: dict[str, Callable[..., Send]] = {
    "ratekit": ratekit,
    "slowapi": slowapi,
    "fastapi-limiter": fastapi_limiter,
    "Flask-Limiter": flask_limiter,
    "django-ratelimit": django_ratelimit,
    "DRF": rest_framework,
    "limits": limits,
    "throttled-py": throttled,
    "pyrate-limiter": pyrate_limiter,
}
