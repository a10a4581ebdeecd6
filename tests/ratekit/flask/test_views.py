"""rate_limit on view functions, blueprints and class views; rules; what counts where."""

from __future__ import annotations

import asyncio

import flask
import pytest
from flask.views import MethodView, View

from ratekit import ConfigurationError
from ratekit.flask import apply_element_rate_limit, apply_rate_limit, rate_limit
from support.mode_table import TABLE, Answer, assert_row, recorded_spans, root_span


def statuses(client, path, times, method="get", **options):
    return [getattr(client, method)(path, **options).status_code for _ in range(times)]


@pytest.mark.parametrize("mode", TABLE)
def test_mode_does_what_its_row_says(make_app, monkeypatch, ratekit_clock, mode):
    app = make_app()
    app.get("/x")(rate_limit(1, 60, by="ip")(lambda: "hello"))
    client = app.test_client()
    monkeypatch.setenv("RATE_LIMIT_MODE", mode)
    answers = []
    with recorded_spans() as spans:
        for _ in range(3):
            with root_span():
                answers.append(Answer.of(client.get("/x")))
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")  # between two requests, with no restart
    refused = client.get("/x").status_code == 429
    assert refused is TABLE[mode].counts
    assert_row(mode, "/x", answers, spans, used=int(refused))


def test_endpoint_is_the_url_rule(make_app, keys):
    app = make_app()
    app.get("/items/<int:item_id>")(rate_limit(2, 60)(lambda item_id: str(item_id)))
    assert [app.test_client().get(f"/items/{number}").status_code for number in (1, 2, 3)] == [200, 200, 429]
    assert keys() == ["ratelimit:/items/<int:item_id>:{ip:127.0.0.1}:60s"]


def test_methods_of_one_path_count_apart_as_their_routes_declare_them(make_app, keys):
    app = make_app()
    app.get("/x")(rate_limit(1, 60)(lambda: "read"))
    app.post("/x", endpoint="write")(rate_limit(2, 60)(lambda: "written"))
    client = app.test_client()
    assert statuses(client, "/x", 2) == [200, 429]
    assert statuses(client, "/x", 3, "post") == [200, 200, 429]
    assert statuses(client, "/x", 1, "head") == [429]  # it counts as GET
    assert statuses(client, "/x", 3, "options") == [200] * 3  # Flask answers these itself
    assert [key.rpartition(":")[2] for key in keys()] == ["60s", "post-60s"]


def test_async_view_is_limited_and_awaited(make_app):
    app = make_app()

    @app.get("/x")
    @rate_limit(1, 60)
    async def view():
        await asyncio.sleep(0)
        return "awaited"

    client = app.test_client()
    assert client.get("/x").text == "awaited"
    assert client.get("/x").status_code == 429


def test_limits_of_a_blueprint_count_each_route_by_itself(make_app, keys):
    app = make_app()
    shop = flask.Blueprint("shop", "shop")
    assert rate_limit(2, 60)(rate_limit(limits="100/h")(shop)) is shop
    shop.get("/a")(lambda: "a")
    shop.get("/b", endpoint="b")(lambda: "b")
    inner = flask.Blueprint("inner", "shop")
    inner.get("/c")(lambda: "c")
    shop.register_blueprint(inner)
    app.register_blueprint(shop)
    client = app.test_client()
    assert [statuses(client, path, 3) for path in ("/a", "/b", "/c")] == [[200, 200, 429]] * 3
    assert len(keys()) == 6


def test_blueprint_with_an_endpoint_is_counted_together(make_app, keys):
    app = make_app()
    shop = rate_limit(2, 60, endpoint="shop")(flask.Blueprint("shop", "shop"))
    shop.get("/a")(lambda: "a")
    shop.get("/b", endpoint="b")(lambda: "b")
    app.register_blueprint(shop)
    client = app.test_client()
    assert [client.get(path).status_code for path in ("/a", "/b", "/a")] == [200, 200, 429]
    assert keys() == ["ratelimit:shop:{ip:127.0.0.1}:60s"]


def test_method_of_a_class_view_has_a_counter_of_its_own(make_app):
    class Cart(MethodView):
        @rate_limit(1, 60)
        def get(self):
            return "cart"

        @rate_limit(2, 60)
        async def post(self):
            return "added"

    app = make_app()
    app.add_url_rule("/cart", view_func=Cart.as_view("cart"))
    client = app.test_client()
    assert statuses(client, "/cart", 2) == [200, 429]
    assert statuses(client, "/cart", 3, "post") == [200, 200, 429]


@pytest.mark.parametrize("base", [View, MethodView])
def test_class_view_is_limited_by_its_decorators(make_app, base):
    class Search(base):
        decorators = (rate_limit(1, 60),)

        def dispatch_request(self):
            return "found"

        get = dispatch_request

    app = make_app()
    app.add_url_rule("/search", view_func=Search.as_view("search"))
    assert statuses(app.test_client(), "/search", 2) == [200, 429]


def test_class_cannot_be_decorated():
    with pytest.raises(ConfigurationError, match="cannot decorate the class .*Search: put it into its list `decorators`"):
        rate_limit(1, 60)(type("Search", (View,), {}))


def test_rules_limit_routes_by_pattern_and_by_endpoint_without_touching_a_view(make_app):
    rules = {"POST /login": "1/min", "shop.*": {"limits": "2/min", "by": "endpoint"}}
    app = make_app(rules=rules, default="3/min", exempt=["health", "static"])
    app.route("/login", methods=["GET", "POST"])(lambda: "login")
    app.get("/health", endpoint="health")(lambda: "ok")
    shop = flask.Blueprint("shop", "shop")
    shop.get("/shop")(lambda: "shop")
    app.register_blueprint(shop)
    client = app.test_client()
    assert statuses(client, "/login", 2, "post") == [200, 429]
    assert statuses(client, "/shop", 3) == [200, 200, 429]
    assert statuses(client, "/health", 5) == [200] * 5
    assert statuses(client, "/login", 2) + statuses(client, "/nowhere", 2) == [200, 200, 404, 429]  # one default for all


def test_callables_say_who_and_how_much_and_may_be_async(make_app):
    app = make_app()

    async def who(request):
        return request.headers.get("X-User")

    app.get("/x")(rate_limit(10, 60, by=who, cost=lambda request: int(request.args["n"]))(lambda: "ok"))
    client = app.test_client()
    answers = [client.get(f"/x?n={cost}", headers={"X-User": user}) for user, cost in [("ann", 6), ("ann", 6), ("bob", 10)]]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert client.get("/x?n=many", headers={"X-User": "eve"}).status_code == 400
    assert statuses(client, "/x?n=10", 3) == [200] * 3  # who answers None: not limited


def test_project_is_limited_where_identify_names_one_and_else_the_address(make_app, keys):
    app = make_app(identify=lambda request: ("acme", 42) if "X-Key" in request.headers else None)
    app.get("/x")(rate_limit(1, 60)(lambda: "ok"))
    client = app.test_client()
    assert statuses(client, "/x", 2, headers={"X-Key": "k"}) == [200, 429]
    assert statuses(client, "/x", 2) == [200, 429]
    assert [key.split("{")[1] for key in keys()] == ["acme:42}:60s", "ip:127.0.0.1}:60s"]


def test_project_in_g_counts_where_identify_is_not_given(make_app, keys):
    app = make_app()

    @app.before_request
    def authenticate():
        flask.g.org_id, flask.g.project_id = 1, 42

    app.get("/x")(rate_limit(1, 60)(lambda: "ok"))
    assert statuses(app.test_client(), "/x", 2) == [200, 429]
    assert keys() == ["ratelimit:/x:{1:42}:60s"]


def test_user_of_flask_login_is_limited(make_app, keys):
    login = pytest.importorskip("flask_login", reason="no flask-login: run make dev")
    app = make_app()
    app.secret_key = "secret"
    manager = login.LoginManager(app)

    @manager.request_loader
    def load(request):
        user = login.UserMixin()
        user.id = request.headers.get("X-User")
        return user if user.id else None

    app.get("/x")(rate_limit(1, 60, by="user", anonymous="refuse")(lambda: "ok"))
    client = app.test_client()
    assert statuses(client, "/x", 2, headers={"X-User": "7"}) == [200, 429]
    assert statuses(client, "/x", 1) == [401]
    assert keys() == ["ratelimit:/x:{user:7}:60s"]


def test_user_is_what_the_application_says(make_app, keys):
    app = make_app(user=lambda request: request.headers.get("X-User"))
    app.get("/x")(rate_limit(1, 60, by="user")(lambda: "ok"))
    assert statuses(app.test_client(), "/x", 2, headers={"X-User": "7"}) == [200, 429]
    assert keys() == ["ratelimit:/x:{user:7}:60s"]


def test_by_user_without_a_way_to_know_is_an_error_that_says_so(make_app):
    app = make_app()
    app.testing = True
    app.get("/x")(rate_limit(1, 60, by="user")(lambda: "ok"))
    with pytest.raises(ConfigurationError, match="use Flask-Login, or give user= to install"):
        app.test_client().get("/x")


def test_form_that_a_limit_has_read_is_there_for_the_view(make_app):
    app = make_app()
    app.post("/login")(rate_limit(1, 60, by="form:email")(lambda: flask.request.form["email"]))
    app.post("/raw", endpoint="raw")(rate_limit(1, 60, by="json:id")(lambda: flask.request.stream.read()))
    client = app.test_client()
    answers = [client.post("/login", data={"email": email}) for email in ("a@b.c", "A@B.C ", "d@e.f")]
    assert [answer.status_code for answer in answers] == [200, 429, 200]
    assert answers[0].text == "a@b.c"
    assert client.post("/raw", data='{"id": 7}').text == '{"id": 7}'


def test_body_that_was_read_before_is_limited_too(make_app):
    app = make_app()
    app.before_request(lambda: (flask.request.get_data(), None)[1])
    app.post("/x")(rate_limit(1, 60, by="json:id")(lambda: flask.request.json))
    client = app.test_client()
    assert [client.post("/x", json={"id": who}).status_code for who in (1, 1, 2)] == [200, 429, 200]


def test_form_that_was_parsed_before_is_limited_too(make_app):
    app = make_app()
    app.before_request(lambda: (flask.request.form, None)[1])
    app.post("/x")(rate_limit(1, 60, by="form:id")(lambda: flask.request.form["id"]))
    client = app.test_client()
    assert [client.post("/x", data={"id": who}).status_code for who in (1, 1, 2)] == [200, 429, 200]


def test_body_that_is_too_long_to_look_into_is_a_413(make_app):
    app = make_app()
    app.post("/x")(rate_limit(1, 60, by="json:id")(lambda: "ok"))
    assert app.test_client().post("/x", data=b" " * 70_000).status_code == 413


def test_limit_from_within_a_view_costs_what_the_view_says(make_app, keys):
    app = make_app()

    @app.post("/matrix")
    def matrix():
        rows, columns = flask.request.json
        apply_rate_limit(max_requests=10, expiry=60)
        result = apply_element_rate_limit(max_requests=100, expiry=60, increment_amount=rows * columns, subject="org:7")
        return str(result.remaining)

    client = app.test_client()
    assert [client.post("/matrix", json=[10, 5]).text for _ in range(2)] == ["50", "0"]
    assert client.post("/matrix", json=[1, 1]).status_code == 429
    assert {key.partition(":{")[0] for key in keys()} == {"ratelimit:/matrix", "ratelimit:/matrix:/elements"}


def test_results_are_in_g_even_where_g_outlives_the_request(make_app):
    app = make_app()
    app.get("/x")(rate_limit(5, 60)(lambda: str([result.remaining for result in flask.g.ratekit.results])))
    with app.app_context():  # one g for both requests
        assert [app.test_client().get("/x").text for _ in range(2)] == ["[4]", "[3]"]
