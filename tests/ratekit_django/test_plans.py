"""Plans and rules in the setting RATEKIT: what it takes, what checks say, and how views read results."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from ratekit import ConfigurationError
from ratekit.web.plans import Plans
from ratekit_django import RateLimitMixin, get_plans, rate_limit
from ratekit_django.conf import conf
from ratekit_django.declared_limits import declared

PLANS = {"free": "1/min", "pro": "3/min"}


def plan_of(request: Any) -> str | None:
    name: str | None = request.headers.get("x-plan")
    return name


def view(request: Any, number: int) -> HttpResponse:
    return HttpResponse(str(request.ratekit.is_over_limit))


def site(settings: Any, *views: Any, **given: Any) -> Client:
    settings.ROOT_URLCONF = tuple(
        path(f"{name}/<int:number>", view, name=name) for name, view in zip("xyz", views, strict=False)
    )
    settings.RATEKIT = {"STORE_URL": "memory://", **given}
    settings.MIDDLEWARE = ["ratekit_django.middleware.RateLimitMiddleware"]
    return Client(raise_request_exception=False)


def statuses(client: Client, times: int, url: str = "/x/1", **headers: str) -> list[int]:
    return [client.get(url, headers=headers).status_code for _ in range(times)]


@pytest.mark.parametrize("plans", [PLANS, Plans(PLANS), "limits_of_a_project.PLANS"])
@pytest.mark.parametrize("lookup", [plan_of, "limits_of_a_project.plan_of"])
def test_plans_and_their_lookup_are_given_or_named(settings, plans, lookup, monkeypatch):
    module = ModuleType("limits_of_a_project")
    module.PLANS, module.plan_of = PLANS, plan_of
    monkeypatch.setitem(sys.modules, module.__name__, module)
    client = site(settings, rate_limit(limits="plan", by="ip")(view), PLANS=plans, PLAN_OF=lookup)
    assert statuses(client, 2, **{"X-Plan": "free"}) == [200, 429]
    assert statuses(client, 3, **{"X-Plan": "pro"}) == [200, 200, 429]  # the minute goes on
    assert statuses(client, 2) == [200, 200]
    assert statuses(client, 1, **{"X-Plan": "gold"}) == [500]


def test_plans_of_the_project_are_replaced(settings):
    client = site(settings, rate_limit(limits="plan", by="ip")(view), PLANS=PLANS, PLAN_OF=plan_of)
    assert statuses(client, 2, **{"X-Plan": "free"}) == [200, 429]
    get_plans().replace({"free": "2/min"})
    assert statuses(client, 2, **{"X-Plan": "free"}) == [200, 429]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"PLANS": "no.such.thing"}, "PLANS 'no.such.thing' cannot be imported"),
        ({"PLANS": 5}, "plans 5 is not a mapping"),
        ({"PLANS": {"free": "often"}}, "plans['free']"),
        ({"PLAN_OF": 5}, "PLAN_OF 5 is neither a callable"),
        ({"DEFAULT": "plan"}, "limits 'plan' needs plan_of"),
        ({"DEFAULT": {"limits": "1/s", "per_route": "yes"}}, "per_route 'yes' is neither True nor False"),
        ({"DEFAULT": {"limits": "1/s", "endpoint": "a", "counter": "b"}}, "both name what is counted"),
    ],
)
def test_checks_and_the_start_tell_what_makes_no_sense(settings, given, message):
    site(settings, view, **given)
    assert any(message in found.msg for found in run_checks() if (found.id or "").startswith("ratekit.E"))
    with pytest.raises(ConfigurationError) as caught:
        conf.check()
    assert message in str(caught.value)


def test_default_counts_all_urls_together_or_each_for_itself(settings):
    client = site(settings, view, view, DEFAULT="1/min")
    assert [*statuses(client, 1, "/x/1"), *statuses(client, 1, "/y/1")] == [200, 429]
    client = site(settings, view, view, DEFAULT={"limits": "2/min", "per_route": True})
    assert [*statuses(client, 3, "/x/1"), *statuses(client, 1, "/y/1")] == [200, 200, 429, 200]
    assert statuses(client, 1, "/x/2") == [429]  # the route, and never the path


def test_rules_of_one_counter_count_together(settings):
    together = {"limits": "2/min", "counter": "search"}
    client = site(settings, view, view, view, RULES={"x": together, "GET y": together})
    assert [*statuses(client, 2, "/x/1"), *statuses(client, 1, "/y/1"), *statuses(client, 3, "/z/1")] == [200, 200, 429] + [
        200
    ] * 3
    assert declared.at("GET", "search") is not None


def test_exempt_takes_networks_and_callables_beside_names(settings):
    exempt = ["y", "198.51.100.0/24", lambda request: request.headers.get("x-staff") == "yes"]
    client = site(settings, view, view, DEFAULT="1/min", EXEMPT=exempt)
    assert statuses(client, 2, "/y/1") == [200, 200]
    assert statuses(client, 2, **{"X-Staff": "yes"}) == [200, 200]
    assert [client.get("/x/1", REMOTE_ADDR="198.51.100.7").status_code for _ in range(2)] == [200, 200]
    assert statuses(client, 2) == [200, 429]


def test_view_reads_what_came_of_a_limit_that_does_not_block(settings):
    client = site(settings, rate_limit(2, 60, by="ip", block=False)(view))
    answers = [client.get("/x/1") for _ in range(3)]
    assert [answer.content for answer in answers] == [b"False", b"False", b"True"]
    assert answers[-1].headers["RateLimit-Remaining"] == "0"


def test_mixin_takes_limits_that_depend_on_who_asks(settings):
    from django.views import View

    class Limited(RateLimitMixin, View):
        rate_limits = rate_limit(limits=lambda request: "1/min", by="ip")

        def get(self, request: Any, number: int) -> HttpResponse:
            return HttpResponse("ok")

    assert statuses(site(settings, Limited.as_view()), 2) == [200, 429]


def test_throttle_of_drf_takes_a_static_method_and_a_scope_a_plan(settings):
    from rest_framework.response import Response
    from rest_framework.views import APIView

    from ratekit_django.drf import RateLimitThrottle, UserRateLimitThrottle

    class Own(RateLimitThrottle):
        options = {"by": "ip"}  # noqa: RUF012

        @staticmethod
        def rate(request: Any) -> str:
            return "1/min"

    def limited_by(throttle: type) -> Any:
        class Limited(APIView):
            throttle_classes = (throttle,)
            authentication_classes = ()
            permission_classes = ()

            def get(self, request: Any, number: int) -> Response:
                return Response({})

        return Limited.as_view()

    client = site(settings, limited_by(Own), limited_by(UserRateLimitThrottle), PLANS=PLANS, PLAN_OF=plan_of)
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"user": "plan"}}
    assert statuses(client, 2) == [200, 429]
    assert statuses(client, 2, "/y/1", **{"X-Plan": "free"}) == [200, 429]
