"""The SDK, waiting and awaiting: keys, services, requests of every framework, outages of both stores, modes."""

from __future__ import annotations

import asyncio
import inspect

import flask
import pytest
from starlette.requests import Request

from ratekit import ConfigurationError, RateLimitUnavailable
from ratekit.core.errors import DocumentError, UnknownLimitsError, UnusableRequestError
from ratekit.rules import AsyncRateKit, RateKit, Rules, source
from ratekit.stores.memory import MemoryStore
from ratekit.telemetry import prometheus
from support.mongo import mongo_server
from support.published_key_parsers import image_recognition, sentiment
from support.rule_documents import ROWS, SERVICE
from support.servers import wait_until

DOCUMENT = {"general_rate_limit": {"rps": 3, "rpm": 5}, "custom_rate_limits": {"user:1234": {"rpm": 2}}}


class Kit:
    """An SDK of either colour behind one face."""

    def __init__(self, kind, **options) -> None:
        self._loop = asyncio.new_event_loop() if kind is AsyncRateKit else None
        self.kit = kind(**{"store": MemoryStore()} | options)

    def end(self) -> None:
        """Close it, and its event loop."""
        if self._loop is None:
            self.kit.close()
        else:
            self._loop.run_until_complete(self.kit.aclose())
            self._loop.close()

    def __getattr__(self, name):
        def call(*args, **options):
            answer = getattr(self.kit, name)(*args, **options)
            return self._loop.run_until_complete(answer) if inspect.isawaitable(answer) else answer

        return call


@pytest.fixture(params=[RateKit, AsyncRateKit], ids=["sync", "async"])
def kit(request):
    made = []

    def make(**options):
        made.append(Kit(request.param, **{"service": "sentiment", "rules": DOCUMENT} | options))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_key_has_its_own_limits_or_the_general_ones(kit, ratekit_clock):
    sdk = kit()
    first = sdk.check_rate_limit("tenant:acme")
    assert (first.allowed, first.remaining_by) == (True, {"rps": 2, "rpm": 4})
    assert sdk.check_rate_limit("sentiment", "tenant:acme").remaining_by == {"rps": 1, "rpm": 3}
    assert sdk.check_rate_limit(service_name="sentiment", key="tenant:acme").remaining_by == {"rps": 0, "rpm": 2}
    refused = sdk.check_rate_limit("tenant:acme")
    assert (refused.allowed, refused.limit, refused.remaining_by) == (False, "rps", {"rps": 0, "rpm": 2})
    assert sdk.check_rate_limit("user:1234").remaining_by == {"rpm": 1}


def test_published_document_is_used_as_it_is(kit):
    sdk = kit(rules=SERVICE)
    assert sdk.check_rate_limit("tenant:client-corp:lang:en").remaining_by == {"rpm": 499, "rph": 19999, "rpd": 249999}
    assert sdk.check_rate_limit("somebody").remaining_by == {"rps": 19, "rpm": 999, "rph": 49999, "rpd": 99999}


def test_service_is_the_endpoint_of_the_counters(kit):
    store = MemoryStore()
    kit(store=store).check_rate_limit("user:7")
    assert sorted(key.decode() for key in store.execute("KEYS", "ratelimit:")) == [
        "ratelimit:sentiment:{user:7}:rpm", "ratelimit:sentiment:{user:7}:rps"
    ]  # fmt: skip


def test_name_of_another_service_is_an_error(kit):
    with pytest.raises(ConfigurationError, match="service 'image' is another one: these are the rules of 'sentiment'"):
        kit().check_rate_limit("image", "user:1")
    with pytest.raises(ConfigurationError, match="key '' is not a text"):
        kit().check_rate_limit("")


def test_key_that_nothing_limits_is_allowed(kit):
    result = kit(rules={"custom_rate_limits": {"user:1": {"rps": 1}}}).check_rate_limit("user:2")
    assert (result.allowed, result.remaining_by, result.unlimited) == (True, {}, True)


def test_rows_are_asked_by_client_key_and_endpoint(kit):
    sdk = kit(rules=ROWS)
    assert sdk.check_rate_limit("user:42", endpoint="/api/v1/search", cost=10).max_requests == 200
    assert sdk.check_rate_limit("user:42", endpoint="/other").max_requests == 1000
    assert sdk.check_rate_limit("user:9", endpoint="/api/v1/search").max_requests == 500
    assert sdk.check_rate_limit("user:1", endpoint="/api/v1/search").max_requests == 10


def test_modes_are_applied(kit, monkeypatch):
    sdk = kit(rules={"general_rate_limit": {"rpm": 1}})
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert [sdk.check_rate_limit("a").allowed for _ in range(3)] == [True] * 3
    assert sdk.check_rate_limit("a").would_violate == ("rpm",)
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert sdk.check_rate_limit("b").remaining_by == {}
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert [sdk.check_rate_limit("b").allowed for _ in range(2)] == [True, False]


def test_redis_that_is_away_lets_pass_and_metrics_say_so(kit):
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    remove = prometheus.install(registry)
    sdk = kit(store="redis://127.0.0.1:1")
    assert sdk.check_rate_limit("user:1").degraded is not None
    assert sdk.check_rate_limit("user:1").allowed
    remove()
    counted = registry.get_sample_value("ratekit_requests_total", {"policy": "sentiment", "outcome": "degraded"})
    assert counted == 2
    closed = kit(store="redis://127.0.0.1:1", rules={"on_outage": "closed", "rules": [{"limits": "1/s"}]})
    with pytest.raises(RateLimitUnavailable):
        closed.check_rate_limit("user:1")


# Requests


def flask_request(**options):
    app = flask.Flask("test")
    return app.test_request_context(**options)


def test_request_of_flask_is_limited_by_the_published_parsers():
    sdk = RateKit("sentiment", SERVICE, MemoryStore(), by=sentiment)
    with flask_request(json={"tenant_id": "client-corp", "language": "en"}):
        assert sdk.check(flask.request).remaining_by == {"rpm": 499, "rph": 19999, "rpd": 249999}
        assert sdk.check_rate_limit("sentiment", sentiment(flask.request)).remaining_by["rpm"] == 498
        assert image_recognition(flask.request) == "model:v1:res:sd"


async def test_request_of_starlette_is_limited_by_the_published_parsers():
    async def receive():
        return {"type": "http.request", "body": b'{"tenant_id": "client-corp", "language": "en"}', "more_body": False}

    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": headers,
        "query_string": b"",
        "client": ("192.0.2.7", 1),
    }
    async with AsyncRateKit("sentiment", SERVICE, MemoryStore(), by=sentiment) as sdk:
        request = Request(scope, receive)
        assert (await sdk.check(request)).remaining_by == {"rpm": 499, "rph": 19999, "rpd": 249999}
        assert await request.json() == {"tenant_id": "client-corp", "language": "en"}
        assert (await sdk.check(scope | {"headers": []})).remaining_by["rps"] == 19


def test_request_of_django_is_limited_by_the_published_parsers():
    from support import django_ready  # noqa: F401, I001 - sets Django up
    from django.test import RequestFactory

    request = RequestFactory().post("/", {"model_version": "v2"}, content_type="application/json")
    sdk = RateKit("image", {"custom_rate_limits": {"model:v2:res:sd": {"rpm": 7}}}, MemoryStore(), by=image_recognition)
    assert sdk.check(request).remaining_by == {"rpm": 6}


def test_request_that_does_not_say_who_asks_is_told():
    sdk = RateKit("s", {"rules": [{"limits": "1/s", "by": "header:X", "anonymous": "refuse"}]}, MemoryStore())
    with flask_request() as context, pytest.raises(UnusableRequestError, match="has no key that it could be limited by"):
        sdk.check(context.request)
    with pytest.raises(ConfigurationError, match="request of type 'int' is unknown"):
        sdk.check(5)


def test_body_that_is_too_long_to_look_into_is_told_so():
    sdk = RateKit("s", {"rules": [{"limits": "1/s", "by": "json:tenant_id"}]}, MemoryStore())
    with flask_request(json={"tenant_id": "x" * 70_000}) as context, pytest.raises(UnusableRequestError) as told:
        sdk.check(context.request)
    assert told.value.status == 413
    assert told.value.detail == "the body has more than 65536 bytes, and who is limited (json:tenant_id) is in it"


# MongoDB


@pytest.mark.parametrize("kind", [RateKit, AsyncRateKit], ids=["sync", "async"])
def test_mongodb_is_followed_and_the_last_configuration_stays(kind):
    server = mongo_server()
    url = f"{server.new_database()}&collection=rate_limits&interval=0.2&serverSelectionTimeoutMS=1000"
    writer = source(url, service="sentiment")
    writer.save(DOCUMENT)
    sdk = Kit(kind, service="sentiment", rules=source(url))
    assert sdk.check_rate_limit("user:1234").remaining_by == {"rpm": 1}
    writer.save({"general_rate_limit": {"rph": 9}})
    writer.close()
    wait_until(lambda: sdk.check_rate_limit("user:1234").remaining_by.keys() == {"rph"}, "the change is not seen")
    server.stop()
    try:
        wait_until(lambda: sdk.kit.status.trouble is not None, "the outage is not told")
        assert sdk.check_rate_limit("user:5").remaining_by == {"rph": 8}
    finally:
        server.start()
    wait_until(lambda: sdk.kit.status.trouble is None, "it is not back")
    sdk.end()


def test_rule_cache_hits_are_a_metric(tmp_path):
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    remove = prometheus.install(registry)
    path = tmp_path / "rules.json"
    path.write_text('{"rules": [{"limits": "1000/s"}]}')
    rules = Rules.load(path)
    sdk = RateKit("s", rules, MemoryStore())
    for _ in range(10):
        sdk.check_rate_limit("a")

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    wait_until(lambda: value("ratekit_rule_lookups_total", cache="hit") == 9, "hits are not counted")
    assert value("ratekit_rule_lookups_total", cache="miss") == 1
    assert value("ratekit_rules_in_force", source=str(path), version=rules.status.version) == 1
    path.write_text('{"rules": [{"limits": "many"}]}')
    wait_until(lambda: value("ratekit_rules_trouble", source=str(path)) == 1, "the refusal is not shown")
    assert value("ratekit_rules_changes_total", source=str(path), outcome="refused") == 1
    sdk.close()
    remove()


PLANNED = {
    "plans": {"free": "1/min", "pro": "2/min"},
    "rules": [{"name": "s", "limits": "plan", "by": {"user": "header:x-user"}}],
}


def test_plan_of_names_the_plan_of_a_key(kit):
    plans = {"user:ann": "free", "user:bob": "pro", "user:zoe": "gold"}
    made = kit(rules=PLANNED, plan_of=plans.get)
    for user, expected in {"ann": [True, False], "bob": [True, True, False], "eve": [True] * 3}.items():
        assert [made.check_rate_limit(f"user:{user}").allowed for _ in expected] == expected
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [(b"x-user", b"bob")]}
    assert made.check(scope).limits[0].max_requests == 2
    with pytest.raises(UnknownLimitsError, match="'gold' is no plan"):
        made.check_rate_limit("user:zoe")


@pytest.mark.parametrize("kind", [RateKit, AsyncRateKit])
def test_document_by_plan_is_refused_without_plan_of(kind):
    with pytest.raises(DocumentError, match="limits 'plan' needs plan_of"):
        kind("s", PLANNED, MemoryStore())
    with pytest.raises(ConfigurationError, match="plan_of 5 is not a callable"):
        kind("s", PLANNED, MemoryStore(), plan_of=5)


async def plan_later(key):
    return {"ann": "free"}[key]


async def test_plan_of_may_be_awaited_where_there_is_a_loop():
    async with AsyncRateKit("s", PLANNED, MemoryStore(), plan_of=plan_later) as made:
        assert [(await made.check_rate_limit("ann")).allowed for _ in range(2)] == [True, False]
    with pytest.raises(ConfigurationError, match="plan_of .* has to be awaited"):
        RateKit("s", PLANNED, MemoryStore(), plan_of=plan_later)
