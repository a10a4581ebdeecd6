"""Class views: the mixin, method_decorator on the class and on a method, as_view(), sync and async."""

from __future__ import annotations

import asyncio

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.mixins import AccessMixin
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import TemplateView

from ratekit import ConfigurationError, RateLimiter
from ratekit_django import RateLimitMixin, rate_limit

pytestmark = pytest.mark.usefixtures("ratekit_clock")
LIMIT = rate_limit(2, 60, by="ip")


class Waited(View):
    def get(self, request):
        return HttpResponse("hello")

    def post(self, request):
        return HttpResponse("made")


class Awaited(View):
    async def get(self, request):
        return HttpResponse("hello")

    async def post(self, request):
        return HttpResponse("made")


def with_mixin(base):
    return type("Mixed", (RateLimitMixin, base), {"rate_limits": LIMIT}).as_view()


def with_decorated_class(base):
    return method_decorator(LIMIT, name="dispatch")(type("Decorated", (base,), {})).as_view()


def with_decorated_method(base):
    return method_decorator(LIMIT, name="get")(type("Decorated", (base,), {"get": base.get})).as_view()


def with_wrapped_view(base):
    return LIMIT(base.as_view())


WAYS = [with_mixin, with_decorated_class, with_decorated_method, with_wrapped_view]


@pytest.mark.parametrize("way", WAYS)
def test_class_view_is_limited(stack, way):
    view = way(Awaited if stack.is_async_view else Waited)
    assert iscoroutinefunction(view) is stack.is_async_view
    client = stack.client(path("x/", view))
    answers = [client.get("/x/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]


@pytest.mark.parametrize("way", WAYS)
def test_class_view_is_limited_without_the_middleware(stack, settings, way):
    settings.MIDDLEWARE = []
    client = stack.client(path("x/", way(Awaited if stack.is_async_view else Waited)))
    answers = [client.get("/x/") for _ in range(3)]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]


@pytest.mark.parametrize("way", WAYS)
def test_async_class_view_never_waits_on_the_event_loop(way, settings, async_rf, monkeypatch):
    settings.ROOT_URLCONF = ()

    def waiting(self, call):
        raise AssertionError("the limiter that waits is used on the event loop")

    monkeypatch.setattr(RateLimiter, "decide", waiting)
    view = way(Awaited)
    answers = [asyncio.run(view(async_rf.get("/x/"))).status_code for _ in range(3)]
    assert answers == [200, 200, 429]


def test_method_decorator_takes_several_that_are_decided_together(stack, store):
    several = [rate_limit(limits="2/s", by="ip"), rate_limit(limits="20/h", by="ip")]
    base = Awaited if stack.is_async_view else Waited
    view = method_decorator(several, name="dispatch")(type("Decorated", (base,), {})).as_view()
    client = stack.client(path("x/", view))
    assert [client.get("/x/").status_code for _ in range(4)] == [200, 200, 429, 429]
    hour = next(name for name in store.execute("KEYS", "ratelimit:") if name.endswith(b"3600s"))
    assert int(store.execute("HGET", hour, "n")) == 2


def test_decorated_method_leaves_the_others_alone(stack):
    client = stack.client(path("x/", with_decorated_method(Awaited if stack.is_async_view else Waited)))
    assert [client.get("/x/").status_code for _ in range(3)] == [200, 200, 429]
    assert [client.post("/x/").status_code for _ in range(3)] == [200] * 3


def test_mixin_takes_rates_and_lists(stack, keys):
    limits = [rate_limit(1, 60, by="ip", methods=["POST"]), rate_limit(limits=["5/s", "9/h"], by="ip")]
    base = Awaited if stack.is_async_view else Waited
    client = stack.client(path("x/", type("Mixed", (RateLimitMixin, base), {"rate_limits": limits}).as_view()))
    assert [client.get("/x/").status_code for _ in range(2)] == [200] * 2
    assert [client.post("/x/").status_code for _ in range(2)] == [200, 429]
    assert len(keys()) == 3


def test_mixin_takes_a_rate_of_the_project(stack):
    base = Awaited if stack.is_async_view else Waited
    view = type("Mixed", (RateLimitMixin, base), {"rate_limits": "1/min"}).as_view()
    client = stack.client(path("x/", view), IDENTIFY=lambda request: "acme")
    assert [client.get("/x/").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("wrong", ["5/fortnight", 7, [7]], ids=repr)
def test_mixin_refuses_nonsense_when_the_class_is_made(wrong):
    with pytest.raises((ConfigurationError, TypeError)):
        type("Mixed", (RateLimitMixin, Waited), {"rate_limits": wrong})


def test_mixin_serves_a_view_whose_own_mixin_answers_without_awaiting(site, async_client, settings):
    class Refusing(AccessMixin):
        def dispatch(self, request, *args, **kwargs):
            return HttpResponse("no", status=403)

    class Mixed(RateLimitMixin, Refusing, Awaited):
        rate_limits = LIMIT

    site(path("x/", Mixed.as_view()))
    assert asyncio.run(async_client.get("/x/")).status_code == 403


def test_template_response_has_headers(stack, settings):
    settings.TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {"page.html": "page"})]},
        }
    ]
    view = type("Mixed", (RateLimitMixin, TemplateView), {"rate_limits": LIMIT, "template_name": "page.html"}).as_view()
    answer = stack.client(path("x/", view)).get("/x/")
    assert (answer.content, answer["RateLimit-Remaining"]) == (b"page", "1")
