"""The command line judges a request by the limits, the share, the cost and the anchor by which every front decides it."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from types import ModuleType

import flask
import pytest
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from fastapi import Depends, FastAPI
from fastapi.responses import Response
from starlette.testclient import TestClient

from ratekit import Policy
from ratekit.asgi import RateLimitMiddleware
from ratekit.cli import program
from ratekit.flask import install as install_flask
from ratekit.flask import rate_limit
from ratekit.web.identity import hashed
from ratekit_django import rate_limit as django_rate_limit
from ratekit_django.conf import conf
from ratekit_fastapi import PathRateLimiter, ReserveLimiter, install
from ratekit_fastapi import RateLimitMiddleware as RouteMiddleware
from support import django_ready  # noqa: F401

ADDRESS, ACCOUNT = "ip:192.0.2.7", f"form:username:{hashed('ann')}"
BY_ACCOUNT, BY_ADDRESS = {"by": "form:username", "count": 401}, {"by": "ip", "count": 401}
LOGIN = {"path": "/login", "method": "POST"}
SIGN_IN, NAMED = {"path": "/sign-in", "method": "POST"}, "login by address"
DOCUMENT = {
    "apply": "all",
    "rules": [
        {"match": LOGIN, "limits": "2/15min", **BY_ACCOUNT},
        {"match": LOGIN, "limits": "50/15min", **BY_ADDRESS},
        {"match": {"path": "/daily"}, "by": "ip", "limits": "3/day", "share": 0.5},
        {"match": {"path": "/chat"}, "by": "ip", "limits": ["9/min", "100 tokens/min"], "estimate": 60},
        {"match": {"path": "/month"}, "by": "ip", "limits": "9/month", "anchor": 15},
        {"match": SIGN_IN, "limits": "5/15min", **BY_ACCOUNT},
        {"match": SIGN_IN, "limits": "2/15min", "counter": NAMED, **BY_ADDRESS},
        {"match": {"path": "/update"}, "by": "ip", "limits": "9/min", "counter": "update messages"},
    ],
}
LLM = Policy("llm", ["9/min", "100 tokens/min"])


def share_of(request):
    return 0.5


def ratekit(*arguments):
    """Run the program, and return what it prints and its exit code."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = program.run(list(arguments))
    return out.getvalue(), code


def fastapi_front(url, module, settings, tmp_path):
    app = module.app = FastAPI(openapi_url=None)
    install(app, store=url)
    login = [PathRateLimiter("2/15min", **BY_ACCOUNT), PathRateLimiter("50/15min", **BY_ADDRESS)]
    app.post("/login", dependencies=list(map(Depends, login)))(lambda: Response(status_code=401))
    app.get("/daily", dependencies=[Depends(PathRateLimiter("3/day", by="ip", share=0.5))])(lambda: None)
    app.get("/chat", dependencies=[Depends(ReserveLimiter(policy=LLM, by="ip", estimate=60))])(lambda: None)
    app.get("/month", dependencies=[Depends(PathRateLimiter("9/month", by="ip", anchor=15))])(lambda: None)
    app.get("/asked", dependencies=[Depends(PathRateLimiter("9/min", by="ip", share=share_of, cost=lambda _: 3))])(
        lambda: None
    )
    sign_in = [PathRateLimiter("5/15min", **BY_ACCOUNT), PathRateLimiter("2/15min", endpoint=NAMED, **BY_ADDRESS)]
    app.post("/sign-in", dependencies=list(map(Depends, sign_in)))(lambda: Response(status_code=401))
    app.get("/update", dependencies=[Depends(PathRateLimiter("9/min", by="ip", endpoint="update messages"))])(lambda: None)
    client = TestClient(app, client=("192.0.2.7", 1))
    return client, lambda *words: ratekit(*words, "--rules", "which_shop:app")


def document_front(url, module, settings, tmp_path):
    app = FastAPI(openapi_url=None)
    install(app, store=url, rules=DOCUMENT)
    for path_ in ("/login", "/sign-in"):
        app.post(path_)(lambda: Response(status_code=401))
    for path_ in ("/daily", "/chat", "/month", "/update"):
        app.get(path_)(lambda: None)
    client = TestClient(app, client=("192.0.2.7", 1))
    (tmp_path / "rules.json").write_text(json.dumps(DOCUMENT))
    return client, lambda *words: ratekit(*words, "--rules", str(tmp_path / "rules.json"))


def installed_document_front(url, module, settings, tmp_path):
    client, _ = document_front(url, module, settings, tmp_path)
    module.app = client.app
    return client, lambda *words: ratekit(*words, "--rules", "which_shop:app")


def flask_front(url, module, settings, tmp_path):
    app = flask.Flask("which")
    install_flask(app, store=url)
    failing = rate_limit("2/15min", **BY_ACCOUNT)(rate_limit("50/15min", **BY_ADDRESS)(lambda: ("", 401)))
    app.post("/login", endpoint="login")(failing)
    app.get("/daily", endpoint="daily")(rate_limit("3/day", by="ip", share=0.5)(lambda: ""))
    app.get("/chat", endpoint="chat")(rate_limit(policy=LLM, by="ip", estimate=60)(lambda: ""))
    app.get("/month", endpoint="month")(rate_limit("9/month", by="ip", anchor=15)(lambda: ""))
    app.get("/asked", endpoint="asked")(rate_limit("9/min", by="ip", share=share_of, cost=lambda _: 3)(lambda: ""))
    by_address = rate_limit("2/15min", endpoint=NAMED, **BY_ADDRESS)
    app.post("/sign-in", endpoint="sign-in")(rate_limit("5/15min", **BY_ACCOUNT)(by_address(lambda: ("", 401))))
    app.get("/update", endpoint="update")(rate_limit("9/min", by="ip", counter="update messages")(lambda: ""))
    client = app.test_client()
    client.environ_base["REMOTE_ADDR"] = "192.0.2.7"

    def ask(*words):
        ended = app.test_cli_runner().invoke(args=["ratekit", *words])
        return ended.output, ended.exit_code

    return client, ask


def django_front(url, module, settings, tmp_path):
    conf.reset()

    def failing(request):
        return HttpResponse(status=401)

    def fine(request):
        return HttpResponse()

    by_account = django_rate_limit("2/15min", methods=["POST"], **BY_ACCOUNT)
    by_address = django_rate_limit("50/15min", methods=["POST"], **BY_ADDRESS)
    named = django_rate_limit("2/15min", methods=["POST"], endpoint=NAMED, **BY_ADDRESS)
    settings.ROOT_URLCONF = (
        path("login", by_account(by_address(failing))),
        path("sign-in", django_rate_limit("5/15min", methods=["POST"], **BY_ACCOUNT)(named(failing))),
        path("update", django_rate_limit("9/min", by="ip", counter="update messages")(fine)),
        path("daily", django_rate_limit("3/day", by="ip", share=0.5)(fine)),
        path("chat", django_rate_limit(policy=LLM, by="ip", estimate=60)(fine)),
        path("month", django_rate_limit("9/month", by="ip", anchor=15)(fine)),
        path("asked", django_rate_limit("9/min", by="ip", share=share_of, cost=lambda _: 3)(fine)),
    )
    settings.RATEKIT = {"STORE_URL": url}

    def ask(*words):
        out, errors, code = io.StringIO(), io.StringIO(), 0
        try:
            call_command("ratekit", *words, stdout=out, stderr=errors)
        except CommandError as error:
            code = error.returncode
        return f"{out.getvalue()}{errors.getvalue()}", code

    return Client(REMOTE_ADDR="192.0.2.7"), ask


def django_document_front(url, module, settings, tmp_path):
    client, ask = django_front(url, module, settings, tmp_path)
    (tmp_path / "rules.json").write_text(json.dumps(DOCUMENT))
    failing, fine = (lambda request: HttpResponse(status=401)), (lambda request: HttpResponse())
    views = {"login": failing, "sign-in": failing, "daily": fine, "chat": fine, "month": fine, "update": fine}
    settings.ROOT_URLCONF = tuple(path(name, view, name=name) for name, view in views.items())
    settings.MIDDLEWARE = ["ratekit_django.middleware.RateLimitMiddleware"]
    settings.RATEKIT = {"STORE_URL": url, "RULES_SOURCE": str(tmp_path / "rules.json")}
    return client, ask


FRONTS = [fastapi_front, flask_front, django_front, document_front, installed_document_front, django_document_front]


@pytest.fixture(params=FRONTS, ids=lambda front: front.__name__)
def front(request, redis_server, monkeypatch, settings, tmp_path):
    url = f"{redis_server.url}/0?socket_timeout=5"
    module = ModuleType("which_shop")
    monkeypatch.setitem(sys.modules, "which_shop", module)
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", url)
    yield request.param(url, module, settings, tmp_path)
    conf.reset()


def test_subject_tells_which_of_the_limits_of_a_login_count_it(front):
    client, ask = front
    assert [client.post("/login", data={"username": "ann"}).status_code for _ in range(3)] == [401, 401, 429]
    told = {who: json.loads(ask("explain", "POST /login", who, "--json")[0]) for who in (ADDRESS, ACCOUNT)}
    assert [told[who]["refused"] for who in (ADDRESS, ACCOUNT)] == [False, True]
    figures = [[(one["max_requests"], one["used"]) for one in told[who]["limits"]] for who in (ADDRESS, ACCOUNT)]
    assert figures == [[(50, 2)], [(2, 2)]]
    assert [told[who]["by"] for who in (ADDRESS, ACCOUNT)] == ["client_ip", "form:username"]
    looked = [json.loads(ask("inspect", "/login", who, "--json")[0])["max_requests"] for who in (ADDRESS, ACCOUNT)]
    assert looked == [50, 2]
    assert [ask("check", "/login", who)[1] for who in (ADDRESS, ACCOUNT)] == [0, 1]


def test_limits_of_one_route_are_judged_each_under_what_it_counts_under(front):
    client, ask = front
    assert [client.post("/sign-in", data={"username": "ann"}).status_code for _ in range(3)] == [401, 401, 429]
    for asked in ("/sign-in", "POST /sign-in", NAMED):
        told = json.loads(ask("explain", asked, ADDRESS, "--json")[0])
        assert (told["refused"], told["endpoint"], told["by"]) == (True, NAMED, "client_ip")
        assert [(one["max_requests"], one["used"]) for one in told["limits"]] == [(2, 2)]
        looked = json.loads(ask("inspect", asked, ADDRESS, "--json")[0])
        assert (looked["endpoint"], looked["max_requests"], looked["request_count"]) == (NAMED, 2, 2)
        assert ask("check", asked, ADDRESS)[1] == 1
    told = json.loads(ask("explain", "/sign-in", ACCOUNT, "--json")[0])
    assert (told["refused"], told["endpoint"]) == (False, "/sign-in")
    assert [(one["max_requests"], one["used"]) for one in told["limits"]] == [(5, 2)]
    shown = ask("inspect", "/sign-in", "ann")[0]
    assert (", counted under /sign-in" in shown, f", counted under {NAMED}" in shown) == (True, True)


def test_name_of_a_counter_may_have_a_blank_and_begin_with_a_method(front):
    client, ask = front
    assert client.get("/update").status_code == 200
    for asked in ("update messages", "/update", "GET /update"):
        told = json.loads(ask("explain", asked, ADDRESS, "--json")[0])
        assert (told["endpoint"], [one["used"] for one in told["limits"]]) == ("update messages", [1])
    assert ask("check", "update messages", ADDRESS)[1] == 0
    told, code = ask("explain", "GTE /update", ADDRESS)
    assert (code, "unknown method 'GTE': did you mean GET?" in told) == (2, True)


def test_limits_are_shown_each_with_whom_it_counts_where_the_subject_does_not_tell(front):
    _, ask = front
    told, code = ask("explain", "/login", "ann")
    assert (code, told.count("the subject does not tell which of these limits count it")) == (0, 1)
    assert ("by        form:username" in told, "by        client_ip" in told) == (True, True)
    assert json.loads(ask("explain", "/login", "ann", "--json")[0])["refused"] is None
    looked = ask("inspect", "/login", "ann")[0]
    assert ("(2/15min)" in looked, ", by form:username" in looked, ", by client_ip" in looked) == (True, True, True)
    refused, code = ask("check", "/login", "ann")
    assert (code, "by form:username; " in refused, "give --limit" in refused) == (2, True, True)


def test_subject_that_is_not_hashed_is_told_as_it_is_counted(front):
    _, ask = front
    for command in ("inspect", "explain", "check", "reset"):
        told, code = ask(command, "/login", "form:username: Ann")
        assert (code, f"the subject that is counted would be '{ACCOUNT}'" in told) == (0, True), told
    assert "the subject that is counted" not in ask("inspect", "/login", ACCOUNT)[0]


def test_share_is_that_of_the_limiter(front):
    client, ask = front
    assert [client.get("/daily").status_code for _ in range(2)] == [200, 429]
    told = ask("explain", "/daily", ADDRESS)[0]
    assert told.lstrip().startswith("refused")
    assert "1 of 1 used, 0 left" in told
    assert "share     0.5 of each limit" in told
    assert ask("check", "/daily", ADDRESS)[1] == 1


def test_cost_is_the_estimate_of_the_limiter(front):
    client, ask = front
    assert [client.get("/chat").status_code for _ in range(2)] == [200, 429]
    told = ask("explain", "/chat", ADDRESS)[0]
    assert "a request that costs 60 tokens is refused" in told
    assert "a request that costs 40 tokens passes" in ask("explain", "/chat", ADDRESS, "--cost", "tokens=40")[0]


def test_anchor_is_that_of_the_limiter(front):
    client, ask = front
    assert client.get("/month").status_code == 200
    told = json.loads(ask("explain", "/month", ADDRESS, "--json")[0])
    assert (told["anchor"], [one["used"] for one in told["limits"]]) == ("15", [1])
    assert "anchor    15" in ask("explain", "/month", ADDRESS)[0]


@pytest.mark.parametrize("front", [fastapi_front, flask_front, django_front], indirect=True)
def test_what_callables_answer_is_said_to_be_asked_for_each_request(front):
    _, ask = front
    told = ask("explain", "/asked", ADDRESS)[0]
    assert "the application says cost for each request" in told
    assert "the application says share for each request" in told
    assert json.loads(ask("explain", "/asked", ADDRESS, "--json")[0])["asked"] == ["cost", "share"]


def test_table_of_a_middleware_has_shares_estimates_and_costs(redis_server, monkeypatch):
    module = ModuleType("which_shop")
    monkeypatch.setitem(sys.modules, "which_shop", module)
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", f"{redis_server.url}/0?socket_timeout=5")
    table = module.TABLE = {
        "/half": {"limits": "10/min", "share": 0.5},
        "/chat": {"limits": ["9/min", "100 tokens/min"], "estimate": 60, "by": "header:x-key"},
        "/dear": "10/min",
        "/notes": {"limits": "7/min", "counter": "chat messages"},
    }
    app = module.app = FastAPI(openapi_url=None)
    app.add_middleware(RateLimitMiddleware, rules=table, default=None, cost=4, address_limit="99/min")
    for url in table:
        app.get(url)(lambda: None)
    for where in ("which_shop:app", "which_shop:TABLE"):
        told = ratekit("explain", "/half", ADDRESS, "--rules", where)[0]
        assert ("of 5 used" in told, "share     0.5" in told) == (True, True)
        key = f"header:x-key:{hashed('k')}"
        assert "chat messages: a request" in ratekit("explain", "chat messages", ADDRESS, "--rules", where)[0]
        assert "costs 60 tokens passes" in ratekit("explain", "/chat", key, "--rules", where)[0]
    assert "a request that costs 4 passes" in ratekit("explain", "/dear", ADDRESS, "--rules", "which_shop:app")[0]


def test_limits_of_a_key_of_a_document_are_those_of_its_hashed_subject(redis_server, monkeypatch, tmp_path):
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", f"{redis_server.url}/0?socket_timeout=5")
    rule = {"match": {"path": "/x"}, "by": "header:x-key", "limits": "5/min", "custom": {"header:x-key:gold": "90/min"}}
    (tmp_path / "rules.json").write_text(json.dumps({"rules": [rule]}))
    for key, most in (("gold", 90), ("tin", 5)):
        asked = ("explain", "/x", f"header:x-key:{hashed(key)}", "--rules", str(tmp_path / "rules.json"), "--json")
        assert [one["max_requests"] for one in json.loads(ratekit(*asked)[0])["limits"]] == [most]


def test_mode_and_identity_of_a_middleware_are_those_of_its_rules(redis_server, monkeypatch):
    module = ModuleType("which_shop")
    monkeypatch.setitem(sys.modules, "which_shop", module)
    url = f"{redis_server.url}/0?socket_timeout=5"
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", url)
    app = module.app = FastAPI(openapi_url=None)
    app.get("/x")(lambda: None)
    table = {"by": "header:X-Key", "address_limit": "99/min", "default": {"limits": "1/min", "per_route": True}}
    app.add_middleware(RouteMiddleware, store=url, mode="monitor", **table)
    app.add_middleware(RouteMiddleware, store=url, default={"limits": "9/min", "per_route": True})
    with TestClient(app, client=("192.0.2.7", 1)) as client:
        assert [client.get("/x", headers={"x-key": "k"}).status_code for _ in range(2)] == [200, 200]
    asked = ("explain", "/x", f"header:x-key:{hashed('k')}", "--rules", "which_shop:app", "--json")
    told = json.loads(ratekit(*asked)[0])
    assert (told["mode"], told["refused"], told["by"]) == ("monitor", False, "header:x-key")
    assert [(one["max_requests"], one["used"]) for one in told["limits"]] == [(1, 1)]
