"""Who is limited: the project, the user, the address, what clients send, or what a callable says."""

from __future__ import annotations

import json

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from ratekit.web.identity import first_of, form_field, header, passes
from ratekit_django import rate_limit
from ratekit_django.decisions import _need_a_thread

pytestmark = pytest.mark.usefixtures("ratekit_clock")


def project_of(request):
    """As an authenticated request would say it; here by a header."""
    project = request.headers.get("X-Project")
    return tuple(project.split("/")) if project else None


async def awaited_project_of(request):
    return project_of(request)


def half_a_project(request):
    return ("acme", "")


def no_number(request):
    return (int(request.headers["X-Project"]), 1)


def project_in_the_database(request):
    return f"users:{User.objects.count()}"


class Users:
    """A middleware that knows the user by a header, in both colours, without a database."""

    sync_capable = async_capable = True

    def __new__(cls, get_response):
        from asgiref.sync import iscoroutinefunction, markcoroutinefunction

        def of(request):
            name = request.headers.get("X-User")
            return User(pk=int(name)) if name else AnonymousUser()

        async def awaited(request):
            async def auser():
                return of(request)

            request.user, request.auser = of(request), auser
            return await get_response(request)

        def waited(request):
            async def auser():
                return of(request)

            request.user, request.auser = of(request), auser
            return get_response(request)

        return markcoroutinefunction(awaited) if iscoroutinefunction(get_response) else waited


def get(client, **headers):
    return client.get("/x/", headers=headers).status_code


@pytest.mark.parametrize("identify", ["project_of", "awaited_project_of"])
def test_project_is_what_identify_says(stack, keys, identify):
    client = stack.limited(rate_limit(1, 60), IDENTIFY=f"{__name__}.{identify}")
    assert [get(client, x_project=name) for name in ("1/42", "1/42", "1/43")] == [200, 429, 200]
    assert keys() == ["ratelimit:/x/:{1:42}:60s", "ratelimit:/x/:{1:43}:60s"]


def test_identify_may_be_a_callable(stack, keys):
    get(stack.limited(rate_limit(1, 60), IDENTIFY=lambda request: "acme"))
    assert keys() == ["ratelimit:/x/:{acme}:60s"]


def test_project_on_the_request_counts_without_identify(rf, keys):
    request = rf.get("/x/")
    request.org_id, request.project_id = 1, 42
    rate_limit(1, 60, endpoint="/x/")(lambda request: HttpResponse())(request)
    assert keys() == ["ratelimit:/x/:{1:42}:60s"]


def test_header_that_the_client_chooses_is_no_project(stack, keys):
    client = stack.limited(rate_limit(1, 60))
    assert [get(client, x_org_id=name, x_project_id="2", x_tenant_id="3") for name in "123"] == [200, 429, 429]
    assert "{ip:" in keys()[0]


def test_anonymous_request_is_limited_by_its_address_and_warned_of_once(stack, keys, caplog):
    client = stack.limited(rate_limit(1, 60), IDENTIFY=project_of)
    assert [get(client) for _ in range(3)] == [200, 429, 429]
    assert "{ip:" in keys()[0]
    warnings = [record for record in caplog.records if record.name == "ratekit.web"]
    assert len(warnings) == 1
    assert "/x/ is limited by its address: it has no project" in warnings[0].getMessage()
    assert passes == {}


@pytest.mark.parametrize("where", ["limit", "setting"])
def test_anonymous_request_passes_if_asked_and_is_counted_and_warned_of_once(stack, keys, caplog, where):
    limit = rate_limit(1, 60, anonymous="pass") if where == "limit" else rate_limit(1, 60)
    client = stack.limited(limit, IDENTIFY=project_of, **({"ANONYMOUS": "pass"} if where == "setting" else {}))
    assert [get(client) for _ in range(3)] == [200] * 3
    assert keys() == []
    assert passes == {"/x/": 3}
    warnings = [record for record in caplog.records if record.name == "ratekit.web"]
    assert len(warnings) == 1
    assert "/x/" in warnings[0].getMessage()


def test_anonymous_request_is_limited_by_its_address_without_a_word_if_asked(stack, keys, caplog):
    client = stack.limited(rate_limit(1, 60, anonymous="ip"), IDENTIFY=project_of)
    assert [get(client), get(client), get(client, x_project="1/2")] == [200, 429, 200]
    assert len(keys()) == 2
    assert "ratekit_django" not in [record.name for record in caplog.records]


def test_anonymous_request_is_refused_if_asked(stack, keys):
    client = stack.limited(rate_limit(1, 60, anonymous="refuse"), IDENTIFY=project_of)
    answer = client.get("/x/")
    assert (answer.status_code, answer["Content-Type"]) == (401, "application/problem+json")
    assert "no project" in json.loads(answer.content)["detail"]
    assert get(client, x_project="1/2") == 200


def test_anonymous_requests_are_treated_as_the_setting_says(stack):
    client = stack.limited(rate_limit(1, 60), IDENTIFY=project_of, ANONYMOUS="refuse")
    assert get(client) == 401


@pytest.mark.parametrize(("identify", "status"), [("half_a_project", 400), ("no_number", 400)])
def test_identity_that_makes_no_sense_is_a_400_and_no_shared_bucket(stack, keys, identify, status):
    client = stack.limited(rate_limit(1, 60), IDENTIFY=f"{__name__}.{identify}")
    assert get(client, x_project="many") == status
    assert keys() == []


def test_identify_is_asked_once_for_a_request(stack):
    asked = []

    def identify(request):
        asked.append(request)
        return "acme"

    get(stack.limited(rate_limit(5, 60), rate_limit(limits="9/h"), IDENTIFY=identify))
    assert len(asked) == 1


@pytest.fixture
def users(settings):
    settings.MIDDLEWARE = [f"{__name__}.Users", *settings.MIDDLEWARE]


@pytest.mark.usefixtures("users")
def test_user_is_limited(stack, keys):
    client = stack.limited(rate_limit(1, 60, by="user"))
    assert [get(client, x_user=name) for name in ("1", "1", "2")] == [200, 429, 200]
    assert keys() == ["ratelimit:/x/:{user:1}:60s", "ratelimit:/x/:{user:2}:60s"]


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("anonymous", "answers"),
    [("pass", [200, 200]), ("ip", [200, 429]), (None, [200, 429]), ("refuse", [401, 401])],
)
def test_anonymous_user_is_not_limited_as_one_user(stack, anonymous, answers):
    client = stack.limited(rate_limit(1, 60, by="user", anonymous=anonymous))
    assert [get(client) for _ in range(2)] == answers
    assert passes == ({"/x/": 2} if anonymous == "pass" else {})


def test_user_without_authentication_is_anonymous(stack):
    answer = stack.limited(rate_limit(1, 60, by="user", anonymous="refuse")).get("/x/")
    assert answer.status_code == 401
    assert "no user that it could be limited by" in json.loads(answer.content)["detail"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_user_of_a_real_session_is_limited_in_an_async_view(kind, settings):
    """An async view must not touch the database in its own way: Django refuses that."""
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        *settings.MIDDLEWARE,
    ]
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    settings.ROOT_URLCONF = (path("x/", rate_limit(1, 60, by="user", anonymous="refuse")(_hello)),)
    user = User.objects.create_user("ada")
    client = kind()
    client.force_login(user)
    get_it = client.get if kind is Client else async_to_sync(client.get)
    assert [get_it("/x/").status_code for _ in range(2)] == [200, 429]


async def _hello(request):
    return HttpResponse("hello")


@pytest.mark.django_db(transaction=True)
def test_identify_that_uses_the_database_runs_in_a_thread_for_async_views(stack, caplog, keys):
    _need_a_thread.clear()
    client = stack.limited(rate_limit(2, 60), IDENTIFY=project_in_the_database)
    assert [get(client) for _ in range(3)] == [200, 200, 429]
    assert caplog.text.count("make it async") == (1 if stack.is_async_view else 0)
    assert keys() == ["ratelimit:/x/:{users:0}:60s"]


def test_header_is_hashed_and_who_sends_none_is_known_by_the_address(stack, keys):
    client = stack.limited(rate_limit(1, 60, by="header:X-API-Key"))
    assert [get(client, x_api_key="secret"), get(client, x_api_key="secret"), get(client), get(client)] == [200, 429] * 2
    assert "secret" not in str(keys())
    assert [key.split(":{")[1].split(":")[0] for key in keys()] == ["header", "ip"]


def test_key_functions_of_the_core_work(stack, keys):
    client = stack.limited(rate_limit(1, 60, by=first_of(header("X-A", plain=True), "query:b", "ip")))
    assert get(client, x_a="ada") == 200
    assert client.get("/x/?b=1").status_code == 200
    assert get(client) == 200
    assert len(keys()) == 3
    assert "header:x-a:ada" in str(keys())


@pytest.mark.parametrize("is_async", [False, True])
def test_callable_gets_the_request_of_django(stack, keys, is_async):
    async def awaited(request):
        return f"method:{request.method}:{request.resolver_match.route}"

    def waited(request):
        return f"method:{request.method}:{request.resolver_match.route}"

    assert get(stack.limited(rate_limit(1, 60, by=awaited if is_async else waited))) == 200
    assert keys() == ["ratelimit:/x/:{method:GET:x/}:60s"]


def test_callable_that_names_nobody_is_a_400_and_no_shared_bucket(stack, keys):
    response = stack.limited(rate_limit(1, 60, by=lambda request: "")).get("/x/")
    assert response.status_code == 400
    assert "key function" in json.loads(response.content)["detail"]
    assert keys() == []


@pytest.mark.parametrize("answer", [b"hunter2", ("hunter2", "b"), 1.5, True], ids=repr)
def test_callable_that_answers_a_wrong_type_is_a_500_that_names_the_type_only(stack, keys, answer, caplog):
    response = stack.limited(rate_limit(1, 60, by=lambda request: answer)).get("/x/")
    assert response.status_code == 500
    assert f"the key function gave a value of the type {type(answer).__name__}" in caplog.text
    assert "hunter2" not in response.content.decode() + caplog.text
    assert keys() == []


def test_callable_may_answer_an_integer(stack, keys):
    get(stack.limited(rate_limit(1, 60, by=lambda request: 7)))
    assert keys() == ["ratelimit:/x/:{7}:60s"]


@pytest.mark.parametrize("anonymous", ["pass", "ip", "refuse"])
def test_callable_that_says_nobody_passes_and_is_reported(stack, anonymous):
    client = stack.limited(rate_limit(1, 60, by=lambda request: None, anonymous=anonymous))
    assert [get(client) for _ in range(2)] == [200, 200]
    assert passes == {"/x/": 2}


def test_forwarded_address_counts_only_from_trusted_proxies(stack, keys):
    limit = rate_limit(1, 60, by="ip")
    client = stack.limited(limit)
    assert [get(client, x_forwarded_for=f"198.51.100.{n}") for n in (1, 2)] == [200, 429]
    client = stack.limited(limit, TRUSTED_HOPS=1)
    assert [get(client, x_forwarded_for=f"6.6.6.6, 198.51.100.{n}") for n in (1, 2, 2)] == [200, 200, 429]
    assert "ip:198.51.100.2" in str(keys())


def test_request_without_an_address_passes_and_is_reported(site, caplog):
    client = site(path("x/", rate_limit(1, 60, by="ip")(lambda request: HttpResponse())))
    assert [client.get("/x/", REMOTE_ADDR="").status_code for _ in range(2)] == [200, 200]
    assert "Unix socket" in caplog.text


def test_field_of_a_json_body_is_who_is_limited_and_the_view_reads_it_too(stack):
    view = rate_limit(1, 60, by="json:user.id")(stack.view(lambda request: HttpResponse(request.body)))
    client = stack.client(path("x/", view))

    def post(body, **options):
        return client.post("/x/", body, content_type="application/json", **options)

    answers = [post(json.dumps({"user": {"id": name}})) for name in (1, 1, 2)]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert json.loads(answers[0].content) == {"user": {"id": 1}}
    assert post("{not json").status_code == 400
    assert post(json.dumps({"pad": "x" * 70_000})).status_code == 413


def form_view(request):
    return HttpResponse(request.FILES["file"].read() if request.FILES else request.POST["email"])


def upload(client, email, size):
    return client.post("/x/", {"email": email, "file": SimpleUploadedFile("a.txt", b"x" * size)})


def test_field_of_a_form_is_who_is_limited_and_the_view_reads_it_too(stack):
    client = stack.client(path("x/", rate_limit(1, 60, by="form:email")(stack.view(form_view))))

    def post(email):
        return client.post("/x/", f"email={email}", content_type="application/x-www-form-urlencoded")

    answers = [post(name) for name in ("ada", "ada", "bob")]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert answers[0].content == b"ada"


def test_field_of_an_upload_is_who_is_limited_and_the_view_reads_the_file(stack):
    client = stack.client(path("x/", rate_limit(1, 60, by="form:email")(stack.view(form_view))))
    answers = [upload(client, name, 50_000) for name in ("ada", "ada", "bob")]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert answers[0].content == b"x" * 50_000


def test_upload_beyond_the_bound_is_a_413_unless_the_bound_is_raised(stack):
    for by, status in (("form:email", 413), (form_field("email", most_body=200_000), 200)):
        client = stack.client(path("x/", rate_limit(9, 60, by=by)(stack.view(form_view))))
        assert upload(client, "ada", 100_000).status_code == status


def test_upload_that_django_has_parsed_already_is_read_whatever_its_size(stack, settings):
    settings.MIDDLEWARE = [f"{__name__}.ParsingMiddleware", *settings.MIDDLEWARE]
    client = stack.client(path("x/", rate_limit(1, 60, by="form:email")(stack.view(form_view))))
    assert [upload(client, name, 100_000).status_code for name in ("ada", "ada", "bob")] == [200, 429, 200]


class ParsingMiddleware:
    """Looks into the form before the view does, like Django's protection against forged requests."""

    sync_capable = async_capable = True

    def __new__(cls, get_response):
        from asgiref.sync import iscoroutinefunction, markcoroutinefunction

        async def awaited(request):
            return await get_response(request) if request.POST else None

        def waited(request):
            return get_response(request) if request.POST else None

        return markcoroutinefunction(awaited) if iscoroutinefunction(get_response) else waited


def test_view_may_choose_its_upload_handlers_after_the_form_was_read(stack):
    from django.core.files.uploadhandler import TemporaryFileUploadHandler

    def view(request):
        request.upload_handlers = [TemporaryFileUploadHandler(request)]
        return form_view(request)

    client = stack.client(path("x/", rate_limit(1, 60, by="form:email")(stack.view(view))))
    assert upload(client, "ada", 100).content == b"x" * 100


def test_form_of_another_method_is_read_too(stack):
    """Django leaves it to the view, and Django REST framework reads it."""
    client = stack.client(path("x/", rate_limit(1, 60, by="form:email")(stack.view())))
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert [client.put("/x/", f"email={name}", **form).status_code for name in ("ada", "ada", "bob")] == [200, 429, 200]


@pytest.mark.parametrize("email", ["ADA@example.org", " ada@example.org ", "\uff41da@example.org"])
def test_spellings_of_an_email_are_one_subject(stack, email):
    client = stack.client(path("x/", rate_limit(1, 60, by="form:email")(stack.view(form_view))))
    assert [client.post("/x/", {"email": name}).status_code for name in ("ada@example.org", email)] == [200, 429]


def test_more_parameters_than_django_reads_are_a_400(stack):
    client = stack.client(path("x/", rate_limit(1, 60, by=first_of("query:a", "form:b"))(stack.view())))
    assert client.post("/x/?" + "&".join(f"q{number}=1" for number in range(1500))).status_code == 400
