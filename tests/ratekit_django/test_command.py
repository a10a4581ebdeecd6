"""manage.py ratekit: the command line on the store, the prefix and the limits of the project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.urls import path
from ninja import NinjaAPI
from rest_framework.response import Response
from rest_framework.views import APIView

from ratekit import Limit
from ratekit.admin.fleet_mode import get_fleet_mode
from ratekit_django import drf, ninja, rate_limit
from ratekit_django.conf import conf
from ratekit_django.database import models
from ratekit_django.declared_limits import declared
from support.servers import free_port

TESTS = Path(__file__).parents[1]


def manage(*arguments):
    """Run the command, and return what it answers."""
    output = StringIO()
    call_command("ratekit", *arguments, stdout=output)
    return output.getvalue()


@pytest.fixture
def client(site, redis_server, transactional_db):
    models.Override.objects.all().delete()
    view = rate_limit(limits=["2/min", "9/h"], by="ip")(lambda request: HttpResponse())
    return site(
        path("x/", view, name="x"),
        path("y/", lambda request: HttpResponse(), name="y"),
        STORE_URL=f"{redis_server.url}/2?socket_timeout=5",
        PREFIX="shop",
        RULES={"y": "1/min"},
    )


WHO = ("/x/", "ip:203.0.113.7")


def test_overrides_are_set_shown_listed_deleted_and_cleared(client):
    assert [client.get("/x/").status_code for _ in range(3)] == [200, 200, 429]
    assert "ip:203.0.113.7" in manage("overrides", "set", *WHO, "--max-requests", "5", "--ttl", "1h", "--note", "trial")
    assert [client.get("/x/").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert "trial" in manage("overrides", "get", *WHO)
    listed = json.loads(manage("overrides", "list", "--json"))["overrides"]
    assert [(one["endpoint"], one["subject"]) for one in listed] == [WHO]
    assert models.Override.objects.count() == 1  # they last in the project's database
    manage("overrides", "delete", *WHO)
    assert client.get("/x/").status_code == 429
    manage("overrides", "set", "/x/", "--org", "1", "--project", "42", "--unlimited")
    assert json.loads(manage("overrides", "clear", "--yes", "--json")) == {"deleted": 1}
    assert json.loads(manage("overrides", "list", "--json"))["overrides"] == []


def test_mode_is_set_for_the_fleet(client):
    manage("mode", "monitor", "--note", "on trial")
    assert get_fleet_mode(conf.limiter()).mode == "monitor"
    manage("mode", "clear")
    assert get_fleet_mode(conf.limiter()) is None


@pytest.mark.parametrize(("url", "most"), [("/x/", 2), ("/y/", 1)])
def test_inspect_knows_the_limits_of_views_and_rules(client, url, most):
    client.get(url)
    told = json.loads(manage("inspect", url, "ip:203.0.113.7", "--json"))
    assert (told["limits"][0]["max_requests"], told["limits"][0]["remaining"]) == (most, most - 1)


def test_inspect_knows_the_limits_of_a_method(site, redis_server):
    view = rate_limit(limits="3/min", by="ip", methods=["POST"])(lambda request: HttpResponse())
    site(path("x/", view), STORE_URL=f"{redis_server.url}/2?socket_timeout=5").post("/x/")
    told = json.loads(manage("inspect", "POST /x/", "ip:203.0.113.7", "--json"))
    assert [(limit["name"], limit["remaining"]) for limit in told["limits"]] == [("post-60s", 2)]


def test_reset_forgets_what_was_used(client):
    assert [client.get("/x/").status_code for _ in range(3)] == [200, 200, 429]
    manage("reset", *WHO)
    assert client.get("/x/").status_code == 200


def test_endpoint_that_nothing_limits_has_no_limits(client):
    assert declared.at("GET", "/nowhere/") is None
    assert "nobody" not in manage("inspect", "/nowhere/", "user:1")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["mode", "audit"], 2), (["overrides", "set", "/x/", "u", "--max-requests", "-1"], 2), (["nonsense"], 2)],
)
@pytest.mark.usefixtures("client")
def test_nonsense_is_an_error_with_a_code(arguments, code, capsys):
    with pytest.raises(CommandError) as failed:
        manage(*arguments)
    assert failed.value.returncode == code


def test_store_that_is_away_is_an_error_with_a_code(settings):
    settings.RATEKIT = {"STORE_URL": f"redis://127.0.0.1:{free_port()}"}
    with pytest.raises(CommandError) as failed:
        manage("mode")
    assert failed.value.returncode == 3


def test_environment_is_left_as_it_was(client, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", "memory://mine")
    manage("mode")
    assert os.environ["RATE_LIMIT_STORE_URL"] == "memory://mine"


def from_shell(folder, *arguments, **ratekit):
    (folder / "shop_settings.py").write_text(f"from support.django_settings import *\nRATEKIT = {ratekit!r}\n")
    command = [sys.executable, "-m", "django", "ratekit", *arguments, "--settings", "shop_settings"]
    environment = os.environ | {"PYTHONPATH": f"{folder}:{TESTS}:{TESTS.parent}"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_command_line_has_the_exit_codes_of_ratekit(tmp_path, redis_server):
    assert "overrides" in from_shell(tmp_path, "--help").stdout
    good = from_shell(tmp_path, "overrides", "list", "--json", STORE_URL=redis_server.url)
    assert (good.returncode, json.loads(good.stdout)["overrides"]) == (0, [])
    wrong = from_shell(tmp_path, "mode", "audit", STORE_URL=redis_server.url)
    assert (wrong.returncode, "Traceback" in wrong.stderr, "audit" in wrong.stderr) == (2, False, True)
    wrong = from_shell(tmp_path, "mode", STORE_URL="mysql://x")
    assert (wrong.returncode, "Traceback" in wrong.stderr, "mysql://x" in wrong.stderr) == (2, False, True)


@pytest.mark.parametrize(
    ("mode", "outcome"), [("on", "is refused"), ("monitor", "passes, as the mode is monitor"), ("off", "off")]
)
def test_explain_honours_the_mode_of_the_settings(client, settings, mode, outcome):
    for _ in range(2):
        client.get("/x/")
    settings.RATEKIT = settings.RATEKIT | {"MODE": mode}
    told = json.loads(manage("explain", *WHO, "--json"))
    assert (told["mode"], told["refused"]) == (mode, mode == "on")
    assert outcome in told["outcome"]
    assert client.get("/x/").status_code == (429 if mode == "on" else 200)


@pytest.mark.parametrize(("own", "setting", "expected"), [("monitor", None, "monitor"), ("monitor", "off", "off")])
def test_explain_honours_the_mode_of_a_view(site, redis_server, own, setting, expected):
    view = rate_limit(limits="1/min", by="ip", mode=own)(lambda request: HttpResponse())
    site(path("x/", view), STORE_URL=f"{redis_server.url}/2?socket_timeout=5", MODE=setting)
    assert json.loads(manage("explain", *WHO, "--json"))["mode"] == expected


def test_explain_says_on_where_one_of_several_limits_is_enforced(site, redis_server):
    view = rate_limit(limits="9/h", by="ip")(
        rate_limit(limits="1/min", by="ip", mode="monitor")(lambda request: HttpResponse())
    )
    site(path("x/", view), STORE_URL=f"{redis_server.url}/2?socket_timeout=5")
    assert json.loads(manage("explain", *WHO, "--json"))["mode"] == "on"


def test_limits_of_a_method_are_known_without_its_name(site, redis_server):
    view = rate_limit(limits="3/min", by="ip", methods=["POST"])(lambda request: HttpResponse())
    site(path("x/", view), STORE_URL=f"{redis_server.url}/2?socket_timeout=5").post("/x/")
    assert json.loads(manage("inspect", *WHO, "--json"))["limits"][0]["remaining"] == 2


class Open(APIView):
    authentication_classes = ()

    def get(self, request):
        return Response({})

    post = get


class ByAddress(Open):
    throttle_classes = (drf.RateLimitThrottle.of("5/min", by="ip"),)


class ByScope(Open):
    throttle_classes = (drf.ScopedRateLimitThrottle,)
    throttle_scope = "burst"


@pytest.mark.parametrize(
    ("view", "asked", "endpoint"),
    [(ByAddress, "/x/", "/x/"), (ByScope, "burst", "burst"), (ByScope, "/x/", "burst")],
    ids=["own counter", "scope", "pattern of a scope"],
)
def test_explain_and_inspect_know_throttles_of_django_rest_framework(site, redis_server, settings, view, asked, endpoint):
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": {"burst": "5/min"}}
    client = site(path("x/", view.as_view()), STORE_URL=f"{redis_server.url}/2?socket_timeout=5")
    assert client.get("/x/").status_code == 200
    for command in ("explain", "inspect"):
        told = json.loads(manage(command, asked, "ip:203.0.113.7", "--json"))
        assert told["endpoint"] == endpoint
        assert [(limit["max_requests"], limit["used"]) for limit in told["limits"]] == [(5, 1)]


def test_explain_and_inspect_know_operations_of_django_ninja(site, redis_server):
    api = NinjaAPI(urls_namespace="command")
    api.get("/x", throttle=[ninja.RateLimitThrottle("5/min", by="ip")])(lambda request: {})
    api.post("/x", throttle=[ninja.RateLimitThrottle("3/min", by="ip")])(lambda request: {})
    api.put("/x")(rate_limit(limits="2/min", by="ip")(lambda request: {}))
    api.delete("/x")(lambda request: {})
    client = site(path("api/", api.urls), STORE_URL=f"{redis_server.url}/2?socket_timeout=5")
    for method, most, name in (("GET", 5, "60s"), ("POST", 3, "post-60s"), ("PUT", 2, "put-60s")):
        assert client.generic(method, "/api/x").status_code == 200
        for command in ("explain", "inspect"):
            told = json.loads(manage(command, f"{method} /api/x", "ip:203.0.113.7", "--json"))
            limits = [(limit["name"], limit["max_requests"], limit["used"]) for limit in told["limits"]]
            assert limits == [(name, most, 1)]
    assert "limits" not in json.loads(manage("inspect", "DELETE /api/x", "ip:203.0.113.7", "--json"))


def test_inspect_shows_counts_of_what_nothing_declares(client):
    conf.limiter().check(Limit(9, 60), "ann", endpoint="by hand", cost=4)
    (counter,) = json.loads(manage("inspect", "by hand", "ann", "--json"))["counters"]
    assert (counter["limit"], counter["used"], counter["is_exact"]) == ("60s", 4, True)


def test_limits_list_the_default_and_only_the_rule_that_applies(site, redis_server):
    site(
        path("x/", lambda request: HttpResponse(), name="api-x"),
        path("y/", lambda request: HttpResponse(), name="api-y"),
        path("health/", lambda request: HttpResponse(), name="health"),
        STORE_URL=redis_server.url,
        RULES={"POST /x/": "5/min", "api-x": "7/min", "api-*": "9/min"},
        DEFAULT="30/min",
        EXEMPT=["health"],
    )
    rows = [tuple(row.values())[:3] + tuple(row.values())[4:] for row in json.loads(manage("limits", "--json"))]
    others = "GET PUT PATCH DELETE"
    assert [row for row in rows if row[0] in ("/x/", "/y/", "/health/")] == [
        ("/x/", others, "7/min", "/x/", "RULES"),
        ("/x/", "POST", "post-60s=5/min", "/x/", "RULES"),
        ("/y/", f"{others.replace('GET', 'GET POST')}", "9/min", "api-*", "RULES"),
        ("/health/", f"{others.replace('GET', 'GET POST')}", None, None, None),
    ]


def test_url_or_name_stands_for_what_its_limits_count_under(site, redis_server):
    client = site(
        path("x/", lambda request: HttpResponse(), name="api-x"),
        STORE_URL=redis_server.url,
        RULES={"api-*": "plan"},
        PLANS={"free": "2/min"},
        PLAN_OF=lambda request: "free",
    )
    assert client.get("/x/").status_code == 200
    for asked in ("/x/", "api-x", "api-*"):
        told = manage("explain", asked, "ip:203.0.113.7")
        assert "endpoint  api-*" in told
        assert "60s    fixed_window  -       1" in told


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["/nowhere/"], "no limit is declared for the endpoint '/nowhere/'"),
        (["by hand"], "no limit is declared for the endpoint 'by hand'"),
        (["/x/", "--limit", "mnth"], "limit 'mnth' is not one of 60s, 3600s"),
        (["/z/"], "the limits of '/z/' are counted under 'the last'"),
        (["the last", "--limit", "mnth"], "limit 'mnth' is not one of 60s"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_override_that_no_declared_limit_has_is_refused_unless_it_is_forced(client, settings, words, why):
    view = rate_limit("3/min", by="ip", counter="the last")(lambda request: HttpResponse())
    settings.ROOT_URLCONF = (*settings.ROOT_URLCONF, path("z/", view))
    given = ("overrides", "set", words[0], WHO[1], *words[1:], "--max-requests", "5")
    errors = StringIO()
    with pytest.raises(CommandError) as failed:
        call_command("ratekit", *given, stderr=errors)
    assert (failed.value.returncode, why in errors.getvalue(), "Give --force" in errors.getvalue()) == (2, True, True)
    assert json.loads(manage("overrides", "list", "--json"))["overrides"] == []
    errors = StringIO()
    call_command("ratekit", *given, "--force", stdout=StringIO(), stderr=errors)
    assert f"ratekit: warning: {why}" in errors.getvalue()
    assert len(json.loads(manage("overrides", "list", "--json"))["overrides"]) == 1


def test_override_that_a_declared_limit_has_is_written_without_a_word(client):
    for words in (["/x/"], ["/x/:/elements"], ["/x/", "--limit", "3600s"], ["/x/", "--limit", "hour"], ["*"]):
        errors = StringIO()
        given = ("overrides", "set", words[0], WHO[1], *words[1:], "--max-requests", "5")
        call_command("ratekit", *given, stdout=StringIO(), stderr=errors)
        assert errors.getvalue() == ""


def test_login_page_of_the_admin_is_listed_and_explained(site, redis_server):
    from django.contrib import admin

    site(
        path("admin/", admin.site.urls),
        STORE_URL=f"{redis_server.url}/2?socket_timeout=5",
        ADMIN_LOGIN={"address": "9/15min", "account": "2/15min"},
    )
    rows = [row for row in json.loads(manage("limits", "--json")) if row["route"] == "/admin/login/"]
    assert [(row["methods"], row["limits"].rpartition("=")[2], row["by"], row["where"]) for row in rows] == [
        ("POST", "9/15min", "client_ip", "ADMIN_LOGIN"),
        ("POST", "2/15min", "form:username", "ADMIN_LOGIN"),
    ]
    (rule, _) = declared.all_at("POST", "/admin/login/")
    conf.limiter().check(rule.policy, "ip:203.0.113.7", endpoint="admin login")
    told = json.loads(manage("explain", "/admin/login/", "ip:203.0.113.7", "--json"))
    assert [(limit["max_requests"], limit["used"]) for limit in told["limits"]] == [(9, 1)]
    assert [row["where"] for row in json.loads(manage("limits", "--json")) if row["route"] == "/admin/logout/"] == [None]


@pytest.mark.usefixtures("transactional_db")
def test_override_for_the_login_page_of_the_admin_knows_its_endpoint_and_the_titles_of_its_limits(
    site, redis_server, capsys
):
    from django.contrib import admin

    site(path("admin/", admin.site.urls), STORE_URL=f"{redis_server.url}/2?socket_timeout=5", ADMIN_LOGIN="9/15min")
    for who in ("ip:203.0.113.7", "form:username:0123456789abcdef0123456789abcdef"):
        manage("overrides", "set", "admin login", who, "--limit", "outcomes 15 minutes", "--max-requests", "1")
        assert capsys.readouterr().err == ""
        told = json.loads(manage("explain", "admin login", who, "--json"))
        assert [(one["max_requests"], one["overridden"]) for one in told["limits"]] == [(1, True)]
        assert "deleted" in manage("overrides", "delete", "admin login", who, "--limit", "outcomes 15 minutes")


@pytest.mark.parametrize("rate", ["5/min", "plan"])
@pytest.mark.parametrize("command", ["inspect", "explain"])
@pytest.mark.usefixtures("transactional_db")
def test_override_for_all_endpoints_is_shown(site, redis_server, rate, command):
    view = rate_limit(limits="9/h", by="ip", counter="hourly")(lambda request: HttpResponse())
    client = site(
        path("x/", view, name="x"),
        STORE_URL=f"{redis_server.url}/2?socket_timeout=5",
        RULES={"x": {"limits": rate, "by": "ip"}},
        PLANS={"free": "5/min"},
        PLAN_OF=lambda request: "free",
    )
    assert client.get("/x/").status_code == 200
    manage("overrides", "set", "*", WHO[1], "--until", "2999-12-01T08:00:00Z")
    assert client.get("/x/").status_code == 429
    for asked in ("/x/", "hourly"):
        assert "override  on all endpoints: refused until 2999-12-01" in manage(command, asked, WHO[1])
        told = json.loads(manage(command, asked, WHO[1], "--json"))
        assert (told["override"], told["wide_override"]["endpoint"]) == (None, "*")
    assert ("60s (5/min)" if rate != "plan" else "limit     asked for each request") in manage(command, "/x/", WHO[1])
    assert "hourly" in manage(command, "/x/", WHO[1])
    if command == "explain" and rate == "plan":
        assert "60s    fixed_window  -       1" in manage(command, "/x/", WHO[1])
