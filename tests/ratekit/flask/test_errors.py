"""Refusals: the application's own handlers are used, headers are on every answer, outages are what on_outage says."""

from __future__ import annotations

import flask
import pytest
from werkzeug.exceptions import HTTPException, TooManyRequests

from ratekit import Limit, Policy, RateLimiter, RateLimitExceeded
from ratekit import flask as front
from ratekit.flask import rate_limit
from support.servers import free_port

DEAD = "redis://127.0.0.1:{}"


@pytest.fixture
def app(make_app):
    app = make_app()
    app.get("/x")(rate_limit(1, 60)(lambda: "hello"))
    return app


def refusal(app, path="/x"):
    client = app.test_client()
    client.get(path)
    return client.get(path)


def test_refusal_is_a_problem_with_the_headers(app, ratekit_clock):
    answer = refusal(app)
    assert answer.status_code == 429
    assert answer.mimetype == "application/problem+json"
    assert answer.json["violated-policies"] == ["minute"]
    assert answer.headers["Retry-After"] == "60"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["RateLimit-Remaining"] == "0"


HANDLED = {
    "429": 429,
    "werkzeug's": TooManyRequests,
    "any": HTTPException,
    "the front's": front.RateLimitExceeded,
    "the core's": RateLimitExceeded,
}


@pytest.mark.parametrize("kind", HANDLED.values(), ids=HANDLED)
def test_handler_of_the_application_answers_and_headers_are_written(app, ratekit_clock, kind):
    @app.errorhandler(kind)
    def slow_down(error):
        return f"wait {error.retry_after} s, {error.result.max_requests} a minute", 429

    answer = refusal(app)
    assert (answer.status_code, answer.text) == (429, "wait 60 s, 1 a minute")
    assert answer.headers["Retry-After"] == "60"
    assert answer.headers["RateLimit-Limit"] == "1"
    assert answer.headers["Cache-Control"] == "no-store"


def test_handler_of_a_blueprint_answers_for_its_own_views(make_app):
    app = make_app()
    shop = flask.Blueprint("shop", "shop")
    shop.get("/x")(rate_limit(1, 60)(lambda: "hello"))
    shop.errorhandler(429)(lambda error: ("the shop is full", 429))
    app.register_blueprint(shop)
    assert refusal(app).text == "the shop is full"


def test_handler_registered_before_the_installation_stays():
    app = flask.Flask("shop")
    app.register_error_handler(RateLimitExceeded, lambda error: ("mine", 429))
    front.install(app, store="memory://")
    app.get("/x")(rate_limit(1, 60)(lambda: "hello"))
    assert refusal(app).text == "mine"


@pytest.mark.parametrize("has_handler", [False, True])
def test_limiter_that_a_view_calls_itself_is_answered_alike_and_gives_back(make_app, has_handler):
    app, limiter, policy = make_app(), RateLimiter("memory://own"), Policy("own", Limit(1, 60))
    limiter.reset(policy, "u")
    if has_handler:
        app.register_error_handler(429, lambda error: (f"{error.result.limit}", 429))

    @app.get("/x")
    @rate_limit(5, 60, by="ip")
    def view():
        if (result := limiter.check(policy, "u")).is_over_limit:
            raise RateLimitExceeded(result)
        return str(flask.g.ratekit.results[0].remaining)

    client = app.test_client()
    assert [client.get("/x").text if number in (0, 2) else client.get("/x").status_code for number in range(2)] == ["4", 429]
    answer = client.get("/x")
    assert answer.text == "60s" if has_handler else answer.mimetype == "application/problem+json"
    limiter.reset(policy, "u")
    assert client.get("/x").text == "3"  # two refused requests have spent nothing


def test_headers_are_on_errors_of_the_view_too(make_app):
    app = make_app()
    app.get("/x")(rate_limit(5, 60)(lambda: 1 / 0))
    app.get("/y", endpoint="y")(rate_limit(5, 60)(lambda: flask.abort(404)))
    client = app.test_client()
    answers = [client.get("/x"), client.get("/y")]
    assert [(answer.status_code, answer.headers["RateLimit-Remaining"]) for answer in answers] == [(500, "4"), (404, "4")]


@pytest.mark.parametrize(("on_outage", "status"), [("open", 200), ("closed", 503), ("local", 200)])
def test_dead_store_is_what_on_outage_says(make_app, on_outage, status):
    app = make_app(store=DEAD.format(free_port()), on_outage=on_outage)
    app.get("/x")(rate_limit(1, 60)(lambda: "hello"))
    client = app.test_client()
    assert client.get("/x").status_code == status
    assert client.get("/x").status_code == (429 if on_outage == "local" else status)


def test_view_may_say_itself_what_an_outage_means(make_app):
    app = make_app(store=DEAD.format(free_port()))
    app.get("/x")(rate_limit(1, 60, on_outage="closed")(lambda: "hello"))
    app.register_error_handler(503, lambda error: (f"{error.reason.split(':')[0]}: {error.retry_after}", 503))
    answer = app.test_client().get("/x")
    assert (answer.status_code, answer.text.split(": ")[1].isdecimal()) == (503, True)


@pytest.mark.parametrize("status", [400, 401, 413])
def test_request_that_cannot_be_limited_reaches_the_handler_of_its_status(make_app, status):
    app = make_app(user=lambda request: None)
    app.register_error_handler(status, lambda error: (f"mine {error.code}", error.code))
    app.post("/400", endpoint="400")(rate_limit(1, 60, cost=lambda request: int("x"))(lambda: "ok"))
    app.post("/401", endpoint="401")(rate_limit(1, 60, by="user", anonymous="refuse")(lambda: "ok"))
    app.post("/413", endpoint="413")(rate_limit(1, 60, by="json:id")(lambda: "ok"))
    answer = app.test_client().post(f"/{status}", data=b" " * 70_000)
    assert (answer.status_code, answer.text) == (status, f"mine {status}")
