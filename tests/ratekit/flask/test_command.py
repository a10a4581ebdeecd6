"""`flask ratekit`: the limits of the application, and the command line on its store."""

from __future__ import annotations

import flask
import pytest
from flask.views import MethodView

from ratekit.flask import install, rate_limit


class Cart(MethodView):
    @rate_limit(limits="30/min", by="ip")
    def get(self):
        return "cart"

    @rate_limit(limits="10/min", by="header:X-User")
    def post(self):
        return "added"


@pytest.fixture
def app(redis_server):
    app = flask.Flask("shop")
    url = f"{redis_server.url}?socket_timeout=5&socket_connect_timeout=5"
    install(app, store=url, prefix="shop", rules={"POST /login": "5/min"}, default="100/min", exempt=["health", "static"])
    app.get("/search")(rate_limit(limits=["2/s", "60/min"], by="ip")(lambda: "found"))
    app.post("/login", endpoint="login")(lambda: "in")
    app.get("/health", endpoint="health")(lambda: "ok")
    books = rate_limit(1000, 3600, endpoint="books")(flask.Blueprint("books", "shop"))
    books.get("/books/<int:number>")(lambda number: "book")
    app.register_blueprint(books)
    app.add_url_rule("/cart", view_func=Cart.as_view("cart"))
    return app


def run(app, *arguments):
    return app.test_cli_runner().invoke(args=["ratekit", *arguments])


def test_limits_are_listed_with_who_and_where(app):
    lines = [line.split() for line in run(app, "limits").output.splitlines()]
    assert lines == [
        ["ROUTE", "METHODS", "LIMITS", "BY", "COUNTED", "UNDER", "DECLARED", "BY"],
        ["/books/<int:number>", "GET", "100/min", "client_ip", "default", "default"],
        ["/books/<int:number>", "GET", "1000/h", "project", "books", "blueprint", "books"],
        ["/cart", "GET", "POST", "100/min", "client_ip", "default", "default"],
        ["/cart", "GET", "30/min", "client_ip", "/cart", "Cart.get"],
        ["/cart", "POST", "post-60s=10/min", "header:x-user", "/cart", "Cart.post"],
        ["/login", "POST", "post-60s=5/min", "client_ip", "/login", "rules"],
        ["/search", "GET", "100/min", "client_ip", "default", "default"],
        ["/search", "GET", "2/s,", "60/min", "client_ip", "/search", "view"],
    ]


def test_application_without_limits_says_so():
    app = flask.Flask("bare")
    install(app)
    assert run(app, "limits").output == "bare declares no limits\n"


def test_other_commands_know_store_prefix_and_limits_of_the_application(app):
    client = app.test_client()
    client.get("/search")
    told = run(app, "inspect", "/search", "ip:127.0.0.1").output
    assert "1s (2/s): 1 of 2 used" in told
    assert "60s (60/min): 1 of 60 used" in told
    assert run(app, "overrides", "set", "/search", "ip:127.0.0.1", "--limit", "60s", "--max-requests", "1").exit_code == 0
    assert client.get("/search").status_code == 429


def test_wrong_command_ends_with_the_code_of_ratekit(app):
    assert run(app, "limitz").exit_code == 2
    assert "limits" in run(app, "--help").output


def test_rule_for_one_method_leaves_the_others_to_the_default():
    app = flask.Flask("both")
    install(app, rules={"POST /x": "5/min"}, default="100/min", exempt=[])
    app.add_url_rule("/x", "x", lambda: "", methods=["GET", "POST"])
    lines = [line.split() for line in run(app, "limits").output.splitlines()]
    assert ["/x", "GET", "100/min", "client_ip", "default", "default"] in lines
    assert ["/x", "POST", "post-60s=5/min", "client_ip", "/x", "rules"] in lines


def test_route_or_name_stands_for_what_its_limits_count_under(app):
    client = app.test_client()
    assert [client.get("/books/1").status_code for _ in range(2)] == [200, 200]
    for asked in ("/books/<int:number>", "books.<lambda>"):
        told = run(app, "explain", asked, "ip:127.0.0.1").output
        assert "on default: a request that costs 1 passes" in told, told


def test_override_for_an_endpoint_that_nothing_limits_is_refused_unless_it_is_forced(app):
    words = ("overrides", "set", "/serach", "ip:127.0.0.1", "--max-requests", "5")
    told = run(app, *words)
    assert (told.exit_code, "no limit is declared for the endpoint '/serach'" in told.output) == (2, True)
    told = run(app, *words, "--force")
    assert (told.exit_code, "warning: no limit is declared for the endpoint '/serach'" in told.output) == (0, True)
    told = run(app, "overrides", "set", "/search", "ip:1", "--limit", "mnth", "--max-requests", "5")
    assert (told.exit_code, "limit 'mnth' is not one of" in told.output) == (2, True)
    assert "no limit is declared" not in run(app, "overrides", "set", "/search", "ip:1", "--max-requests", "5").output
    assert "no limit is declared" not in run(app, "overrides", "set", "*", "ip:1", "--max-requests", "5").output


def test_limit_of_an_override_may_be_given_by_its_title(app):
    words = ("/cart", "header:x-user:0123456789abcdef0123456789abcdef", "--limit", "post minute")
    assert "post-60s: max_requests 7" in run(app, "overrides", "set", *words, "--max-requests", "7").output
    assert run(app, "overrides", "set", "/search", "ip:1", "--limit=minute", "--max-requests", "7").exit_code == 0
    assert "60s: max_requests 7" in run(app, "overrides", "get", "/search", "ip:1").output
    assert run(app, "overrides", "delete", "/search", "ip:1", "--limit", "minute").output == "deleted\n"


def test_override_for_a_route_that_is_counted_under_another_name_is_refused(app):
    told = run(app, "overrides", "set", "/health", "ip:1", "--max-requests", "5").output
    assert "no limit is declared for the endpoint '/health'" in told
    app.get("/terms", endpoint="terms")(lambda: "")
    told = run(app, "overrides", "set", "/terms", "ip:1", "--max-requests", "5").output
    assert "the limits of '/terms' are counted under 'default'" in told
    assert "counted under" not in run(app, "overrides", "set", "/login", "ip:1", "--max-requests", "5").output
