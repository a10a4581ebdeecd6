"""Methods: declared ones count apart under one endpoint, all others together, and OPTIONS by itself."""

from __future__ import annotations

import itertools

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django.views import View
from ninja import NinjaAPI
from rest_framework.decorators import api_view, throttle_classes
from rest_framework.response import Response

from ratekit import ConfigurationError
from ratekit.overrides import set_rate_limit_override
from ratekit.web.url_rules import UrlRules
from ratekit_django import RateLimitMixin, aapply_rate_limit, apply_rate_limit, rate_limit
from ratekit_django.declared_limits import declared
from ratekit_django.drf import RateLimitThrottle as DrfThrottle
from ratekit_django.ninja import RateLimitThrottle

pytestmark = pytest.mark.usefixtures("ratekit_clock")
ADDRESS = "ip:203.0.113.7"


def hello(request, **_):
    return HttpResponse("hello")


def statuses(client, method: str, times: int, url: str = "/x/") -> list[int]:
    return [client.generic(method, url).status_code for _ in range(times)]


@pytest.fixture(params=["decorator", "rule", "default"])
def client(request, stack):
    """A client of a project whose /x/ has 2/min by address, declared in one of the ways that name no method."""
    if request.param == "decorator":
        return stack.limited(rate_limit(2, 60, by="ip"))
    options = {"RULES": {"/x/": "2/min"}} if request.param == "rule" else {"DEFAULT": "2/min"}
    return stack.client(path("x/", stack.view()), **options)


def test_options_is_limited_in_a_counter_of_its_own(client, keys):
    assert statuses(client, "OPTIONS", 4) == [200, 200, 429, 429]
    assert statuses(client, "GET", 3) == [200, 200, 429]
    assert {key.rpartition(":")[2] for key in keys()} == {"60s", "options-60s"}


def test_all_other_methods_share_a_counter_whatever_a_client_invents(client, keys):
    answers = [client.generic(method, "/x/").status_code for method in ("GET", "FOO1", "FOO2", "post", "HEAD")]
    assert answers == [200, 200, 429, 429, 429]
    assert len(keys()) == 1


def test_options_of_a_class_view_and_of_drf_are_limited(settings):
    class Page(RateLimitMixin, View):
        rate_limits = rate_limit(2, 60, by="ip")

        def get(self, request):
            return HttpResponse()

    @api_view(["GET"])
    @throttle_classes([DrfThrottle.of("2/min", by="ip")])
    def api(request):
        return Response()

    settings.ROOT_URLCONF = (path("page/", Page.as_view()), path("api/", api))
    for url in ("/page/", "/api/"):
        assert statuses(Client(), "OPTIONS", 3, url) == [200, 200, 429]
        assert statuses(Client(), "GET", 3, url) == [200, 200, 429]


@pytest.mark.parametrize("method", ["POST", "post", "pOsT"])
def test_case_of_a_method_does_not_evade_a_rule_or_a_view(stack, method):
    """Django reads every method in upper case, and so do rules and views."""
    ruled = stack.client(path("x/", stack.view()), RULES={"POST /x/": "2/min"})
    assert statuses(ruled, method, 3) == [200, 200, 429]
    decorated = stack.limited(rate_limit(1, 60, by="ip", endpoint="other", methods=["Post"]))
    assert statuses(decorated, method, 2) == [200, 429]


def test_declared_methods_count_apart_under_one_endpoint(stack, keys):
    limits = [rate_limit(n, 60, by="ip", methods=methods) for n, methods in [(1, ["GET"]), (1, ["PUT", "post"]), (9, None)]]
    client = stack.limited(*limits)
    assert statuses(client, "GET", 2) == [200, 429]
    assert [client.generic(method, "/x/").status_code for method in ("POST", "PUT")] == [200, 429]
    assert {key.partition(":{")[0] for key in keys()} == {"ratelimit:/x/"}
    assert [key.rpartition(":")[2] for key in keys()] == ["60s", "get-60s", "post-put-60s"]


def test_override_of_the_path_applies_to_all_methods_and_one_of_a_limit_to_its_own(settings, store):
    view = rate_limit(1, 60, by="ip", methods=["POST"])(rate_limit(1, 60, by="ip", methods=["GET"])(hello))
    settings.ROOT_URLCONF = (path("x/", view),)
    client = Client(REMOTE_ADDR="203.0.113.7")
    set_rate_limit_override(store, endpoint="/x/", subject=ADDRESS, max_requests=2)
    assert statuses(client, "GET", 3) == statuses(client, "POST", 3) == [200, 200, 429]
    set_rate_limit_override(store, endpoint="/x/", subject=ADDRESS, limit="post-60s", max_requests=4)
    assert statuses(client, "POST", 3) == [200, 200, 429]
    assert statuses(client, "GET", 1) == [429]


def test_rule_of_a_method_for_several_urls_counts_under_the_pattern(stack, keys):
    client = stack.client(
        path("a/1", stack.view()), path("a/2", stack.view()), RULES={"POST /a/*": "2/min", "/a/*": "1/min"}
    )
    assert [client.post(f"/a/{n}").status_code for n in (1, 2, 1)] == [200, 200, 429]
    assert [client.get(f"/a/{n}").status_code for n in (1, 2)] == [200, 429]
    assert [key.partition(":{")[0] for key in keys()] == ["ratelimit:/a/*"] * 2


def test_cost_of_its_own_is_a_counter_of_its_own(stack, keys):
    client = stack.limited(rate_limit(4, 60, by="ip"), rate_limit(100, 60, by="ip", cost=50))
    answers = [client.get("/x/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [key.rpartition(":")[2] for key in keys()] == ["60s", "cost-50-60s"]


def test_amounts_of_a_call_count_under_the_name_of_its_window(settings, keys):
    def view(request):
        apply_rate_limit(request, max_requests=100, expiry=60, increment_amount=30, by="ip")
        return HttpResponse()

    async def awaited(request):
        await aapply_rate_limit(request, max_requests=100, expiry=60, increment_amount=30, by="ip")
        return HttpResponse()

    settings.ROOT_URLCONF = (path("x/", view), path("y/", awaited))
    for url in ("/x/", "/y/"):
        assert statuses(Client(), "GET", 4, url) == [200, 200, 200, 429]
    assert {key.rpartition(":")[2] for key in keys()} == {"60s"}


_names = itertools.count()  # Ninja wants a name of its own for each API


@pytest.fixture
def ninja(settings):
    """A client of an API of Ninja's whose operations of one path have 1/min each."""
    api = NinjaAPI(urls_namespace=f"methods-{next(_names)}")
    throttle = RateLimitThrottle("1/min", by="ip")
    api.get("/x", throttle=throttle)(lambda request: {})
    api.delete("/x")(rate_limit(1, 60, by="ip")(lambda request: {}))
    api.api_operation(["POST", "PATCH"], "/x", throttle=throttle)(lambda request: {})
    settings.ROOT_URLCONF = (path("api/", api.urls),)
    return Client(REMOTE_ADDR="203.0.113.7")


def test_operations_of_ninja_have_counters_of_their_own_under_one_endpoint(ninja, keys):
    assert statuses(ninja, "GET", 2, "/api/x") == statuses(ninja, "DELETE", 2, "/api/x") == [200, 429]
    assert [ninja.generic(method, "/api/x").status_code for method in ("POST", "PATCH")] == [200, 429]
    assert keys() == [f"ratelimit:/api/x:{{{ADDRESS}}}:{name}" for name in ("60s", "delete-60s", "patch-post-60s")]


def test_rule_for_a_path_of_ninja_has_one_counter_whatever_a_client_invents(ninja, settings, keys):
    settings.RATEKIT = {"RULES": {"/api/x": "2/h"}}
    assert [ninja.generic(method, "/api/x").status_code for method in ("FOO1", "FOO2", "FOO3")] == [405, 405, 429]
    assert keys() == [f"ratelimit:/api/x:{{{ADDRESS}}}:3600s"]


@pytest.mark.parametrize("key", ["PSOT /login/", "PSOT login", "psot api:*"])
def test_misspelt_method_of_a_rule_is_refused_with_the_one_that_was_meant(key):
    for arguments in ({"rules": {key: "1/s"}}, {"rules": None, "exempt": [key]}):
        with pytest.raises(ConfigurationError, match="did you mean POST"):
            UrlRules(**arguments)


@pytest.mark.parametrize("methods", [["PSOT"], ["GET", "PSOT"]])
def test_misspelt_method_of_a_view_is_refused_with_the_one_that_was_meant(methods):
    with pytest.raises(
        ConfigurationError, match=r"methods \[.*'PSOT'\] names the unknown method 'PSOT': did you mean POST\?"
    ):
        rate_limit(1, 60, methods=methods)


def test_rule_that_names_methods_twice_is_refused():
    with pytest.raises(ConfigurationError, match=r"RULES\['POST /x/'\] names a method, and so do its methods \['GET'\]"):
        UrlRules({"POST /x/": {"limits": "1/s", "methods": ["GET"]}})


def test_limits_of_a_method_are_found_from_outside_of_a_request(settings):
    view = rate_limit(1, 60, methods=["POST"])(rate_limit(5, 60)(hello))
    settings.ROOT_URLCONF = (path("x/", view),)
    settings.RATEKIT = {"RULES": {"GET /x/": "7/h"}}

    def names(method):
        return sorted(limit.name for rule in declared.all_at(method, "/x/") for limit in rule.policy.limits)

    assert names("GET") == ["60s", "get-3600s"]
    assert names("POST") == ["60s", "post-60s"]
    assert names("OPTIONS") == ["options-60s"]
