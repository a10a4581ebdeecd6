"""Throttles of Django REST framework, by its own test client."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured
from django.urls import path
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.test import APIClient
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from ratekit import ConfigurationError, Limit
from ratekit_django.drf import (
    AnonRateLimitThrottle,
    RateLimitThrottle,
    ScopedRateLimitThrottle,
    UserRateLimitThrottle,
)
from support.listening import heard
from support.servers import free_port


@pytest.fixture(autouse=True)
def _clock(request):
    if "redis_url" not in request.fixturenames:
        request.getfixturevalue("ratekit_clock")


class ByHeader(BaseAuthentication):
    def authenticate(self, request):
        name = request.headers.get("X-User")
        return (User(pk=int(name)), "token") if name else None


def api(*throttles, **attributes):
    """A view class with some throttles."""

    def get(self, request, **_):
        return Response({"hello": "world"})

    members = {"get": get, "throttle_classes": list(throttles), "authentication_classes": [ByHeader]}
    return type("Api", (APIView,), members | attributes)


@pytest.fixture
def client(settings):
    def make(*views, rates=None, **ratekit):
        settings.ROOT_URLCONF = tuple(
            path(f"{name}/<int:n>/", view.as_view()) for name, view in zip("xyz", views, strict=False)
        )
        settings.RATEKIT = ratekit
        settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": rates or {}}
        return APIClient(raise_request_exception=False)

    return make


def statuses(client, times=3, url="/x/1/", **headers):
    return [client.get(url, headers=headers).status_code for _ in range(times)]


@pytest.mark.parametrize("with_middleware", [True, False])
def test_throttle_limits_and_writes_the_headers_of_the_core(client, settings, with_middleware):
    if not with_middleware:
        settings.MIDDLEWARE = []
    api_client = client(api(RateLimitThrottle.of("2/min")))
    answers = [api_client.get("/x/1/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert ["Retry-After" in answer for answer in answers] == [False, False, True]
    assert answers[2]["Retry-After"] == "60"
    assert answers[2]["Cache-Control"] == "no-store"
    assert answers[2].json()["detail"] == "Request was throttled. Expected available in 60 seconds."


def test_wait_is_honest(client, ratekit_clock):
    api_client = client(api(RateLimitThrottle.of("1/min")))
    api_client.get("/x/1/")
    ratekit_clock.advance(29.5)
    wait = int(api_client.get("/x/1/")["Retry-After"])
    assert wait == 31
    ratekit_clock.advance(30.4)
    assert api_client.get("/x/1/").status_code == 429
    ratekit_clock.advance(0.1)
    assert api_client.get("/x/1/").status_code == 200


def test_cost_that_can_never_fit_promises_no_wait(client):
    answer = client(api(RateLimitThrottle.of("2/min", cost=3))).get("/x/1/")
    assert (answer.status_code, "Retry-After" in answer) == (429, False)


def test_users_are_limited_each_and_others_by_the_address(client, keys):
    api_client = client(api(RateLimitThrottle.of("1/min")))
    assert statuses(api_client, 2, x_user="1") == [200, 429]
    assert statuses(api_client, 2, x_user="2") == [200, 429]
    assert statuses(api_client, 2, x_forwarded_for="1.2.3.4") == [200, 429]
    assert statuses(api_client, 1, x_forwarded_for="1.2.3.5") == [429]
    assert [key.split(":{")[1].split("}")[0] for key in keys()] == ["ip:127.0.0.1", "user:1", "user:2"]


def test_rate_counts_for_each_pattern_and_scope_over_all_views(client, keys):
    rate = RateLimitThrottle.of("2/min")
    api_client = client(api(rate), api(rate))
    assert [api_client.get(url).status_code for url in ("/x/1/", "/x/2/", "/y/1/")] == [200] * 3
    assert [key.split(":{")[0] for key in keys()] == ["ratelimit:/x/<int:n>/", "ratelimit:/y/<int:n>/"]
    api_client = client(api(UserRateLimitThrottle), api(UserRateLimitThrottle), rates={"user": "2/min"})
    assert [api_client.get(url).status_code for url in ("/x/1/", "/y/1/", "/x/1/")] == [200, 200, 429]


def test_scope_is_that_of_the_view(client):
    views = [api(ScopedRateLimitThrottle, throttle_scope=scope) for scope in ("uploads", "uploads", None)]
    api_client = client(*views, rates={"uploads": "2/min"})
    assert [api_client.get(url).status_code for url in ("/x/1/", "/y/1/", "/x/1/", "/z/1/")] == [200, 200, 429, 200]


def test_scope_whose_rate_is_none_is_not_limited(client, keys):
    """As in the settings that DRF itself has by default."""
    throttles = (UserRateLimitThrottle, AnonRateLimitThrottle, ScopedRateLimitThrottle)
    view = api(*throttles, throttle_scope="uploads")
    assert statuses(client(view, rates={"user": None, "anon": None, "uploads": None})) == [200] * 3
    assert keys() == []


def test_view_may_lift_the_limit_of_a_scope(client):
    view = api(UserRateLimitThrottle, throttle_rates={"user": None})
    assert statuses(client(view, rates={"user": "1/min"})) == [200] * 3


@pytest.mark.parametrize("throttle", [RateLimitThrottle, UserRateLimitThrottle, ScopedRateLimitThrottle])
def test_scope_with_a_rate_of_its_own_is_counted_over_all_views(client, keys, throttle):
    burst = type("Burst", (throttle,), {"rate": "2/min", "scope": "burst"})
    views = [api(burst, throttle_scope="burst") for _ in range(2)]
    assert [client(*views).get(url).status_code for url in ("/x/1/", "/y/1/", "/x/1/")] == [200, 200, 429]
    assert keys() == ["ratelimit:burst:{ip:127.0.0.1}:60s"]


def test_rates_of_the_class_stand_before_those_of_the_settings(client):
    class Burst(UserRateLimitThrottle):
        scope = "burst"
        THROTTLE_RATES = {"burst": "1/min"}  # noqa: RUF012

    assert statuses(client(api(Burst), rates={"burst": "9/min"}), 2) == [200, 429]
    Burst.scope = "sustained"
    assert statuses(client(api(Burst), rates={"sustained": "9/min"}), 1) == [500]


def test_get_rate_of_a_subclass_says_the_rate(client):
    class ByDay(RateLimitThrottle):
        weekday = "1/min"

        def get_rate(self):
            return self.weekday

    api_client = client(api(ByDay))
    assert statuses(api_client, 2) == [200, 429]
    ByDay.weekday = None
    assert statuses(api_client, 2) == [200, 200]


def test_throttle_without_rate_and_scope_is_an_error_and_no_gap(client):
    assert statuses(client(api(RateLimitThrottle)), 1) == [500]


class ByTenant(UserRateLimitThrottle):
    """Written for DRF: who is limited is in the key, None is not limited, and staff is not."""

    rate = "1/min"

    def get_cache_key(self, request, view):
        if "x-staff" in request.headers:
            return None
        if "x-tenant" not in request.headers:
            return super().get_cache_key(request, view)
        return self.cache_format % {"scope": self.scope, "ident": request.headers["x-tenant"]}


def test_get_cache_key_of_a_subclass_says_who_is_limited(client, keys):
    api_client = client(api(ByTenant), api(ByTenant))
    assert statuses(api_client, 2, x_tenant="acme") == [200, 429]
    assert statuses(api_client, 1, "/y/1/", x_tenant="acme") == [429]
    assert statuses(api_client, 2, x_tenant="other") == [200, 429]
    assert statuses(api_client, 3, x_staff="yes") == [200] * 3
    assert statuses(api_client, 2, x_user="7") == [200, 429]
    assert statuses(api_client, 2) == [200, 429]
    subjects = ["ip:127.0.0.1", "throttle_user_acme", "throttle_user_other", "user:7"]
    assert keys() == [f"ratelimit:user:{{{subject}}}:60s" for subject in subjects]


def test_get_cache_key_of_a_subclass_without_scope_counts_over_all_views(client):
    class Own(RateLimitThrottle):
        rate = "2/min"

        def get_cache_key(self, request, view):
            return self.get_ident(request)

    api_client = client(api(Own), api(Own))
    assert [api_client.get(url).status_code for url in ("/x/1/", "/y/1/", "/x/1/")] == [200, 200, 429]


@pytest.mark.parametrize("known", [True, False])
def test_get_cache_key_of_a_subclass_of_the_anonymous_throttle_alone_decides(client, known):
    class Everybody(AnonRateLimitThrottle):
        rate = "1/min"

        def get_cache_key(self, request, view):
            return super().get_cache_key(request, view) if known else "all"

    api_client = client(api(Everybody))
    assert statuses(api_client, 2, x_user="1") == ([200, 200] if known else [200, 429])


@pytest.mark.parametrize("setting", ["REST_FRAMEWORK", "NINJA_NUM_PROXIES"])
def test_number_of_proxies_of_the_framework_is_trusted(client, settings, setting):
    api_client = client(api(RateLimitThrottle.of("1/min")))
    assert statuses(api_client, 2, x_forwarded_for="192.0.2.1, 203.0.113.1") == [200, 429]
    assert statuses(api_client, 1, x_forwarded_for="192.0.2.1, 203.0.113.2") == [429]
    number = settings.REST_FRAMEWORK | {"NUM_PROXIES": 1} if setting == "REST_FRAMEWORK" else 1
    setattr(settings, setting, number)
    assert statuses(api_client, 2, x_forwarded_for="192.0.2.1, 203.0.113.2") == [200, 429]
    assert statuses(api_client, 1, x_forwarded_for="192.0.2.9, 203.0.113.2") == [429]
    settings.RATEKIT = {"TRUSTED_HOPS": 0}
    assert statuses(api_client, 1, x_forwarded_for="203.0.113.3") == [429]


def test_ident_is_the_address_of_the_peer_unless_proxies_are_trusted(settings, rf):
    request = rf.get("/x/", headers={"x-forwarded-for": "192.0.2.1, 2001:db8::1"})
    assert RateLimitThrottle().get_ident(request) == "127.0.0.1"
    settings.RATEKIT = {"TRUSTED_HOPS": 1}
    assert RateLimitThrottle().get_ident(request) == "2001:db8::/64"


def test_refusal_is_logged_and_measured_under_the_throttle_that_refused(client):
    view = api(UserRateLimitThrottle, RateLimitThrottle.of("1/min", by="ip"), AnonRateLimitThrottle)
    api_client = client(view, rates={"user": "9/min", "anon": "5/day"})
    with heard() as decisions:
        assert statuses(api_client, 2) == [200, 429]
    assert [(one.endpoint, one.policy) for one in decisions] == [("user", "user"), ("/x/<int:n>/", "/x/<int:n>/")]


def test_view_has_a_rate_of_its_own_for_a_scope(client):
    view = api(UserRateLimitThrottle, throttle_rates={"user": "1/min"})
    assert statuses(client(view, rates={"user": "9/min"}), 2) == [200, 429]


def test_throttles_of_the_settings_are_used(client, settings):
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {
        "DEFAULT_THROTTLE_CLASSES": ["ratekit_django.drf.AnonRateLimitThrottle"]
    }
    view = api()
    view.throttle_classes = api_settings.DEFAULT_THROTTLE_CLASSES
    api_client = client(view, rates={"anon": "1/minute"})
    assert statuses(api_client, 2) == [200, 429]
    assert statuses(api_client, 3, x_user="1") == [200] * 3


def test_all_throttles_of_a_view_charge_all_or_nothing_in_one_call(client, store):
    view = api(
        RateLimitThrottle.of("2/s"),
        UserRateLimitThrottle,
        RateLimitThrottle.of("20/h"),
        RateLimitThrottle.of("9/min", by="ip"),
    )
    api_client = client(view, rates={"user": "10/day"})
    calls = []
    run = store.run
    store.run = lambda call: calls.append(call) or run(call)
    try:
        assert statuses(api_client, 5, x_user="1") == [200, 200, 429, 429, 429]
    finally:
        del store.run
    assert [len(call.compiled.limits) for call in calls] == [4] * 5
    for name in store.execute("KEYS", "ratelimit:"):
        assert int(store.execute("HGET", name, "n")) == 2, name


def test_foreign_throttle_beside_ours_is_asked_too(client):
    class Foreign(BaseThrottle):
        asked = 0

        def allow_request(self, request, view):
            type(self).asked += 1
            return True

    assert statuses(client(api(RateLimitThrottle.of("1/min"), Foreign)), 2) == [200, 429]
    assert Foreign.asked == 2


def test_throttle_is_asked_after_authentication_and_permissions(client, keys):
    class Nobody(BasePermission):
        def has_permission(self, request, view):
            return False

    assert client(api(RateLimitThrottle.of("1/min"), permission_classes=[Nobody])).get("/x/1/").status_code in (401, 403)
    assert keys() == []


def test_project_comes_from_what_drf_has_authenticated(client, keys):
    api_client = client(api(RateLimitThrottle.of("1/min", by="project")), IDENTIFY=lambda request: ("acme", request.auth))
    assert statuses(api_client, 2, x_user="1") == [200, 429]
    assert keys() == ["ratelimit:/x/<int:n>/:{acme:token}:60s"]


def test_request_that_names_nobody_usable_is_a_400(client):
    answer = client(api(RateLimitThrottle.of("1/min", by=lambda request: ""))).get("/x/1/")
    assert answer.status_code == 400
    assert "key function" in answer.json()["detail"]


def test_subject_of_a_wrong_type_is_a_500(client):
    assert client(api(RateLimitThrottle.of("1/min", by=lambda request: 1.5))).get("/x/1/").status_code == 500


def test_throttle_whose_callable_answers_none_limits_nobody(client):
    """Its default for anonymous users is not meant for what the project has found out itself."""
    http = client(api(RateLimitThrottle.of("1/min", by=lambda request: None)))
    assert [http.get("/x/1/").status_code for _ in range(2)] == [200, 200]


def test_anonymous_request_is_refused_if_asked(client):
    answer = client(api(RateLimitThrottle.of("1/min", anonymous="refuse"))).get("/x/1/")
    assert answer.status_code == 401


@pytest.mark.parametrize(("on_outage", "status"), [("open", 200), ("closed", 503)])
def test_outage_is_never_a_429_nor_a_500(client, on_outage, status):
    view = api(RateLimitThrottle.of("1/min", on_outage=on_outage))
    api_client = client(view, STORE_URL=f"redis://127.0.0.1:{free_port()}")
    answers = [api_client.get("/x/1/") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [status] * 2
    assert ("Retry-After" in answers[0]) is (status == 503)


@pytest.mark.parametrize("with_middleware", [True, False])
def test_outage_does_not_tell_clients_where_the_store_is(client, settings, with_middleware):
    if not with_middleware:
        settings.MIDDLEWARE = []
    port = free_port()
    view = api(RateLimitThrottle.of("1/min", on_outage="closed"))
    answer = client(view, STORE_URL=f"redis://127.0.0.1:{port}").get("/x/1/")
    assert answer.status_code == 503
    assert answer.json() == {"detail": "The rate limit cannot be checked now: connection"}
    assert str(port) not in f"{answer.content!r} {answer.headers!r}"
    assert (answer["Retry-After"], answer["Cache-Control"]) == ("1", "no-store")


def test_modes_are_followed(client, monkeypatch):
    api_client = client(api(RateLimitThrottle.of("1/min")))
    assert statuses(api_client, 2) == [200, 429]
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert statuses(api_client, 2) == [200, 200]


def test_viewset_and_exceptions_have_headers(settings):
    class Things(ViewSet):
        throttle_classes = (RateLimitThrottle.of("2/min"),)

        def list(self, request):
            raise exceptions.NotFound

    settings.ROOT_URLCONF = (path("x/", Things.as_view({"get": "list"})),)
    settings.MIDDLEWARE = []
    answer = APIClient().get("/x/")
    assert (answer.status_code, answer["RateLimit-Remaining"]) == (404, "1")


@pytest.mark.parametrize("rate", ["5/fortnight", "many", 7, [], Limit(3, 60, algorithm="concurrency")], ids=str)
def test_rate_that_makes_no_sense_is_refused_when_the_class_is_made(rate):
    with pytest.raises(ConfigurationError):
        RateLimitThrottle.of(rate)


def test_option_that_makes_no_sense_is_refused_when_the_class_is_made():
    with pytest.raises(ConfigurationError, match="'nose'"):
        RateLimitThrottle.of("5/s", by="nose")


def test_scope_without_a_rate_is_told():
    with pytest.raises(ImproperlyConfigured, match="uploads"):
        ScopedRateLimitThrottle().limit_for(None, api(throttle_scope="uploads")())


def test_300_requests_at_once_under_20_a_minute_admit_exactly_20(settings, redis_url):
    settings.ROOT_URLCONF = (path("x/", api(RateLimitThrottle.of("20/min"), RateLimitThrottle.of("100/h")).as_view()),)
    settings.RATEKIT = {"STORE_URL": redis_url}
    start = threading.Barrier(20)

    def fire(_):
        api_client = APIClient()
        start.wait()
        return statuses(api_client, 15, "/x/", x_user="1")

    with ThreadPoolExecutor(20) as pool:
        answers = [status for batch in pool.map(fire, range(20)) for status in batch]
    assert (answers.count(200), answers.count(429)) == (20, 280)
