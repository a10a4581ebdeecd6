"""RATEKIT["RULES_SOURCE"]: limits from a document, in every colour of view and server."""

from __future__ import annotations

import json

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.urls import path

from ratekit import ConfigurationError, Limit, Policy, RateLimiter
from ratekit.admin.fleet_mode import set_fleet_mode
from ratekit.core.errors import SourceUnavailable
from ratekit_django import rate_limit
from ratekit_django.conf import conf
from support import published_key_parsers  # noqa: F401 - named by a document

pytestmark = pytest.mark.usefixtures("ratekit_clock")


def hello(request, **_):
    return HttpResponse(request.body)


def statuses(client, *urls, **options) -> list[int]:
    return [client.get(url, **options).status_code for url in urls]


def test_document_limits_by_path_url_pattern_and_name(stack):
    rules = [
        {"match": {"path": "/items/{id}"}, "limits": "2/min"},
        {"match": {"endpoint": "search"}, "limits": "1/min"},
        {"match": {"endpoint": "/people/<int:id>/"}, "limits": "1/min"},
    ]
    urls = [
        path("items/<int:id>", stack.view(hello)),
        path("find/", stack.view(hello), name="search"),
        path("people/<int:id>/", stack.view(hello)),
        path("free/", stack.view(hello)),
    ]
    client = stack.client(*urls, RULES_SOURCE={"rules": rules})
    assert statuses(client, "/items/1", "/items/2", "/items/3") == [200, 200, 429]
    assert statuses(client, "/find/", "/find/") == [200, 429]
    assert statuses(client, "/people/1/", "/people/2/") == [200, 429]
    assert statuses(client, "/free/", "/free/") == [200, 200]
    assert client.get("/items/9").headers["RateLimit-Remaining"] == "0"


def test_key_parser_of_a_document_reads_the_body_and_leaves_it_to_the_view(stack):
    rule = {"by": "function:support.published_key_parsers:image_recognition", "limits": "1/min"}
    client = stack.client(path("x/", stack.view(hello)), RULES_SOURCE={"rules": [rule]})
    answers = [
        client.post("/x/", json.dumps({"model_version": version}), content_type="application/json") for version in "aab"
    ]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert json.loads(answers[0].content) == {"model_version": "a"}


def test_request_that_a_view_refuses_has_spent_nothing_of_the_document(stack):
    view = rate_limit(limits="1/min", by="ip")(stack.view(hello))
    client = stack.client(path("x/", view), path("y/", stack.view(hello)), RULES_SOURCE={"rules": [{"limits": "3/min"}]})
    assert statuses(client, "/x/", "/x/", "/x/") == [200, 429, 429]
    assert statuses(client, "/y/", "/y/", "/y/") == [200, 200, 429]


@pytest.mark.parametrize("colour", ["waits", "is awaited"])
def test_plan_of_names_the_plan_of_a_document(stack, colour):
    def plan_of(request):
        assert isinstance(request, HttpRequest)
        return request.headers.get("x-plan")

    async def plan_later(request):
        return plan_of(request)

    rules = {"plans": {"free": "1/min", "pro": "2/min"}, "rules": [{"limits": "plan", "by": "header:x-plan"}]}
    lookup = {"waits": plan_of, "is awaited": plan_later}[colour]
    client = stack.client(path("x/", stack.view(hello)), RULES_SOURCE=rules, PLAN_OF=lookup)
    assert statuses(client, "/x/", "/x/", headers={"X-Plan": "free"}) == [200, 429]
    assert statuses(client, "/x/", "/x/", "/x/", headers={"X-Plan": "pro"}) == [200, 200, 429]


def test_document_is_followed(site, tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text("rules: [{limits: 1/min}]")
    client = site(path("x/", hello), RULES_SOURCE=str(file))
    assert statuses(client, "/x/", "/x/") == [200, 429]
    file.write_text("rules: [{limits: 3/min}]")
    conf.rules_source.refresh()
    assert statuses(client, "/x/", "/x/", "/x/") == [200, 200, 429]


def test_document_that_makes_no_sense_is_a_system_check_and_an_error_at_the_start(settings):
    settings.RATEKIT = {"RULES_SOURCE": {"rules": [{"limits": "many"}]}}
    assert "rules[0].limits: rate 'many' is not a limit" in str([message.msg for message in run_checks(tags=["ratekit"])])
    with pytest.raises(ConfigurationError):
        conf.check()


def test_source_that_is_away_is_a_warning_of_the_checks_as_migrate_may_make_it(settings, tmp_path):
    settings.RATEKIT = {"RULES_SOURCE": f"sqlite:///{tmp_path}/none.db"}
    (message,) = [message for message in run_checks(tags=["ratekit"]) if message.id == "ratekit.W009"]
    assert "there is no such file" in message.msg
    with pytest.raises(SourceUnavailable):
        conf.check()  # as the server does when it starts


def test_mode_of_the_fleet_counts_where_all_limits_come_from_a_document(stack, redis_server, redis_url):
    document = {"rules": [{"limits": "1/min"}]}
    client = stack.client(path("x/", stack.view(hello)), RULES_SOURCE=document, STORE_URL=redis_url, FLEET_MODE=True)
    assert statuses(client, "/x/", "/x/") == [200, 429]
    with RateLimiter(redis_server.url, deadline=5) as limiter:
        set_fleet_mode(limiter, "monitor")
    conf.background.fleet.refresh()
    assert statuses(client, "/x/") == [200]


def test_slot_of_a_document_is_held_until_the_response_is_closed(stack):
    seen = []

    def look(request):
        seen.append(client_within())
        return HttpResponse()

    def client_within():
        return RateLimiter().peek(slots, "ip:127.0.0.1" if stack.is_asgi else "ip:203.0.113.7", endpoint="x").request_count

    slots = Policy("x", [Limit(2, 60, algorithm="concurrency")])
    rules = [{"counter": "x", "limits": "2/min@concurrency"}]
    client = stack.client(path("x/", stack.view(look)), RULES_SOURCE={"rules": rules})
    assert statuses(client, *["/x/"] * 4) == [200] * 4
    assert (seen, client_within()) == ([1] * 4, 0)


def test_document_counts_by_outcome_and_settles_estimates(stack):
    rules = [
        {"match": {"path": "/login/"}, "limits": "2/min", "count": ["4xx"]},
        {"match": {"path": "/chat/"}, "limits": ["100 tokens/min"], "estimate": 60},
    ]

    def chat(request):
        request.ratekit.settle(10)
        return HttpResponse()

    def login(request):
        return HttpResponse(status=int(request.GET["status"]))

    urls = [path("login/", stack.view(login)), path("chat/", stack.view(chat))]
    client = stack.client(*urls, RULES_SOURCE={"rules": rules})
    answers = statuses(client, *(f"/login/?status={status}" for status in (200, 200, 401, 200, 401, 200)))
    assert answers == [200, 200, 401, 200, 401, 429]
    assert statuses(client, *["/chat/"] * 6) == [200] * 5 + [429]


def test_limits_lists_every_url_with_where_its_limits_come_from(site, capsys):
    rules = [{"name": "search", "match": {"path": "/find/"}, "limits": "9/s"}]
    view = rate_limit(limits="1/min", by="ip", methods=["POST"])(hello)
    urls = [path("x/", view), path("find/", hello, name="find"), path("free/", hello)]
    site(*urls, RULES_SOURCE={"rules": rules}, RULES={"find": "3/s"})
    call_command("ratekit", "limits", "--json")
    rows = [tuple(row.values()) for row in json.loads(capsys.readouterr().out)]
    every = "GET POST PUT PATCH DELETE"
    assert rows == [
        ("/x/", "POST", "post-60s=1/min", "client_ip", "/x/", "code"),
        ("/find/", every, "3/s", "client_ip", "/find/", "RULES"),
        ("/find/", every, "9/s", "ip", "/find", "rule search of code"),
        ("/free/", every, None, None, None, None),
    ]
