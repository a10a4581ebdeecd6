"""A decision belongs to one dispatch: what is dispatched again, as it is or as a copy, is decided again."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from functools import wraps
from itertools import count

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpResponse, JsonResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import path, resolve
from django.utils.decorators import method_decorator
from django.views import View
from ninja import NinjaAPI
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from ratekit_django import RateLimitMixin, apply_rate_limit, drf, ninja, rate_limit
from ratekit_django.middleware import RateLimitMiddleware

pytestmark = pytest.mark.usefixtures("ratekit_clock")
LIMIT = rate_limit(5, 60, by="ip")
_names = count()


def hello(request):
    return HttpResponse("hello")


async def ahello(request):
    return HttpResponse("hello")


def between(view):
    """Another decorator between two of ours."""

    @wraps(view)
    def waited(request):
        return view(request)

    @wraps(view)
    async def awaited(request):
        return await view(request)

    return awaited if asyncio.iscoroutinefunction(view) else waited


class Waited(View):
    def get(self, request):
        return HttpResponse()


class Awaited(View):
    async def get(self, request):
        return HttpResponse()


def _twice(base):
    """A class whose dispatch and whose handler are limited by the same decorator."""
    return type("Twice", (RateLimitMixin, base), {"rate_limits": LIMIT, "get": method_decorator(LIMIT)(base.get)}).as_view()


def _api(*throttles):
    members = {"get": lambda self, request: Response({}), "throttle_classes": list(throttles)}
    return type("Api", (APIView,), members).as_view()


def _viewset():
    members = {"list": lambda self, request: Response([]), "throttle_classes": [drf.RateLimitThrottle.of("5/min")]}
    return type("Things", (ViewSet,), members).as_view({"get": "list"})


def _operation(*throttles, decorated=False):
    """The view of a path of Ninja."""
    api = NinjaAPI(urls_namespace=f"dispatch-{next(_names)}")

    def x(request):
        return {}

    api.get("/x", throttle=list(throttles))(LIMIT(x) if decorated else x)
    return next(pattern.callback for pattern in api.urls[0] if pattern.pattern.match("x"))


VIEWS = {
    "function": lambda: LIMIT(hello),
    "async function": lambda: LIMIT(ahello),
    "stacked": lambda: rate_limit(9, 60, by="ip")(LIMIT(hello)),
    "stacked, with another between": lambda: rate_limit(9, 60, by="ip")(between(LIMIT(hello))),
    "stacked, async, with another between": lambda: rate_limit(9, 60, by="ip")(between(LIMIT(ahello))),
    "mixin": lambda: type("Mixed", (RateLimitMixin, Waited), {"rate_limits": LIMIT}).as_view(),
    "async mixin": lambda: type("Mixed", (RateLimitMixin, Awaited), {"rate_limits": LIMIT}).as_view(),
    "class": lambda: method_decorator(LIMIT, name="dispatch")(type("Some", (Waited,), {})).as_view(),
    "async class": lambda: method_decorator(LIMIT, name="dispatch")(type("Some", (Awaited,), {})).as_view(),
    "method": lambda: method_decorator(LIMIT, name="get")(type("Some", (Waited,), {"get": Waited.get})).as_view(),
    "class and method": lambda: _twice(Waited),
    "async class and method": lambda: _twice(Awaited),
    "as_view": lambda: LIMIT(Waited.as_view()),
    "DRF": lambda: _api(drf.RateLimitThrottle.of("5/min")),
    "DRF, several throttles": lambda: _api(drf.RateLimitThrottle.of("5/min"), drf.RateLimitThrottle.of("9/min", by="ip")),
    "DRF, decorated too": lambda: LIMIT(_api(drf.RateLimitThrottle.of("9/min"))),
    "DRF viewset": _viewset,
    "Ninja": lambda: _operation(ninja.RateLimitThrottle("5/min")),
    "Ninja, several throttles": lambda: _operation(ninja.RateLimitThrottle("5/min"), ninja.RateLimitThrottle("9/min")),
    "Ninja, decorated": lambda: _operation(decorated=True),
}


@pytest.fixture(params=VIEWS)
def view(request):
    """A view that is limited to 5 requests a minute, whatever of it limits it."""
    return VIEWS[request.param]()


def _same(request):
    return request


def _by_factory(request):
    return RequestFactory().get("/x/", REMOTE_ADDR=request.META["REMOTE_ADDR"])


WAYS = {"same request": _same, "copy": copy.copy, "request of its own": _by_factory}


def answered(answer):
    """The answer of a view of either colour."""

    async def awaited():
        return await answer

    return async_to_sync(awaited)() if asyncio.iscoroutine(answer) else answer


def batch_of(times, call):
    """A view that dispatches sub-requests, and tells what became of them."""

    def batch(request):
        return JsonResponse([answered(call(request, number)).status_code for number in range(times)], safe=False)

    return batch


@pytest.fixture(params=[True, False], ids=["with the middleware", "without the middleware"])
def client(request, settings):
    if not request.param:
        settings.MIDDLEWARE = []
    settings.RATEKIT = {}

    def make(*patterns):
        settings.ROOT_URLCONF = patterns
        return Client()

    return make


def used(store):
    """What the counters of the store say, by the names of their limits."""
    return {
        name.decode().rpartition(":")[2]: int(store.execute("HGET", name, "n"))
        for name in store.execute("KEYS", "ratelimit:")
    }


def test_refused_request_that_is_dispatched_again_is_refused_again(rf, settings, view):
    settings.ROOT_URLCONF = (path("x/", view),)
    for _ in range(5):
        assert answered(view(rf.get("/x/"))).status_code == 200
    request = rf.get("/x/")
    assert [answered(view(request)).status_code for _ in range(3)] == [429, 429, 429]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("through", ["call", "resolve"])
def test_each_sub_request_of_a_batch_is_charged(client, store, view, way, through):
    def call(request, _):
        function = view if through == "call" else resolve("/x/").func
        return function(WAYS[way](request))

    answers = [
        client(path("batch/", batch_of(3, call)), path("x/", view)).get("/batch/").json(),
        client(path("batch/", batch_of(10, call)), path("x/", view)).get("/batch/").json(),
    ]
    assert answers == [[200] * 3, [200] * 2 + [429] * 8]
    assert set(used(store).values()) == {5}


def test_awaited_sub_requests_of_a_batch_are_charged_each(store, settings):
    one, other = LIMIT(ahello), rate_limit(5, 60, by="ip")(between(ahello))

    async def batch(request):
        answers = await asyncio.gather(*[view(request) for view in (one, other) * 5])
        return JsonResponse([answer.status_code for answer in answers], safe=False)

    settings.ROOT_URLCONF = (path("batch/", batch),)
    answers = async_to_sync(AsyncClient().get)("/batch/").json()
    assert (answers.count(200), answers.count(429)) == (5, 5)
    assert used(store) == {"60s": 5}


def test_different_views_that_a_batch_calls_are_charged_each(client, store):
    views = [rate_limit(9, 60, by="ip")(lambda request: HttpResponse()) for _ in range(3)]
    views += [_api(drf.RateLimitThrottle.of("9/min", by="ip")) for _ in range(3)]
    assert client(path("batch/", batch_of(6, lambda request, n: views[n](request)))).get("/batch/").json() == [200] * 6
    assert used(store) == {"60s": 6}


@pytest.mark.parametrize("of_drf", [False, True])
def test_refused_sub_request_gives_nothing_back_for_the_one_before(client, store, of_drf):
    if of_drf:
        views = [_api(drf.RateLimitThrottle.of("9/h", by="ip")), _api(drf.RateLimitThrottle.of("2/min", by="ip", cost=3))]
    else:
        views = [rate_limit(9, 3600, by="ip")(hello), rate_limit(2, 60, by="ip", cost=3)(hello)]
    batch = batch_of(4, lambda request, n: views[n % 2](request))
    assert client(path("batch/", batch)).get("/batch/").json() == [200, 429, 200, 429]
    assert used(store) == {"3600s": 2}


def test_throttle_of_ninja_admits_nothing_for_a_request_that_another_one_has_refused(client):
    first, second = _operation(ninja.RateLimitThrottle("1/min")), _operation(ninja.RateLimitThrottle("9/h"))
    batch = batch_of(4, lambda request, n: (first if n < 2 else second)(request))
    assert client(path("batch/", batch)).get("/batch/").json() == [200, 429, 429, 200]


def test_batch_that_is_limited_itself_is_charged_once(client, store):
    view = rate_limit(100, 60, by="ip")(hello)
    batch = rate_limit(9, 3600, by="ip")(batch_of(10, lambda request, _: view(request)))
    assert client(path("batch/", batch)).get("/batch/").json() == [200] * 10
    assert used(store) == {"3600s": 1, "60s": 10}


def test_view_that_calls_itself_is_charged_for_each_call(client, store):
    def dig(request, depth=0):
        return limited(request, depth + 1) if depth < 3 else HttpResponse()

    limited = rate_limit(9, 60, by="ip")(dig)
    assert client(path("x/", limited)).get("/x/").status_code == 200
    assert used(store) == {"60s": 4}


def test_rule_and_view_of_one_dispatch_meet_and_are_charged_once(settings, store):
    settings.ROOT_URLCONF = (path("x/", rate_limit(9, 60, by="ip")(hello), name="x"),)
    settings.RATEKIT = {"RULES": {"x": "9/min"}}
    assert Client().get("/x/").status_code == 200
    assert used(store) == {"60s": 1}


def test_request_that_passes_the_middleware_again_is_decided_again_by_rule_and_view(settings, rf, store):
    settings.ROOT_URLCONF = (path("x/", hello, name="x"),)
    settings.RATEKIT = {"RULES": {"x": "2/min"}}
    request = rf.get("/x/")

    def handle(request):
        return middleware.process_view(request, hello, (), {}) or hello(request)

    middleware = RateLimitMiddleware(handle)
    assert [middleware(request).status_code for _ in range(4)] == [200, 200, 429, 429]
    assert used(store) == {"60s": 2}


def test_project_is_asked_for_each_dispatch(client, keys):
    view = rate_limit(5, 60)(hello)

    def call(request, number):
        request.org_id, request.project_id = "acme", number
        return view(request)

    client(path("batch/", batch_of(2, call))).get("/batch/")
    assert [key.split("{")[1].split("}")[0] for key in keys()] == ["acme:0", "acme:1"]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda request: pickle.loads(pickle.dumps(request))])
def test_request_that_was_decided_can_be_copied_deeply_and_pickled(rf, settings, duplicate):
    settings.ROOT_URLCONF = ()
    view = rate_limit(1, 60, by="ip")(hello)
    request = rf.get("/x/")
    request.environ = {}
    request.META = {"REMOTE_ADDR": "203.0.113.7"}
    request._stream = None
    assert view(request).status_code == 200
    assert view(duplicate(request)).status_code == 429


def test_headers_of_each_answer_are_those_of_its_own_dispatch(rf, settings):
    settings.ROOT_URLCONF = ()
    request = rf.get("/x/")
    views = [rate_limit(9, 60, by="ip")(hello), rate_limit(3, 60, by="ip", endpoint="other")(hello)]
    answers = [view(request) for view in views * 2]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["8", "2", "7", "1"]


def test_limit_that_a_view_applies_refuses_a_request_that_is_dispatched_again(settings):
    def view(request):
        apply_rate_limit(request, max_requests=2, expiry=60, subject="user:1")
        return HttpResponse()

    def batch(request):
        for _ in range(2):
            view(request)
        return view(request)

    settings.ROOT_URLCONF = (path("batch/", batch),)
    assert Client().get("/batch/").status_code == 429


async def test_async_request_of_its_own_loop_is_refused_again(settings):
    settings.ROOT_URLCONF = ()
    view = rate_limit(1, 60, by="ip")(ahello)
    request = AsyncRequestFactory().get("/x/")
    assert [(await view(request)).status_code for _ in range(4)] == [200, 429, 429, 429]
    assert json.loads((await view(request)).content)["status"] == 429
