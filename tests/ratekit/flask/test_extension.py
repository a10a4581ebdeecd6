"""RateLimits and install: where arguments come from, what makes no sense, and what is told."""

from __future__ import annotations

import subprocess
import sys

import flask
import pytest

from ratekit import ConfigurationError
from ratekit.flask import RateLimits, install, rate_limit


def test_extension_is_made_first_and_installed_later_in_several_applications():
    limits = RateLimits(store="memory://", default="1/min", headers="x-ratelimit")
    for prefix in ("one", "two"):
        app = flask.Flask(prefix)
        limits.init_app(app, prefix=prefix)
        app.get("/x")(lambda: "ok")
        client = app.test_client()
        assert [client.get("/x").status_code for _ in range(2)] == [200, 429]
        assert client.get("/x").headers["X-RateLimit-Limit"] == "1"


def test_arguments_come_from_the_configuration_and_those_that_are_given_win():
    app = flask.Flask("shop")
    app.config["RATEKIT"] = {"store": "memory://", "default": "1/min", "headers": "none"}
    install(app, default="2/min")
    app.get("/x")(lambda: "ok")
    client = app.test_client()
    answers = [client.get("/x") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert "RateLimit-Limit" not in answers[0].headers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rules": ["/x"]}, "rules ['/x'] is not a dict of URL names and patterns"),
        ({"rules": {"/x": "often"}}, "rules['/x']: rate 'often'"),
        ({"exempt": "static"}, "exempt 'static' is not a list"),
        ({"default": {"limits": "1/min", "bye": "ip"}}, "did you mean 'by'?"),
        ({"identify": "me"}, "identify 'me' is not a callable of the request"),
        ({"user": 7}, "user 7 is not a callable of the request"),
        ({"anonymous": "maybe"}, "anonymous 'maybe' is unknown"),
        ({"mode": "sometimes"}, "'sometimes'"),
        ({"store": "mysql://x"}, "mysql"),
    ],
)
def test_argument_that_makes_no_sense_is_told_when_the_application_is_made(arguments, message):
    with pytest.raises(ConfigurationError) as told:
        install(flask.Flask("shop"), **arguments)
    assert message in str(told.value)


def test_misspelt_argument_is_an_error_that_names_the_right_one():
    with pytest.raises(TypeError, match="did you mean 'identify'"):
        install(flask.Flask("shop"), identifie=lambda request: None)
    with pytest.raises(TypeError, match="did you mean 'store'"):
        RateLimits(stor="memory://")
    app = flask.Flask("shop")
    app.config["RATEKIT"] = {"defualt": "1/min"}
    with pytest.raises(TypeError, match="did you mean 'default'"):
        install(app)


def test_rate_may_stand_first_and_says_all():
    assert rate_limit("5/min").limit == rate_limit(limits="5/min").limit
    with pytest.raises(
        ConfigurationError, match="'5/min' is a rate, which says all that is allowed: give nothing else beside it"
    ):
        rate_limit("5/min", 60)


def test_second_installation_is_an_error(make_app):
    with pytest.raises(ConfigurationError, match="installed in 'shop' already"):
        RateLimits(make_app())


def test_view_of_an_application_without_ratekit_says_what_to_call():
    app = flask.Flask("bare")
    app.testing = True
    app.get("/x")(rate_limit(1, 60)(lambda: "ok"))
    with pytest.raises(ConfigurationError, match=r"not installed in the application 'bare': call ratekit.flask.install"):
        app.test_client().get("/x")


def test_mode_of_the_application_is_weaker_than_on(make_app):
    app = make_app(mode="monitor")
    app.get("/x")(rate_limit(1, 60)(lambda: "ok"))
    client = app.test_client()
    assert [client.get("/x").status_code for _ in range(3)] == [200] * 3


def test_without_flask_the_extra_is_named():
    code = "import sys; sys.modules['flask'] = None\nimport ratekit.flask"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ratekit.flask needs a package that is not installed: pip install 'ratekit[flask]'" in finished.stderr


def test_proxy_that_is_trusted_names_the_client(make_app, keys):
    app = make_app(trusted_hops=1)
    app.get("/x")(rate_limit(1, 60, by="ip")(lambda: "ok"))
    client = app.test_client()
    answers = [client.get("/x", headers={"X-Forwarded-For": address}) for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2")]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
