"""What a request has cost in the end: outcomes that count, estimates, streams, signals of logins, the admin's login page."""

from __future__ import annotations

import asyncio
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth import authenticate, login
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.signals import request_finished
from django.db import close_old_connections
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import include, path
from django.utils.module_loading import import_string

from ratekit import ConfigurationError, Limit, Policy, RateLimiter
from ratekit_django import rate_limit

pytestmark = pytest.mark.usefixtures("ratekit_clock")
LLM = Policy("llm", ["60/min", Limit(1000, 60, unit="tokens")])
FAILED = rate_limit("5/15min", by="ip", count=(401, 403))


@pytest.fixture(autouse=True)
def closing_touches_no_database():
    """As Django's test client does where it closes a response."""
    request_finished.disconnect(close_old_connections)
    yield
    request_finished.connect(close_old_connections)


def by_status(request):
    return HttpResponse(status=int(request.GET.get("status", 200)))


@pytest.fixture(params=["middleware", "no middleware"])
def stack_with_and_without_middleware(request, stack, settings):
    if request.param == "no middleware":
        settings.MIDDLEWARE = []
    return stack


@pytest.fixture
def used(store):
    """Return what is used of each limit of a policy."""
    limiter = RateLimiter(store)

    def look(policy=LLM, endpoint="/x/"):
        """Clients of both colours have an address each."""
        cost = dict.fromkeys(policy.units, 0) if policy.units != ("requests",) else 0
        peeks = [
            limiter.peek(policy, subject, cost=cost, endpoint=endpoint) for subject in ("ip:203.0.113.7", "ip:127.0.0.1")
        ]
        return [sum(tier.used for tier in both) for both in zip(*(peek.tiers for peek in peeks), strict=True)]

    return look


@pytest.fixture
def client_of(stack_with_and_without_middleware):
    stack = stack_with_and_without_middleware

    def make(answer, *decorators, **ratekit):
        view = stack.view(answer)
        for decorator in reversed(decorators):
            view = decorator(view)
        return stack.client(path("x/", view), **ratekit)

    return make


def test_only_outcomes_that_count_are_spent(client_of):
    client = client_of(by_status, FAILED)
    answers = [client.get(f"/x/?status={status}") for status in (200, 401, 200, 500, 403, 404, 401, 401, 401, 200)]
    assert [answer.status_code for answer in answers] == [200, 401, 200, 500, 403, 404, 401, 401, 401, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == list("5444332100")


@pytest.mark.parametrize(
    ("error", "status"), [(Http404, 404), (PermissionDenied, 403), (ZeroDivisionError, 500)], ids=lambda one: str(one)
)
@pytest.mark.parametrize("count", ["403", "4xx", "500"])
def test_exception_counts_by_the_status_that_django_answers_it_with(client_of, error, status, count):
    def fail(request):
        raise error

    client = client_of(fail, rate_limit("2/min", by="ip", count=count))
    counts = count in (str(status), f"{status // 100}xx")
    assert [client.get("/x/").status_code for _ in range(3)] == [status, status, 429 if counts else status]


def test_success_forgets_what_was_counted(client_of):
    client = client_of(by_status, rate_limit("3/min", by="ip", count="4xx", reset_when=200))
    assert [client.get(f"/x/?status={status}").status_code for status in (401, 401, 200, 401, 401, 401, 200)] == [
        401, 401, 200, 401, 401, 401, 429,
    ]  # fmt: skip


def test_callable_of_the_response_says_what_counts(client_of):
    def is_form_with_errors(response):
        return response.status_code == 200 and b"wrong" in response.content

    client = client_of(
        lambda request: HttpResponse("wrong" if "wrong" in request.GET else "right"),
        rate_limit("1/min", by="ip", count=is_form_with_errors),
    )
    urls = ("/x/", "/x/", "/x/?wrong", "/x/")
    assert [client.get(url).status_code for url in urls] == [200, 200, 200, 429]


def test_estimate_is_spent_first_and_settled_when_the_response_is_closed(client_of, used):
    seen = []

    def answer(request):
        seen.append(used())
        request.ratekit.add(100)
        request.ratekit.add(tokens=23)
        return HttpResponse("hello")

    client = client_of(answer, rate_limit(policy=LLM, by="ip", estimate=800))
    assert client.get("/x/").status_code == 200
    assert (seen, used()) == ([[1, 800]], [1, 123])
    assert client.get("/x/").status_code == 200


def test_actual_cost_is_said_at_once_and_without_a_word_the_estimate_stays(client_of, used):
    def answer(request):
        if "say" in request.GET:
            request.ratekit.settle(tokens=5)
        return HttpResponse("hello")

    client = client_of(answer, rate_limit(policy=LLM, by="ip", estimate={"tokens": 300}))
    client.get("/x/?say=1")
    assert used() == [1, 5]
    client.get("/x/")
    assert used() == [2, 305]


def test_exception_returns_the_estimate(client_of, used):
    def fail(request):
        raise ZeroDivisionError

    client_of(fail, rate_limit(policy=LLM, by="ip", estimate=800)).get("/x/")
    assert used() == [0, 0]


def test_header_of_the_response_is_the_actual_cost_and_can_be_hidden(client_of, used):
    limit = rate_limit(policy=LLM, by="ip", estimate=800, actual="header:X-Usage-Tokens", hide=True)
    answer = client_of(lambda request: HttpResponse(headers={"X-Usage-Tokens": "42"}), limit).get("/x/")
    assert (used(), "X-Usage-Tokens" in answer) == ([1, 42], False)
    assert answer["RateLimit-Remaining"] == "958"


def test_stream_is_settled_at_its_end(client_of, used, stack):
    def answer(request):
        def parts():
            for _ in range(3):
                request.ratekit.add(10)
                yield b"part"

        async def awaited_parts():
            for part in parts():
                yield part

        return StreamingHttpResponse(awaited_parts() if stack.is_asgi else parts())

    response = client_of(answer, rate_limit(policy=LLM, by="ip", estimate=800)).get("/x/")
    assert used() == [1, 800]
    if stack.is_asgi:
        asyncio.run(_all_of(response))
    else:
        assert b"".join(response) == b"part" * 3
    assert used() == [1, 30]  # the client has closed it


async def _all_of(response):
    return [part async for part in response]


def test_stream_that_breaks_off_keeps_what_was_added(site, used):
    def answer(request):
        def parts():
            request.ratekit.add(10)
            yield b"part"
            raise ZeroDivisionError

        return StreamingHttpResponse(parts())

    client = site(path("x/", rate_limit(policy=LLM, by="ip", estimate=800)(answer)))
    with pytest.raises(ZeroDivisionError):
        b"".join(client.get("/x/"))
    assert used() == [1, 10]


def test_stream_that_breaks_off_without_a_word_costs_nothing(site, used):
    def answer(request):
        def parts():
            yield b"part"
            raise ZeroDivisionError

        return StreamingHttpResponse(parts())

    response = site(path("x/", rate_limit(policy=LLM, by="ip", estimate=800)(answer))).get("/x/")
    with pytest.raises(ZeroDivisionError):
        b"".join(response)
    assert used() == [0, 0]


def test_cancelled_view_counts(settings, used):
    settings.RATEKIT = {}

    async def hang(request):
        request.ratekit.add(7)
        await asyncio.Event().wait()

    view = rate_limit(policy=LLM, by="ip", estimate=800, endpoint="/x/")(hang)

    async def cancel():
        task = asyncio.create_task(view(AsyncRequestFactory().get("/x/")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert used() == [1, 7]


def test_views_that_a_batch_view_calls_are_settled_each_for_itself(site, used):
    inner = rate_limit("5/min", by="ip", endpoint="inner", count="4xx")(by_status)

    def batch(request):
        answers = [inner(_request(status)) for status in (200, 404, 200, 404, 200)]
        return HttpResponse(" ".join(str(answer.status_code) for answer in answers))

    client = site(path("x/", rate_limit("100/min", by="ip")(batch)))
    assert client.get("/x/").content == b"200 404 200 404 200"
    assert used(Policy("inner", Limit(5, 60, name="count-4xx-60s")), endpoint="inner") == [2]


@pytest.mark.parametrize("has_own_limit", [True, False])
def test_view_counts_by_its_own_response_though_the_view_that_calls_it_answers_another(site, used, has_own_limit):
    inner = rate_limit("5/min", by="ip", endpoint="inner", count="4xx")(by_status)

    def outer(request):
        return HttpResponse(f"inner {inner(request).status_code}")

    client = site(path("x/", rate_limit("100/min", by="ip")(outer) if has_own_limit else outer))
    for status in (200, 404, 404):
        assert client.get("/x/", {"status": status}).content == b"inner %d" % status
    assert used(Policy("inner", Limit(5, 60, name="count-4xx-60s")), endpoint="inner") == [2]


def _request(status):
    return RequestFactory(REMOTE_ADDR="203.0.113.7").get("/", {"status": status})


def test_refusal_by_another_limit_returns_what_was_reserved(client_of, used):
    client = client_of(
        lambda request: HttpResponse("hello"), rate_limit(policy=LLM, by="ip", estimate=100), rate_limit("1/min", by="ip")
    )
    assert [client.get("/x/").status_code for _ in range(3)] == [200, 429, 429]
    assert used() == [1, 100]


def test_response_in_a_cache_settles_nothing(settings):
    settings.MIDDLEWARE, settings.RATEKIT = [], {}
    response = FAILED(by_status)(_request(200))
    copy = pickle.loads(pickle.dumps(response))
    copy.close()
    assert copy.status_code == 200


def with_etag(request):
    return HttpResponse("page", headers={"ETag": '"page"'})


MIDDLEWARES = pytest.mark.parametrize(
    "middleware", [[], ["ratekit_django.middleware.RateLimitMiddleware"]], ids=["without", "with"]
)


@MIDDLEWARES
def test_response_that_another_middleware_replaces_is_settled(stack, settings, used, middleware):
    """A 304 stands in place of the page, which nobody closes."""
    limited = rate_limit("5/min", by="ip", count="4xx", endpoint="page")
    client = stack.client(path("x/", limited(stack.view(with_etag))))
    settings.MIDDLEWARE = ["django.middleware.http.ConditionalGetMiddleware", *middleware]
    assert [client.get("/x/", headers={"If-None-Match": '"page"'}).status_code for _ in range(7)] == [304] * 7
    assert used(Policy("page", Limit(5, 60, name="count-4xx-60s")), endpoint="page") == [0]


def test_files_of_a_request_are_closed_though_something_waits_for_its_end(site):
    sent = []

    def keep(request):
        sent.append(request.FILES["page"].open())
        return HttpResponse(status=401)

    site(path("x/", FAILED(keep))).post("/x/", {"page": SimpleUploadedFile("page.txt", b"hello")})
    assert sent[0].closed


class WrongPassword(Exception):
    """What a view raises, and a decorator makes a 401 of."""


def answering_401(view):
    def answer(request):
        try:
            response = view(request)
        except WrongPassword:
            return HttpResponse("wrong", status=401)
        return HttpResponse("wrong", status=401) if response.status_code == 418 else response

    return answer


@pytest.mark.parametrize("answer", ["raises", "418"])
@MIDDLEWARES
def test_decorator_goes_by_the_status_that_it_sees_itself(site, settings, answer, middleware):
    """Something between two decorators makes a 401 of what the inner one has seen."""

    @rate_limit("3/min", by="ip", count=401)
    @answering_401
    @rate_limit("100/h", by="ip")
    def login(request):
        if answer == "raises":
            raise WrongPassword
        return HttpResponse(status=418)

    settings.MIDDLEWARE = middleware
    client = site(path("x/", login))
    assert [client.get("/x/").status_code for _ in range(5)] == [401, 401, 401, 429, 429]


def test_exception_is_no_failed_login(client_of):
    def fail(request):
        raise ZeroDivisionError

    client = client_of(fail, rate_limit("2/min", by="ip", count="login_failed"))
    assert [client.get("/x/").status_code for _ in range(4)] == [500] * 4


def test_rules_of_settings_count_by_outcome(site):
    client = site(path("x/", by_status), RULES={"/x/": {"limits": "1/min", "count": (401,)}})
    assert [client.get(f"/x/?status={status}").status_code for status in (200, 200, 401, 200)] == [200, 200, 401, 429]


@pytest.mark.parametrize("mode", ["monitor", "off"])
def test_nothing_is_refused_and_the_view_may_add_in_every_mode(client_of, monkeypatch, mode):
    monkeypatch.setenv("RATE_LIMIT_MODE", mode)

    def answer(request):
        request.ratekit.add(5000)
        return HttpResponse("hello")

    client = client_of(answer, rate_limit(policy=LLM, by="ip", estimate=800))
    assert [client.get("/x/").status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": "login_faild"}, "count 'login_faild' is neither a status (401), a class of them ('4xx'), 'login_failed'"),
        ({"count": ()}, "count () is neither a status"),
        ({"count": 42}, "count 42 is neither a status"),
        ({"estimate": -1}, "estimate -1 is neither a whole number"),
        ({"hide": True}, "hide True has no meaning without actual"),
        ({"actual": "x-usage"}, "actual 'x-usage' is not the name of a header"),
    ],
)
def test_nonsense_is_refused_by_name(options, message):
    with pytest.raises(ConfigurationError) as caught:
        rate_limit("5/min", by="ip", **options)
    assert message in str(caught.value)


# Logins


def sign_in(request):
    """A view of a project: Django's signals tell what came of it."""
    user = authenticate(request, username=request.POST["username"], password=request.POST["password"])
    if user is None:
        return HttpResponse("wrong")  # a form with errors is a 200
    login(request, user)
    return HttpResponse("welcome")


@pytest.fixture
def accounts(db, settings):
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "ratekit_django.middleware.RateLimitMiddleware",
    ]
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    for name in ("ada", "bob"):
        User.objects.create_superuser(name, password="right")


def attempts(client, *tries, url="/login/"):
    return [client.post(url, {"username": name, "password": word}).status_code for name, word in tries]


@pytest.mark.usefixtures("accounts")
def test_failed_logins_count_by_the_signals_of_django(site):
    limit = rate_limit("2/15min", by="form:username", count="login_failed")
    client = site(path("login/", limit(sign_in)))
    tries = [("ada", "right")] * 4 + [("ada", "wrong")] * 3 + [("ada", "right"), ("bob", "right")]
    assert attempts(client, *tries) == [200] * 6 + [429, 429, 200]


@pytest.mark.usefixtures("accounts")
def test_login_forgets_failures(site):
    limit = rate_limit("2/15min", by="form:username", count="login_failed", reset_when="logged_in")
    client = site(path("login/", limit(sign_in)))
    tries = [("ada", "wrong"), ("ada", "right"), ("ada", "wrong"), ("ada", "wrong"), ("ada", "right")]
    assert attempts(client, *tries) == [200, 200, 200, 200, 429]


@pytest.fixture
def admin_urls():
    admin = import_string("django.contrib.admin.site")
    return path("admin/", admin.urls)


@pytest.mark.usefixtures("accounts")
def test_admin_login_is_protected_by_one_setting(site, admin_urls):
    client = site(admin_urls, ADMIN_LOGIN={"address": "4/15min", "account": "2/15min"})
    url = "/admin/login/"
    assert attempts(client, ("ada", "wrong"), ("ada", "wrong"), ("ada", "right"), url=url) == [200, 200, 429]
    assert client.get(url).status_code == 200  # the page itself can be seen
    assert attempts(client, ("bob", "right"), url=url) == [302]  # another account, and a login that is right costs nothing
    client = Client(REMOTE_ADDR="203.0.113.7")
    assert attempts(client, ("eve", "x"), ("mal", "x"), ("oth", "x"), url=url) == [200, 200, 429]  # the address
    other = Client(REMOTE_ADDR="203.0.113.8")
    assert attempts(other, ("ada", "right"), ("bob", "right"), url=url) == [429, 302]  # the account, from anywhere


@pytest.mark.usefixtures("accounts")
def test_admin_login_of_another_site_is_protected_too(site):
    from django.contrib.admin import AdminSite

    client = site(
        path("backoffice/", include((AdminSite("backoffice").get_urls(), "admin"), namespace="backoffice")),
        ADMIN_LOGIN="1/15min",
    )
    assert attempts(client, ("ada", "wrong"), ("ada", "right"), url="/backoffice/login/") == [200, 429]


@pytest.mark.usefixtures("accounts")
def test_admin_sites_of_one_project_count_together(site, admin_urls):
    """An account is the same on each of them: a second site must not allow as many guesses again."""
    from django.contrib.admin import AdminSite

    client = site(admin_urls, path("backoffice/", AdminSite("backoffice").urls), ADMIN_LOGIN="2/15min")
    answers = [attempts(client, ("ada", "wrong"), url=url)[0] for url in ("/admin/login/", "/backoffice/login/") * 2]
    assert answers == [200, 200, 429, 429]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"adress": "5/min"}, "ADMIN_LOGIN {'adress': '5/min'} is neither a rate nor a dict of rates for 'address'"),
        ({}, "ADMIN_LOGIN {} is neither a rate"),
        ("5/fortnight", "ADMIN_LOGIN: "),
    ],
)
def test_admin_login_that_makes_no_sense_is_told_at_the_start(site, given, message):
    from ratekit_django.conf import conf

    site(ADMIN_LOGIN=given)
    with pytest.raises(ConfigurationError) as caught:
        conf.check()
    assert message in str(caught.value)


def test_a_thousand_wrong_passwords_at_once_admit_exactly_five(settings, caplog):
    settings.MIDDLEWARE, settings.RATEKIT = [], {}
    view = rate_limit("5/15min", by="ip", count=401, endpoint="login")(by_status)

    def guess(_):
        response = view(_request(401))
        response.close()
        return response.status_code

    with caplog.at_level(logging.ERROR), ThreadPoolExecutor(32) as pool:
        found = list(pool.map(guess, range(1000)))
    assert (found.count(401), found.count(429)) == (5, 995)
