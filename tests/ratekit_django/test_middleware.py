"""The middleware: headers on every answer, refusals that views raise, pages for browsers, rules, one colour."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgiref.sync import AsyncToSync, SyncToAsync, iscoroutinefunction
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient
from django.urls import include, path
from django.views.decorators.cache import cache_page

from ratekit import ConfigurationError, Limit, Policy, RateLimiter
from ratekit.admin.fleet_mode import set_fleet_mode
from ratekit.core.errors import RateLimitExceeded, RateLimitUnavailable, UnusableRequestError
from ratekit.core.events import on_decision
from ratekit_django import (
    aapply_element_rate_limit,
    aapply_rate_limit,
    apply_element_rate_limit,
    apply_rate_limit,
    rate_limit,
)
from ratekit_django.conf import conf
from ratekit_django.middleware import RateLimitMiddleware

pytestmark = pytest.mark.usefixtures("ratekit_clock")
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def hello(request, **_):
    return HttpResponse("hello")


def raising(error):
    def view(request):
        raise error

    return view


OUTCOMES = {
    "answer": (lambda request: HttpResponse("hello"), 200),
    "stream": (lambda request: StreamingHttpResponse(iter([b"a", b"b"])), 200),
    "not found": (raising(Http404()), 404),
    "forbidden": (raising(PermissionDenied()), 403),
    "failure": (raising(ZeroDivisionError()), 500),
    "redirect": (lambda request: HttpResponse(status=302, headers={"Location": "/y/"}), 302),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_headers_are_on_every_limited_answer(stack, outcome):
    answer, status = OUTCOMES[outcome]
    response = stack.client(path("x/", rate_limit(5, 60, by="ip")(stack.view(answer)))).get("/x/")
    assert (response.status_code, response["RateLimit-Remaining"]) == (status, "4")
    assert "Retry-After" not in response


def test_unlimited_answer_has_no_headers(stack):
    response = stack.client(path("x/", stack.view())).get("/x/")
    assert not [name for name in response.headers if "rate" in name.lower() or "retry" in name.lower()]


def test_headers_have_the_styles_of_the_settings(stack):
    response = stack.limited(rate_limit(5, 60, by="ip"), HEADERS=["draft-11", "x-ratelimit"]).get("/x/")
    assert response["RateLimit"] == '"minute";r=4;t=60'
    assert response["X-RateLimit-Remaining"] == "4"
    assert "RateLimit-Limit" not in response


def raised(stack, error, **ratekit):
    return stack.client(path("x/", stack.view(raising(error))), **ratekit).get("/x/")


def refused_result():
    limiter = RateLimiter("memory://raised")
    policy = Policy("p", [Limit(1, 60)])
    while (result := limiter.check(policy, "me")).allowed:
        pass
    return result


def test_limit_that_a_view_raises_is_a_429(stack):
    response = raised(stack, RateLimitExceeded(refused_result()))
    assert (response.status_code, response["Content-Type"]) == (429, "application/problem+json")
    assert response["RateLimit-Remaining"] == "0"
    assert 1 <= int(response["Retry-After"]) <= 60


def test_outage_that_a_view_raises_is_a_503(stack):
    response = raised(stack, RateLimitUnavailable("timeout"))
    assert (response.status_code, response["Retry-After"]) == (503, "1")


def test_unusable_request_that_a_view_raises_is_a_4xx(stack):
    assert raised(stack, UnusableRequestError("no idea", status=422)).status_code == 422


def test_browser_gets_a_page_and_others_a_problem(stack):
    client = stack.limited(rate_limit(1, 60, by="ip"))
    client.get("/x/")
    page = client.get("/x/", headers={"accept": BROWSER})
    assert (page.status_code, page["Content-Type"]) == (429, "text/html; charset=utf-8")
    assert b"try again in 60 seconds" in page.content
    assert page["Retry-After"] == "60"
    for accept in ("*/*", "application/json", "application/json, text/html;q=0.5", "text/plain", "", ";;;", "text/html;q=x"):
        answer = client.get("/x/", headers={"accept": accept})
        assert answer.status_code == 429
        if accept != "text/html;q=x":
            assert answer["Content-Type"] == "application/problem+json", accept
    assert "Accept" in page["Vary"]


def locmem(**templates):
    return [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", templates)]},
        }
    ]


def test_page_is_the_template_of_the_project(stack, settings):
    settings.TEMPLATES = locmem(**{"429.html": "slow down: {{ result.max_requests }} in all, wait {{ retry_after }}"})
    client = stack.limited(rate_limit(1, 60, by="ip"))
    client.get("/x/")
    assert client.get("/x/", headers={"accept": BROWSER}).content == b"slow down: 1 in all, wait 60"


def test_page_is_the_template_that_the_setting_names(stack, settings):
    settings.TEMPLATES = locmem(**{"calm.html": "calm"})
    client = stack.limited(rate_limit(1, 60, by="ip"), TEMPLATE="calm.html")
    client.get("/x/")
    assert client.get("/x/", headers={"accept": BROWSER}).content == b"calm"


@pytest.mark.parametrize("ratekit", [{"TEMPLATE": None}, {}], ids=str)
def test_browser_gets_a_problem_where_there_is_no_template(stack, settings, ratekit):
    settings.TEMPLATES = locmem()
    client = stack.limited(rate_limit(1, 60, by="ip"), **ratekit)
    client.get("/x/")
    assert client.get("/x/", headers={"accept": BROWSER})["Content-Type"] == "application/problem+json"


def test_body_is_replaceable(stack):
    client = stack.limited(rate_limit(1, 60, by="ip"), BODY=lambda result: {"error": "slow", "wait": result.retry_after})
    client.get("/x/")
    assert json.loads(client.get("/x/").content) == {"error": "slow", "wait": 60.0}


def test_modes_are_read_on_every_request(stack, monkeypatch):
    client = stack.limited(rate_limit(1, 60, by="ip"))
    assert [client.get("/x/").status_code for _ in range(2)] == [200, 429]
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    answer = client.get("/x/")
    assert (answer.status_code, answer["RateLimit-Remaining"], "Retry-After" in answer) == (200, "0", False)
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    answer = client.get("/x/")
    assert (answer.status_code, "RateLimit-Remaining" in answer) == (200, False)
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert client.get("/x/").status_code == 429


@pytest.mark.parametrize(
    ("own", "setting", "status"), [("monitor", None, 200), (None, "monitor", 200), ("on", "off", 200), ("on", "on", 429)]
)
def test_weakest_mode_counts(stack, own, setting, status):
    client = stack.limited(rate_limit(1, 60, by="ip", mode=own), MODE=setting)
    assert [client.get("/x/").status_code for _ in range(2)] == [200, status]


def test_monitored_limit_tags_the_trace_with_its_endpoint(stack, monkeypatch):
    tagged = []
    monkeypatch.setattr("ratekit.web.decide.tag_over_limit", tagged.append)
    monitored = {"by": "ip", "mode": "monitor"}
    client = stack.limited(rate_limit(9, 60, **monitored), rate_limit(limits="1/h", endpoint="e", **monitored))
    assert [client.get("/x/").status_code for _ in range(2)] == [200, 200]
    assert tagged == ["e"]


RULES = {
    "search": "1/min",
    "api:items": {"limits": ["1/min"], "by": "header:X-API-Key"},
    "/plain/<int:n>/": "1/min",
    "POST login": "1/min",
    "/many/*": "2/min",
    "shop:*": "2/min",
}


def ruled(stack, **ratekit):
    view = stack.view(hello)
    return stack.client(
        path("search/", view, name="search"),
        path("api/", include(([path("items/", view, name="items")], "api"))),
        path("plain/<int:n>/", view),
        path("login/", view, name="login"),
        path("many/a/", view),
        path("many/b/", view),
        path("shop/", include(([path("a/", view, name="a"), path("b/", view, name="b")], "shop"))),
        path("free/", view, name="free"),
        **{"RULES": RULES} | ratekit,
    )


@pytest.mark.parametrize(
    ("urls", "answers"),
    [
        (["/search/", "/search/"], [200, 429]),
        (["/api/items/", "/api/items/"], [200, 429]),
        (["/plain/1/", "/plain/2/"], [200, 429]),
        (["/login/", "/login/"], [200, 200]),
        (["/many/a/", "/many/b/", "/many/a/"], [200, 200, 429]),
        (["/shop/a/", "/shop/b/", "/shop/a/"], [200, 200, 429]),
        (["/free/", "/free/"], [200, 200]),
        (["/nowhere/", "/nowhere/"], [404, 404]),
    ],
    ids=lambda value: str(value[0]),
)
def test_rules_limit_urls_by_name_and_pattern(stack, urls, answers):
    client = ruled(stack)
    assert [client.get(url).status_code for url in urls] == answers


def test_rule_for_a_method_limits_that_only(stack):
    client = ruled(stack)
    assert [client.post("/login/").status_code for _ in range(2)] == [200, 429]


def test_rule_has_headers_and_the_endpoint_of_the_url(stack, keys):
    response = ruled(stack).get("/search/")
    assert response["RateLimit-Remaining"] == "0"
    assert keys()[0].startswith("ratelimit:/search/:{ip:")


def test_rules_count_several_urls_under_their_pattern(stack, keys):
    client = ruled(stack)
    client.get("/many/a/")
    client.get("/shop/a/")
    assert [key.split(":{")[0] for key in keys()] == ["ratelimit:/many/*", "ratelimit:shop:*"]


def test_default_is_for_all_others_and_exempt_is_not_limited(stack, keys):
    client = ruled(stack, DEFAULT="2/min", EXEMPT=["login", "/many/*"], RULES={"search": "9/min"})
    assert [client.get(url).status_code for url in ("/free/", "/shop/a/", "/free/")] == [200, 200, 429]
    assert [client.get(url).status_code for url in ("/login/", "/many/a/") * 3] == [200] * 6
    assert client.get("/search/").status_code == 200
    assert [key.split(":{")[0] for key in keys()] == ["ratelimit:/search/", "ratelimit:default"]


def test_rule_and_decorator_on_one_counter_charge_it_once(stack):
    view = rate_limit(3, 60, by="ip")(stack.view())
    client = stack.client(path("x/", view, name="x"), RULES={"x": "5/min"})
    assert [client.get("/x/").status_code for _ in range(5)] == [200] * 3 + [429] * 2


def test_refusal_by_the_view_gives_back_what_the_rule_took(stack, store):
    view = rate_limit(limits="1/s", by="ip")(stack.view())
    client = stack.client(path("x/", view, name="x"), RULES={"x": "5/min"})
    assert [client.get("/x/").status_code for _ in range(9)] == [200] + [429] * 8
    minute = next(name for name in store.execute("KEYS", "ratelimit:") if name.endswith(b"60s"))
    assert int(store.execute("HGET", minute, "n")) == 1


def test_refused_request_does_not_reach_the_view(stack):
    reached = []
    view = stack.view(lambda request: reached.append(1) or HttpResponse())
    client = stack.client(path("x/", view, name="x"), RULES={"x": "1/min"})
    assert [client.get("/x/").status_code for _ in range(3)] == [200, 429, 429]
    assert len(reached) == 1


def test_cached_page_does_not_carry_the_headers_of_another(site, settings):
    """Standing before what stores responses, ratekit writes its headers on what is sent, not into the cache."""
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "cached-page"}}
    cache.clear()
    client = site(path("x/", cache_page(600)(rate_limit(5, 60, by="ip")(hello))))
    first, second = client.get("/x/"), client.get("/x/")
    assert first["RateLimit-Remaining"] == "4"
    assert (second.content, "RateLimit-Remaining" in second) == (b"hello", False)


def test_elements_are_counted_apart_from_requests(stack, keys):
    if stack.is_async_view:

        @rate_limit(9, 60, by="endpoint")
        async def view(request):
            amount = int(request.GET["n"])
            result = await aapply_element_rate_limit(
                request, max_requests=100, expiry=60, increment_amount=amount, subject="me"
            )
            return HttpResponse(result.remaining)
    else:

        @rate_limit(9, 60, by="endpoint")
        def view(request):
            amount = int(request.GET["n"])
            result = apply_element_rate_limit(request, max_requests=100, expiry=60, increment_amount=amount, subject="me")
            return HttpResponse(result.remaining)

    client = stack.client(path("matrix/", view))
    assert client.get("/matrix/?n=50").content == b"50"
    assert client.get("/matrix/?n=51").status_code == 429
    assert client.get("/matrix/?n=-1").status_code == 400
    answer = client.get("/matrix/?n=50")
    assert (answer.status_code, answer["RateLimit-Remaining"]) == (200, "0")
    assert [key.split(":{")[0] for key in keys()] == ["ratelimit:/matrix/:/elements", "ratelimit:/matrix/"]


def test_limit_by_hand_counts_each_call_and_answers_none_where_nobody_is_named(stack):
    seen = []
    if stack.is_async_view:

        async def view(request):
            seen.append(await aapply_rate_limit(request, max_requests=2, expiry=60, anonymous="pass"))
            while True:
                seen.append(await aapply_rate_limit(request, max_requests=2, expiry=60, subject="me"))
    else:

        def view(request):
            seen.append(apply_rate_limit(request, max_requests=2, expiry=60, anonymous="pass"))
            while True:
                seen.append(apply_rate_limit(request, max_requests=2, expiry=60, subject="me"))

    assert stack.client(path("x/", view)).get("/x/").status_code == 429
    assert [result and result.remaining for result in seen] == [None, 1, 0]


def test_wrong_settings_are_told_when_the_middleware_is_made(settings):
    settings.RATEKIT = {"RULES": {"x": "5/fortnight"}}
    with pytest.raises(ConfigurationError, match="5/fortnight"):
        RateLimitMiddleware(lambda request: HttpResponse())


class Switches:
    """Notes every change between threads and the event loop that asgiref makes, with the function it is for."""

    def __init__(self, monkeypatch):
        self.seen = []
        to_async, to_sync = SyncToAsync.__call__, AsyncToSync.__call__

        async def into_thread(this, *args, **kwargs):
            self.seen.append(this.func)
            return await to_async(this, *args, **kwargs)

        def into_loop(this, *args, **kwargs):
            self.seen.append(this.awaitable)
            return to_sync(this, *args, **kwargs)

        monkeypatch.setattr(SyncToAsync, "__call__", into_thread)
        monkeypatch.setattr(AsyncToSync, "__call__", into_loop)


@pytest.fixture
def switches(monkeypatch):
    return Switches(monkeypatch)


async def test_fully_async_stack_never_switches(settings, switches, redis_url):
    """Django itself does: it closes responses in a thread, and logs refusals there. ratekit adds none, on a real store."""

    async def refuse(request):
        return HttpResponse(status=429)

    async def count(view, middleware):
        settings.MIDDLEWARE, settings.ROOT_URLCONF = middleware, (path("x/", view, name="x"),)
        switches.seen.clear()
        status = (await AsyncClient().get("/x/")).status_code
        return status, len(switches.seen)

    plain = [await count(_hello, []), await count(_hello, []), await count(refuse, [])]
    settings.RATEKIT = {"STORE_URL": redis_url, "RULES": {"x": "9/min"}}
    limited = rate_limit(2, 60, by="ip", endpoint="e")(_hello)
    assert [await count(limited, ["ratekit_django.middleware.RateLimitMiddleware"]) for _ in range(3)] == plain


async def _hello(request):
    return HttpResponse("hello")


async def test_middleware_takes_the_colour_of_what_it_stands_before(settings):
    settings.RATEKIT = {}
    waited, awaited = RateLimitMiddleware(hello), RateLimitMiddleware(_hello)
    assert not iscoroutinefunction(waited)
    assert not iscoroutinefunction(waited.process_view)
    assert iscoroutinefunction(awaited)
    assert iscoroutinefunction(awaited.process_view)


async def test_event_loop_is_not_blocked_while_the_store_is_slow(settings):
    """A server that accepts and never answers: the loop goes on meanwhile, and the request passes after the deadline."""
    writers = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings.RATEKIT = {"STORE_URL": f"redis://127.0.0.1:{port}", "DEADLINE": 0.5, "RULES": {"x": "9/min"}}
    settings.ROOT_URLCONF = (path("x/", _hello, name="x"),)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    try:
        answer = await AsyncClient().get("/x/")
    finally:
        ticking.cancel()
        server.close()
        for writer in writers:
            writer.close()
    assert answer.status_code == 200
    assert ticks >= 5, "the event loop stood still"


def test_mode_of_the_fleet_is_followed_if_asked(stack, redis_server, redis_url):
    limiter = RateLimiter(redis_server.url, deadline=5)
    client = stack.limited(rate_limit(1, 60, by="ip"), STORE_URL=redis_url, FLEET_MODE=True)
    assert [client.get("/x/").status_code for _ in range(2)] == [200, 429]
    set_fleet_mode(limiter, "monitor")
    conf.background.fleet.refresh()
    assert client.get("/x/").status_code == 200
    set_fleet_mode(limiter, "on")
    conf.background.fleet.refresh()
    assert client.get("/x/").status_code == 429
    limiter.close()


def test_listeners_are_told_of_each_decision_with_its_mode(stack):
    told = []
    remove = on_decision(lambda decision: told.append((decision.endpoint, str(decision.mode), str(decision.outcome))))
    try:
        client = stack.limited(rate_limit(1, 60, by="ip", mode="monitor"))
        assert [client.get("/x/").status_code for _ in range(2)] == [200, 200]
    finally:
        remove()
    assert told == [("/x/", "monitor", "allowed"), ("/x/", "monitor", "would_deny")]
