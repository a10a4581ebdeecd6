"""The setting RATEKIT: what it may say, that it is followed when it changes, and the Redis of CACHES."""

from __future__ import annotations

import pytest
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path

from ratekit import ConfigurationError
from ratekit_django import rate_limit
from ratekit_django.cache_url import url_of_cache
from ratekit_django.conf import conf
from support.servers import free_port

REDIS_CACHE = "django.core.cache.backends.redis.RedisCache"


def test_conf_follows_override_settings():
    with override_settings(RATEKIT={"PREFIX": "one", "ANONYMOUS": "refuse"}):
        assert (conf.prefix, conf.anonymous, conf.limiter().prefix) == ("one", "refuse", "one")
        with override_settings(RATEKIT={"PREFIX": "two"}):
            assert (conf.prefix, conf.anonymous, conf.limiter().prefix) == ("two", "ip", "two")
        assert conf.prefix == "one"
    assert conf.prefix == "ratelimit"


def test_conf_follows_the_settings_fixture(settings, site, ratekit_clock):
    client = site(path("x/", rate_limit(1, 60, by="ip")(lambda request: HttpResponse())))
    assert [client.get("/x/").status_code for _ in range(2)] == [200, 429]
    settings.RATEKIT = {"STORE_URL": "memory://other"}
    assert client.get("/x/").status_code == 200
    settings.RATEKIT = {}
    assert client.get("/x/").status_code == 429


def test_store_is_that_of_the_environment_by_default(monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", "memory://from-environment")
    assert conf.store_url == "memory://from-environment"
    with override_settings(RATEKIT={"STORE_URL": "memory://from-settings"}):
        assert conf.store_url == "memory://from-settings"


@pytest.mark.parametrize(
    ("ratekit", "said"),
    [
        ({"STORE_URL": "mysql://x"}, "mysql://x"),
        ({"STORE_URL": 7}, "STORE_URL 7"),
        ({"STORE_URL": ""}, "STORE_URL ''"),
        ({"STORE_URL": "memory://", "CACHE_ALIAS": "default"}, "both"),
        ({"CACHE_ALIAS": "nowhere"}, "'nowhere'"),
        ({"CACHE_ALIAS": "default"}, "'default'"),
        ({"PREFIX": "a b"}, "'a b'"),
        ({"ON_OUTAGE": "maybe"}, "'maybe'"),
        ({"DEADLINE": 0}, "deadline 0"),
        ({"IDENTIFY": "no.such.function"}, "no.such.function"),
        ({"IDENTIFY": "os.sep"}, "os.sep"),
        ({"IDENTIFY": 7}, "IDENTIFY 7"),
        ({"ANONYMOUS": "nobody"}, "'nobody'"),
        ({"MODE": "audit"}, "'audit'"),
        ({"HEADERS": "fancy"}, "'fancy'"),
        ({"BODY": "no.such.function"}, "no.such.function"),
        ({"TEMPLATE": ""}, "TEMPLATE ''"),
        ({"TRUSTED_HOPS": -1}, "-1"),
        ({"TRUSTED_HEADER": "X-Client-IP"}, "X-Client-IP"),
        ({"RULES": {"x": "5/fortnight"}}, "RULES['x']: rate '5/fortnight'"),
        ({"RULES": {"x": {"limits": "5/s", "colour": "red"}}}, "colour"),
        ({"RULES": {"a b": "5/s"}}, "'a b'"),
        ({"RULES": {"x": None}}, "RULES['x']"),
        ({"RULES": ["x"]}, "RULES ['x']"),
        ({"DEFAULT": "many"}, "DEFAULT: rate 'many'"),
        ({"EXEMPT": "x"}, "EXEMPT 'x'"),
        ("memory://", "RATEKIT 'memory://'"),
    ],
    ids=str,
)
def test_value_that_makes_no_sense_is_told(ratekit, said):
    with override_settings(RATEKIT=ratekit), pytest.raises(ConfigurationError) as refused:
        conf.check()
    assert said in str(refused.value)


CACHES = [
    ({"LOCATION": "redis://h:6379"}, "redis://h:6379"),
    ({"LOCATION": "redis://h:6379/3"}, "redis://h:6379/3"),
    ({"LOCATION": ["redis://primary", "redis://replica"]}, "redis://primary"),
    ({"LOCATION": "redis://primary;redis://replica"}, "redis://primary"),
    ({"LOCATION": "redis://h", "OPTIONS": {"db": 3}}, "redis://h/3"),
    ({"LOCATION": "redis://h/1", "OPTIONS": {"db": 3}}, "redis://h/1"),
    ({"LOCATION": "redis://h?db=1", "OPTIONS": {"db": 3}}, "redis://h?db=1"),
    ({"LOCATION": "rediss://h", "OPTIONS": {"username": "u", "password": "p:@/"}}, "rediss://u:p%3A%40%2F@h"),
    ({"LOCATION": "redis://h", "OPTIONS": {"PASSWORD": "p"}}, "redis://:p@h"),
    ({"LOCATION": "redis://:own@h", "OPTIONS": {"password": "p"}}, "redis://:own@h"),
    ({"LOCATION": "unix:///run/redis.sock", "OPTIONS": {"db": 2}}, "unix:///run/redis.sock?db=2"),
]


@pytest.mark.parametrize(("cache", "url"), CACHES, ids=[str(row[0]) for row in CACHES])
def test_url_of_a_cache_has_what_its_options_say(cache, url):
    with override_settings(CACHES={"default": {"BACKEND": REDIS_CACHE} | cache}):
        assert url_of_cache("default") == url


def test_cache_in_redis_is_shared_with_the_store(site, settings, redis_server):
    settings.CACHES = {"default": {"BACKEND": REDIS_CACHE, "LOCATION": redis_server.url, "OPTIONS": {"db": 3}}}
    client = site(path("x/", rate_limit(1, 60, by="ip")(lambda request: HttpResponse())), CACHE_ALIAS="default", DEADLINE=5)
    assert [client.get("/x/").status_code for _ in range(2)] == [200, 429]
    with redis_server.client(db=3) as raw:
        assert raw.keys("ratelimit:*") == [b"ratelimit:/x/:{ip:203.0.113.7}:60s"]


@pytest.mark.parametrize(("on_outage", "status"), [("open", 200), ("closed", 503), ("local", 429)])
def test_outage_is_treated_as_asked(stack, on_outage, status):
    url = f"redis://127.0.0.1:{free_port()}"
    for limit, ratekit in (
        (rate_limit(1, 60, by="ip", on_outage=on_outage), {}),
        (rate_limit(1, 60, by="ip", endpoint="e"), {"ON_OUTAGE": on_outage}),
    ):
        answers = [
            response
            for client in [stack.limited(limit, STORE_URL=url, **ratekit)]
            for response in (client.get("/x/"), client.get("/x/"))
        ]
        assert answers[1].status_code == status
        assert "RateLimit-Remaining" not in answers[1]
        if status == 503:
            assert answers[1]["Retry-After"] == "1"


def test_outage_while_monitoring_passes(stack, caplog):
    client = stack.limited(
        rate_limit(1, 60, by="ip", on_outage="closed", mode="monitor"), STORE_URL=f"redis://127.0.0.1:{free_port()}"
    )
    assert client.get("/x/").status_code == 200
    assert "could not be limited" in caplog.text
