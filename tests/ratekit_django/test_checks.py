"""System checks: what is wrong with a project is told when it starts, with an id."""

from __future__ import annotations

import subprocess
import sys

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.http import HttpResponse
from django.urls import include, path
from django.views import View
from rest_framework.views import APIView

from ratekit_django import RateLimitMixin, rate_limit
from ratekit_django.drf import RateLimitThrottle, ScopedRateLimitThrottle
from ratekit_django.middleware import RateLimitMiddleware
from support.servers import start_server, stop_server, wheel_server

OURS = "ratekit_django.middleware.RateLimitMiddleware"


def hello(request):
    return HttpResponse()


@pytest.fixture
def told(settings):
    """Run the checks on a project: the ids, and the messages with their hints."""

    def run(*patterns, deploy=False, middleware=(OURS,), **ratekit):
        settings.ROOT_URLCONF = patterns
        settings.MIDDLEWARE = list(middleware)
        settings.RATEKIT = ratekit
        found = run_checks(tags=["ratekit"], include_deployment_checks=deploy)
        return [message.id for message in found], " ".join(f"{message.msg} {message.hint}" for message in found)

    return run


def test_project_that_is_right_has_no_messages(told):
    ids, _ = told(
        path("x/", rate_limit(5, 60, by="ip")(hello), name="x"),
        path("y/", hello),
        RULES={"x": "5/s", "/y/": "5/s", "/*": "9/s"},
    )
    assert ids == []


def test_unknown_key_is_told_with_a_hint(told):
    ids, text = told(STORE_ULR="memory://", colour="red")
    assert ids == ["ratekit.E001"] * 2
    assert "'STORE_ULR'" in text
    assert "Did you mean 'STORE_URL'?" in text
    assert "Known are STORE_URL, CACHE_ALIAS" in text


@pytest.mark.parametrize(
    ("ratekit", "said"),
    [
        ({"ON_OUTAGE": "maybe"}, "'maybe'"),
        ({"IDENTIFY": "no.such"}, "no.such"),
        ({"STORE_URL": "mysql://x"}, "mysql://x"),
        ({"DEADLINE": -1}, "deadline -1"),
        ({"TRUSTED_HOPS": "x"}, "'x'"),
    ],
    ids=str,
)
def test_value_that_makes_no_sense_is_told(told, ratekit, said):
    ids, text = told(**ratekit)
    assert ids == ["ratekit.E002"]
    assert said in text


def test_setting_that_is_no_dict_is_told(settings):
    settings.RATEKIT = "memory://"
    settings.ROOT_URLCONF = ()
    assert [message.id for message in run_checks(tags=["ratekit"])] == ["ratekit.E002"]


@pytest.mark.parametrize(
    "ratekit", [{"RULES": {"x": "5/fortnight"}}, {"DEFAULT": "x"}, {"RULES": {"x": {"limits": "0/fortnight"}}}], ids=str
)
def test_rate_that_cannot_be_read_is_told(told, ratekit):
    assert told(path("x/", hello, name="x"), **ratekit)[0] == ["ratekit.E003"]


def test_missing_middleware_is_a_warning_and_with_rules_an_error(told):
    assert told(middleware=[])[0] == ["ratekit.W001"]
    assert told(path("x/", hello, name="x"), middleware=[], RULES={"x": "5/s"})[0] == ["ratekit.E004"]


@pytest.mark.parametrize("ratekit", [{"ADMIN_LOGIN": "5/15min"}, {"DEFAULT": "5/s"}], ids=str)
def test_setting_that_only_the_middleware_applies_is_an_error_without_it_and_logged_at_the_start(told, ratekit, caplog):
    ids, text = told(middleware=[], **ratekit)
    assert ids == ["ratekit.E004"]
    assert f"RATEKIT has {next(iter(ratekit))}, but" in text
    apps.get_app_config("ratekit").ready()
    assert f"RATEKIT['{next(iter(ratekit))}'] limits nothing" in caplog.text
    caplog.clear()
    assert told(middleware=["tests.ratekit_django.test_checks.OwnMiddleware"], **ratekit)[0] == []
    apps.get_app_config("ratekit").ready()
    assert "limits nothing" not in caplog.text


class OwnMiddleware(RateLimitMiddleware):
    """A middleware of the project."""


@pytest.mark.parametrize(
    "other", ["django.middleware.cache.UpdateCacheMiddleware", "django.middleware.http.ConditionalGetMiddleware"]
)
def test_middleware_in_the_wrong_place_is_told(told, other):
    ids, text = told(middleware=[other, OURS])
    assert ids == ["ratekit.W002"]
    assert other in text
    assert told(middleware=[OURS, other])[0] == []


def test_middleware_that_stands_twice_is_told(told):
    assert told(middleware=[OURS, OURS])[0] == ["ratekit.W002"]


def test_rule_that_fits_no_url_is_told_with_a_hint(told):
    inner = ([path("items/<int:n>/", hello, name="items")], "api")
    ids, text = told(
        path("api/", include(inner)), RULES={"api:itmes": "5/s", "api:items": "5/s", "/api/*": "9/s"}, EXEMPT=["/health/"]
    )
    assert ids == ["ratekit.W003"] * 2
    assert "Did you mean 'api:items'?" in text
    assert "'/health/'" in text


LIMITED = {
    "function": lambda: rate_limit(5, 60)(hello),
    "decorated": lambda: _wrapped(rate_limit(5, 60)(hello)),
    "mixin": lambda: type("Mixed", (RateLimitMixin, View), {"rate_limits": "5/s"}).as_view(),
}


def _wrapped(view):
    from django.views.decorators.csrf import csrf_exempt

    return csrf_exempt(view)


@pytest.mark.parametrize("kind", LIMITED)
def test_limit_by_project_without_identify_is_told(told, kind):
    view = LIMITED[kind]()
    ids, text = told(path("x/", view))
    assert ids == ["ratekit.W004"]
    assert "IDENTIFY" in text
    assert told(path("x/", view), IDENTIFY="os.getpid")[0] == []
    assert "limited by their address" in text
    assert told(path("x/", view), ANONYMOUS="ip")[0] == []
    ids, text = told(path("x/", view), ANONYMOUS="pass")
    assert ids == ["ratekit.W004"]
    assert "project_id pass" in text


@pytest.mark.parametrize("rates", [{}, {"uploads": "5/fortnight"}], ids=str)
def test_scope_of_drf_without_a_good_rate_is_told(told, settings, rates):
    members = {"throttle_classes": [ScopedRateLimitThrottle, RateLimitThrottle.of("5/s")], "throttle_scope": "uploads"}
    view = type("Uploads", (APIView,), members)
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": rates}
    ids, text = told(path("x/", view.as_view()))
    assert ids == ["ratekit.E005"]
    assert "Uploads" in text


def test_scope_of_drf_that_is_not_limited_is_not_told(told, settings):
    view = type("Uploads", (APIView,), {"throttle_classes": [ScopedRateLimitThrottle], "throttle_scope": "uploads"})
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": {"uploads": None}}
    assert told(path("x/", view.as_view()))[0] == []


def test_throttle_without_rate_and_scope_is_told(told):
    view = type("Uploads", (APIView,), {"throttle_classes": [RateLimitThrottle]})
    ids, text = told(path("x/", view.as_view()))
    assert ids == ["ratekit.E005"]
    assert "RateLimitThrottle has neither a rate nor a scope" in text


def test_scope_that_as_view_was_given_is_checked(told):
    view = type("Uploads", (APIView,), {"throttle_classes": [ScopedRateLimitThrottle], "throttle_scope": None})
    assert told(path("x/", view.as_view()))[0] == []
    assert told(path("x/", view.as_view(throttle_scope="uploads")))[0] == ["ratekit.E005"]


@pytest.mark.parametrize("name", ["cache", "timer", "parse_rate", "throttle_success", "throttle_failure", "get_ident"])
def test_part_of_a_throttle_that_has_no_effect_is_told(told, name):
    throttle = type("Mine", (RateLimitThrottle,), {"rate": "5/s", name: lambda self, *_: None})
    ids, text = told(path("x/", type("Api", (APIView,), {"throttle_classes": [throttle]}).as_view()))
    assert ids == ["ratekit.W007"]
    assert f"Mine.{name} has no effect" in text


def test_part_of_a_throttle_that_has_an_effect_is_not_told(told):
    own = {name: lambda self, *_: "5/s" for name in ("get_rate", "get_cache_key", "get_ident")}
    throttle = type("Mine", (RateLimitThrottle,), own | {"THROTTLE_RATES": {}})
    assert told(path("x/", type("Api", (APIView,), {"throttle_classes": [throttle]}).as_view()))[0] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("USE_X_FORWARDED_HOST", True),
        ("USE_X_FORWARDED_PORT", True),
        ("SECURE_PROXY_SSL_HEADER", ("HTTP_X_FORWARDED_PROTO", "https")),
    ],
)
def test_proxy_that_is_not_trusted_is_told_on_deploy(told, settings, redis_server, name, value):
    store = {"STORE_URL": redis_server.url}
    assert told(deploy=True, **store)[0] == []
    setattr(settings, name, value)
    assert told(**store)[0] == []
    ids, text = told(deploy=True, **store)
    assert ids == ["ratekit.W008"]
    assert name in text
    for hops in (0, 1, ["10.0.0.0/8"]):
        assert told(deploy=True, TRUSTED_HOPS=hops, **store)[0] == []
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"NUM_PROXIES": 1}
    assert told(deploy=True, **store)[0] == []


def test_proxies_that_two_settings_number_differently_are_told_on_deploy(told, settings, redis_server):
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"NUM_PROXIES": 2}
    ids, text = told(deploy=True, STORE_URL=redis_server.url, TRUSTED_HOPS=1)
    assert ids == ["ratekit.W008"]
    assert "NUM_PROXIES is 2" in text
    assert told(deploy=True, STORE_URL=redis_server.url, TRUSTED_HOPS=2)[0] == []


def test_memory_with_several_workers_is_told_on_deploy_only(told, monkeypatch, redis_server):
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    assert told(STORE_URL="memory://")[0] == []
    ids, text = told(deploy=True, STORE_URL="memory://")
    assert ids == ["ratekit.W005"]
    assert "4 workers" in text
    assert told(deploy=True, STORE_URL=redis_server.url)[0] == []


def caches(url):
    return {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}}


def test_cache_that_evicts_is_told_on_deploy(told, settings, redis_server):
    evicting = start_server(wheel_server(), "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    try:
        settings.CACHES = caches(evicting.url)
        assert told(CACHE_ALIAS="default")[0] == []
        ids, text = told(deploy=True, CACHE_ALIAS="default")
        assert ids == ["ratekit.W006"]
        assert "'allkeys-lru'" in text
    finally:
        stop_server(evicting)
    settings.CACHES = caches(redis_server.url)
    assert told(deploy=True, CACHE_ALIAS="default")[0] == []


def test_cache_that_cannot_be_asked_is_told_on_deploy(told, settings):
    settings.CACHES = caches("redis://127.0.0.1:1")
    ids, text = told(deploy=True, CACHE_ALIAS="default")
    assert ids == ["ratekit.W006"]
    assert "cannot be asked" in text


def test_manage_py_check_tells_them_by_tag(tmp_path):
    code = """
from support.django_settings import *
RATEKIT = {"STORE_ULR": "memory://"}
"""
    (tmp_path / "wrong_settings.py").write_text(code)
    command = [sys.executable, "-m", "django", "check", "--tag", "ratekit", "--deploy", "--settings", "wrong_settings"]
    paths = ":".join([str(tmp_path), *sys.path])
    finished = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": paths}, check=False)
    assert finished.returncode == 1
    assert "(ratekit.E001) RATEKIT has the unknown key 'STORE_ULR'." in finished.stderr
    assert "HINT: Did you mean 'STORE_URL'?" in finished.stderr
    assert "ratekit.W005" in finished.stderr
