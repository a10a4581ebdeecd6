"""rate_limit on views of both colours, under servers of both colours."""

from __future__ import annotations

import json

import pytest
from django.http import HttpResponse
from django.urls import include, path, re_path

from ratekit import ConfigurationError, Limit, Policy
from ratekit_django import rate_limit

pytestmark = pytest.mark.usefixtures("ratekit_clock")


def statuses(client, times=3, url="/x/", **options):
    return [client.get(url, **options).status_code for _ in range(times)]


def test_view_is_limited_and_says_so(stack):
    client = stack.limited(rate_limit(2, 60, by="ip"))
    answers = [client.get("/x/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert [answer["RateLimit-Limit"] for answer in answers] == ["2"] * 3
    assert ["Retry-After" in answer for answer in answers] == [False, False, True]
    assert answers[2]["Retry-After"] == "60"
    assert answers[2]["Cache-Control"] == "no-store"
    assert answers[2]["Content-Type"] == "application/problem+json"
    assert json.loads(answers[2].content)["violated-policies"] == ["minute"]
    assert answers[0].content == b"hello"


def test_view_is_limited_and_says_so_without_the_middleware(stack, settings):
    settings.MIDDLEWARE = []
    client = stack.limited(rate_limit(2, 60, by="ip"))
    answers = [client.get("/x/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert answers[2]["Content-Type"] == "application/problem+json"


def test_decorated_view_keeps_its_name_and_its_colour(stack):
    from asgiref.sync import iscoroutinefunction

    view = stack.view()
    decorated = rate_limit(2, 60)(view)
    assert decorated.__qualname__ == view.__qualname__
    assert iscoroutinefunction(decorated) is stack.is_async_view


@pytest.mark.parametrize(
    "options",
    [
        {"limits": ["1/s", "2/min"]},
        {"limits": "1/s"},
        {"policy": Policy("p", [Limit(1, 60)])},
        {"policy": Limit(1, 60)},
        {"max_requests": 1, "expiry": 60},
        {"limits": "10/min", "cost": 6},
        {"limits": "10/min", "cost": lambda request: int(request.GET.get("n", 6))},
    ],
    ids=["several", "rate", "policy", "limit", "numbers", "cost", "cost by request"],
)
def test_limit_is_given_in_several_ways(stack, options):
    assert statuses(stack.limited(rate_limit(by="ip", **options)), 2) == [200, 429]


def test_cost_may_be_awaited(stack):
    async def cost(request):
        return 6

    assert statuses(stack.limited(rate_limit(10, 60, by="ip", cost=cost)), 2) == [200, 429]


def test_cost_above_the_maximum_never_fits_and_says_no_wait(stack):
    answer = stack.limited(rate_limit(10, 60, by="ip", cost=11)).get("/x/")
    assert (answer.status_code, "Retry-After" in answer) == (429, False)


@pytest.mark.parametrize("value", ["x", None, 1.5, True])
def test_cost_of_a_wrong_type_is_a_500(stack, value):
    answer = stack.limited(rate_limit(10, 60, by="ip", cost=lambda request: value)).get("/x/")
    assert answer.status_code == 500


@pytest.mark.parametrize("value", [-1, "not to be read"])
def test_cost_that_makes_no_sense_is_a_400(stack, value):
    def cost(request):
        return int(value) if value == "not to be read" else value

    answer = stack.limited(rate_limit(10, 60, by="ip", cost=cost)).get("/x/")
    assert answer.status_code == 400
    assert "cost" in json.loads(answer.content)["detail"]


ROUTES = [
    (path("search/", lambda r: None), "/search/", "/search/"),
    (path("", lambda r: None), "/", "/"),
    (path("datasets/<int:dataset_id>/search", lambda r: None), "/datasets/7/search", "/datasets/<int:dataset_id>/search"),
    (re_path(r"^items/(?P<pk>[0-9]+)/$", lambda r: None), "/items/7/", "/items/(?P<pk>[0-9]+)/$"),
]


@pytest.mark.parametrize(("pattern", "url", "endpoint"), ROUTES, ids=[row[2] for row in ROUTES])
def test_endpoint_is_the_pattern(stack, keys, pattern, url, endpoint):
    from ratekit.core.keys import base_key

    pattern.callback = rate_limit(5, 60, by="ip")(stack.view(lambda request, **_: HttpResponse()))
    assert stack.client(pattern).get(url).status_code == 200
    assert [key.partition(":{")[0] for key in keys()] == [base_key("ratelimit", endpoint, "x").partition(":{")[0]]


def test_endpoint_joins_includes_and_namespaces(stack, keys):
    view = rate_limit(1, 60, by="ip")(stack.view(lambda request, **_: HttpResponse()))
    inner = ([path("datasets/<int:dataset_id>/search", view, name="search")], "datasets")
    client = stack.client(
        path("api/v1/", include(inner, namespace="v1")),
        path("api/v2/", include(inner, namespace="v2")),
        re_path(r"^old/", include(([re_path(r"^s/(?P<dataset_id>\d+)$", view)], "old"))),
    )
    for url in ("/api/v1/datasets/1/search", "/api/v2/datasets/1/search", "/old/s/1"):
        assert statuses(client, 2, url) == [200, 429]
    assert client.get("/api/v1/datasets/2/search").status_code == 429
    assert [key.split(":{")[0] for key in keys()] == [
        "ratelimit:/api/v1/datasets/<int:dataset_id>/search",
        "ratelimit:/api/v2/datasets/<int:dataset_id>/search",
        r"ratelimit:/old/s/(?P<dataset_id>\d+)$",
    ]


def test_endpoint_is_the_same_in_every_language(stack, settings, keys):
    from django.conf.urls.i18n import i18n_patterns

    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    view = rate_limit(2, 60, by="ip")(stack.view())
    client = stack.client(*i18n_patterns(path("search/", view)))
    assert [client.get(f"/{language}/search/").status_code for language in ("en", "de", "fr")] == [200, 200, 429]
    assert len(keys()) == 1


def test_given_endpoint_wins(stack, keys):
    stack.limited(rate_limit(5, 60, by="ip", endpoint="search")).get("/x/")
    assert keys() == ["ratelimit:search:{ip:" + address(stack) + "}:60s"]


def address(stack) -> str:
    return "127.0.0.1" if stack.is_asgi else "203.0.113.7"


def test_view_called_without_a_url_is_counted_under_its_name(rf, settings, keys):
    settings.ROOT_URLCONF = ()

    @rate_limit(1, 60, by="ip")
    def some_view(request):
        return HttpResponse()

    assert [some_view(rf.get("/nowhere")).status_code for _ in range(2)] == [200, 429]
    assert "some_view" in keys()[0]


async def test_async_view_called_without_a_url_is_limited(async_rf, rf, settings):
    settings.ROOT_URLCONF = ()

    @rate_limit(2, 60, by="ip")
    async def some_view(request):
        return HttpResponse()

    answers = [await some_view(make("/nowhere")) for make in (rf.get, async_rf.get, rf.get)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_methods_limit_those_only_and_are_counted_apart(stack, keys):
    client = stack.limited(rate_limit(1, 60, by="ip", methods=["post"]), rate_limit(2, 60, by="ip", methods=["GET"]))
    assert [client.post("/x/").status_code for _ in range(2)] == [200, 429]
    assert [client.get("/x/").status_code, client.head("/x/").status_code, client.get("/x/").status_code] == [200, 200, 429]
    assert [client.put("/x/").status_code for _ in range(4)] == [200] * 4
    assert [key.rpartition(":")[2] for key in keys()] == ["get-60s", "post-60s"]


def test_stacked_decorators_are_decided_together_and_spend_all_or_nothing(stack, store):
    client = stack.limited(rate_limit(limits="2/s", by="ip"), rate_limit(limits="20/h", by="ip"))
    assert statuses(client, 25) == [200] * 2 + [429] * 23
    answer = client.get("/x/")
    assert json.loads(answer.content)["violated-policies"] == ["second"]
    hour = next(name for name in store.execute("KEYS", "ratelimit:") if name.endswith(b"3600s"))
    assert int(store.execute("HGET", hour, "n")) == 2


def test_decorators_with_another_between_spend_all_or_nothing(stack, store):
    from functools import wraps

    def other(view):
        @wraps(view)
        async def awaited(request):
            return await view(request)

        @wraps(view)
        def waited(request):
            return view(request)

        return awaited if stack.is_async_view else waited

    client = stack.limited(rate_limit(limits="20/h", by="ip"), other, rate_limit(limits="2/s", by="ip"))
    assert statuses(client, 5) == [200] * 2 + [429] * 3
    hour = next(name for name in store.execute("KEYS", "ratelimit:") if name.endswith(b"3600s"))
    assert int(store.execute("HGET", hour, "n")) == 2


def test_limits_that_meet_in_one_counter_charge_it_once_and_the_strictest_decides(stack):
    client = stack.limited(rate_limit(5, 60, by="ip"), rate_limit(3, 60, by="ip"))
    assert statuses(client, 5) == [200] * 3 + [429] * 2


def test_limits_of_different_subjects_and_costs_stand_side_by_side(stack, keys):
    client = stack.limited(
        rate_limit(5, 60, by="ip"), rate_limit(limits="4/min", by="endpoint"), rate_limit(limits="9/h", by="ip", cost=3)
    )
    assert statuses(client, 4) == [200, 200, 200, 429]
    assert len(keys()) == 3


def test_whole_endpoint_is_counted_for_all_callers(stack):
    client = stack.limited(rate_limit(2, 60, by="endpoint"))
    assert statuses(client, 3) == [200, 200, 429]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_requests": 0, "expiry": 60}, "max_requests 0"),
        ({"max_requests": 5, "expiry": -1}, "expiry -1"),
        ({"max_requests": 5}, "expiry None"),
        ({"limits": "5/fortnight"}, "'5/fortnight'"),
        ({"limits": []}, "0 limits"),
        ({"max_requests": 5, "expiry": 60, "limits": "5/s"}, "exactly one"),
        ({"limits": "5/s", "by": "nose"}, "'nose'"),
        ({"limits": "5/s", "by": 7}, "by 7"),
        ({"limits": "5/s", "cost": -1}, "cost -1"),
        ({"limits": "5/s", "methods": "POST"}, "'POST'"),
        ({"limits": "5/s", "methods": []}, "methods []"),
        ({"limits": "5/s", "endpoint": ""}, "endpoint ''"),
        ({"limits": "5/s", "mode": "audit"}, "'audit'"),
        ({"limits": "5/s", "on_outage": "maybe"}, "'maybe'"),
        ({"limits": "5/s", "anonymous": "nobody"}, "'nobody'"),
        ({"policy": "5/s"}, "policy '5/s'"),
        ({"limits": Limit(3, 60, algorithm="concurrency")}, "concurrency"),
    ],
    ids=str,
)
def test_bad_argument_is_refused_where_it_stands(options, said):
    with pytest.raises(ConfigurationError) as refused:
        rate_limit(**options)
    assert said in str(refused.value)


def test_class_is_refused():
    with pytest.raises(ConfigurationError, match="RateLimitMixin"):
        rate_limit(5, 60)(type("Some", (), {}))


def test_anonymous_request_is_never_in_a_shared_bucket(stack, keys):
    assert statuses(stack.limited(rate_limit(1, 60))) == [200, 429, 429]
    assert keys() == ["ratelimit:/x/:{ip:" + address(stack) + "}:60s"]
