"""What views can ask for themselves: the limiter, the client's address, the results of their request."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient, Client
from django.urls import path
from ninja import NinjaAPI
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ratekit import Limit, Policy
from ratekit_django import apply_rate_limit, client_address, drf, get_async_limiter, get_limiter, ninja, rate_limit
from ratekit_django.conf import conf

pytestmark = pytest.mark.usefixtures("ratekit_clock")
LOGINS = Policy("logins", "2/min")


def test_limiter_is_on_the_store_and_the_prefix_of_the_project(settings, keys, store):
    settings.RATEKIT = {"PREFIX": "shop"}
    get_limiter().check(LOGINS, "user:1")
    assert get_limiter().prefix == "shop"
    assert [name.decode() for name in store.execute("KEYS", "shop:")] == ["shop:logins:{user:1}:60s"]
    assert keys() == []


def test_limiter_sees_what_a_view_has_counted(site):
    def answer(request):
        seen = get_limiter().peek(Limit(2, 60), client_address(request), endpoint="/x/")
        return JsonResponse({"used": seen.request_count, "left": seen.remaining})

    client = site(path("x/", rate_limit(2, 60, by="ip")(answer)))
    assert [client.get("/x/").json() for _ in range(2)] == [{"used": 1, "left": 1}, {"used": 2, "left": 0}]


def test_async_limiter_sees_what_an_async_view_has_counted(settings):
    @rate_limit(2, 60, by="ip")
    async def answer(request):
        seen = await get_async_limiter().peek(Limit(2, 60), client_address(request), endpoint="/x/")
        return JsonResponse({"used": seen.request_count})

    settings.ROOT_URLCONF = (path("x/", answer),)
    assert async_to_sync(AsyncClient().get)("/x/").json() == {"used": 1}


@pytest.mark.parametrize(
    ("hops", "address"), [(None, "ip:198.51.100.7"), (1, "ip:203.0.113.9"), (["198.51.100.0/24"], "ip:203.0.113.9")]
)
def test_address_of_the_client_is_the_peers_or_that_which_trusted_proxies_name(settings, rf, hops, address):
    settings.RATEKIT = {"TRUSTED_HOPS": hops}
    request = rf.get("/x/", REMOTE_ADDR="198.51.100.7", headers={"x-forwarded-for": "192.0.2.1, 203.0.113.9"})
    assert client_address(request) == address


def test_address_of_version_6_is_its_network(rf):
    assert client_address(rf.get("/x/", REMOTE_ADDR="2001:db8::1")) == "ip:2001:db8::/64"


def remaining(request):
    return [result.remaining for result in request.ratekit.results]


def test_results_are_on_the_request(stack):
    seen = []
    limited = rate_limit(2, 60, by="ip")(stack.view(lambda request: seen.append(remaining(request)) or HttpResponse()))
    client = stack.client(path("x/", limited, name="x"), RULES={"x": {"limits": "9/h", "by": "endpoint"}})
    for _ in range(3):
        client.get("/x/")
    assert seen == [[8, 1], [7, 0]]


def test_results_are_on_a_request_that_nothing_limits(site):
    client = site(path("x/", lambda request: JsonResponse(remaining(request), safe=False)))
    assert client.get("/x/").json() == []


class Outside:
    """A middleware that stands outside of ratekit's."""

    seen: list[list[int]] = []  # noqa: RUF012

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        response = self.get_response(request)
        self.seen.append(remaining(request))
        return response


def test_results_are_on_the_request_for_middlewares_outside(settings):
    settings.MIDDLEWARE = [f"{__name__}.Outside", *settings.MIDDLEWARE]
    settings.ROOT_URLCONF = (path("x/", rate_limit(1, 60, by="ip")(lambda request: HttpResponse())),)
    Outside.seen.clear()
    assert [Client().get("/x/").status_code for _ in range(2)] == [200, 429]
    assert Outside.seen == [[0], [0]]


def test_results_of_limits_that_the_view_applies_are_on_the_request(site):
    def view(request):
        apply_rate_limit(request, max_requests=5, expiry=60, subject="me", increment_amount=2)
        return JsonResponse(remaining(request), safe=False)

    assert site(path("x/", view)).get("/x/").json() == [3]


def test_results_are_on_the_requests_of_other_frameworks(settings):
    class Api(APIView):
        throttle_classes = (drf.RateLimitThrottle.of("3/min"),)

        def get(self, request):
            return Response(remaining(request))

    api = NinjaAPI(urls_namespace="results")

    @api.get("/x", throttle=[ninja.RateLimitThrottle("4/min")])
    def x(request):
        return remaining(request)

    settings.ROOT_URLCONF = (path("drf/", Api.as_view()), path("ninja/", api.urls))
    assert [Client().get(url).json() for url in ("/drf/", "/ninja/x")] == [[2], [3]]


def test_callable_gets_the_request_of_its_framework_everywhere(settings):
    got = []

    def by(request):
        got.append((type(request), request.GET["q"], request.META["REMOTE_ADDR"]))
        return "someone"

    class Api(APIView):
        throttle_classes = (drf.RateLimitThrottle.of("3/min", by=by),)

        def get(self, request):
            return Response()

    api = NinjaAPI(urls_namespace="callable")
    api.get("/x", throttle=[ninja.RateLimitThrottle("4/min", by=by)])(lambda request: {})
    settings.ROOT_URLCONF = (
        path("view/", rate_limit(3, 60, by=by)(lambda request: HttpResponse())),
        path("rule/", lambda request: HttpResponse(), name="rule"),
        path("ninja/", api.urls),
        path("drf/", Api.as_view()),
    )
    settings.RATEKIT = {"RULES": {"rule": {"limits": "3/min", "by": by}}}
    for url in ("/view/", "/rule/", "/ninja/x", "/drf/"):
        assert Client().get(url, {"q": "a"}).status_code == 200
    assert [issubclass(kind, HttpRequest) for kind, *_ in got] == [True, True, True, False]
    assert got[3][0] is Request
    assert {tuple(rest) for _, *rest in got} == {("a", "127.0.0.1")}


def test_limiter_is_another_one_after_the_settings_change(settings):
    settings.RATEKIT = {"PREFIX": "one"}
    first = get_limiter()
    settings.RATEKIT = {"PREFIX": "two"}
    assert get_limiter() is not first
    assert get_limiter() is conf.limiter()
