"""RuleMiddleware, on ASGI and WSGI: which rule, which key, which limits, and what is done with requests that do not say."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from wsgiref.validate import validator

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekit import asgi, wsgi
from ratekit.core import clock
from ratekit.core.errors import ConfigurationError, DocumentError, UnknownLimitsError
from ratekit.rules import Document, Rules
from ratekit.rules.compiled import compile_document
from ratekit.stores.memory import MemoryStore
from ratekit.web.client_address import TrustedProxies
from ratekit.web.requests import AsgiRequest
from support.published_key_parsers import sentiment
from support.rule_documents import ROWS, documents

PARSERS = "support.published_key_parsers"
JSON = {"Content-Type": "application/json"}


async def asgi_app(scope, receive, send):
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": message.get("body", b"")})


def wsgi_app(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]


class AsgiApi:
    def __init__(self, rules, **options) -> None:
        self.store = MemoryStore()
        self.middleware = asgi.RuleMiddleware(asgi_app, rules=rules, store=self.store, **options)

    def ask(self, path="/", method="GET", *, headers=None, content=None, peer="192.0.2.7") -> httpx2.Response:
        async def ask() -> httpx2.Response:
            transport = httpx2.ASGITransport(self.middleware, client=(peer, 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://api.example.com") as client:
                return await client.request(method, path, headers=headers, content=content)

        return asyncio.run(ask())


class WsgiApi(AsgiApi):
    def __init__(self, rules, **options) -> None:
        self.store = MemoryStore()
        self.middleware = wsgi.RuleMiddleware(validator(wsgi_app), rules=rules, store=self.store, **options)

    def ask(self, path="/", method="GET", *, headers=None, content=None, peer="192.0.2.7") -> httpx2.Response:
        transport = httpx2.WSGITransport(validator(self.middleware), remote_addr=peer)
        with httpx2.Client(transport=transport, base_url="http://api.example.com") as client:
            return client.request(method, path, headers=headers, content=content)


@pytest.fixture(params=[AsgiApi, WsgiApi], ids=["asgi", "wsgi"])
def api(request):
    return request.param


def admitted(ask, most=20) -> int:
    """How many requests pass before the first that does not."""
    return next((count for count in range(most) if ask().status_code != 200), most)


def test_first_rule_that_matches_applies(api):
    rules = [
        {"match": {"path": "/health"}, "limits": "unlimited"},
        {"match": {"path": "/v1/*", "method": "POST"}, "limits": "2/min"},
        {"match": {"host": "*.example.com", "headers": {"X-Tier": "gold"}}, "limits": "5/min"},
        {"limits": "3/min"},
    ]
    site = api({"rules": rules})
    assert admitted(lambda: site.ask("/health")) == 20
    assert admitted(lambda: site.ask("/v1/chat", "POST")) == 2
    assert admitted(lambda: site.ask("/a", headers={"X-Tier": "gold"})) == 5
    assert admitted(lambda: site.ask("/v1/chat")) == 3
    refused = site.ask("/v1/chat")
    assert (refused.status_code, refused.headers["RateLimit-Remaining"]) == (429, "0")


def test_all_rules_that_match_apply_where_the_document_says_so(api):
    rules = [{"name": "search", "match": {"path": "/search"}, "limits": "5/min"}, {"name": "all", "limits": "3/min"}]
    site = api({"apply": "all", "rules": rules})
    assert admitted(lambda: site.ask("/search")) == 3
    assert site.ask("/other").status_code == 429
    assert site.ask("/search", peer="192.0.2.9").status_code == 200


def test_custom_limits_are_by_the_key_exact_first_then_the_longest_pattern(api):
    rule = {
        "by": {"tenant": "header:X-Tenant", "lang": "query:lang"},
        "limits": {"rpm": 3},
        "custom": {
            "tenant:acme:lang:en": "5/min",
            "tenant:acme:*": "4/min",
            "tenant:*": "2/min",
            "tenant:free:*": "unlimited",
        },
    }
    site = api({"rules": [rule]})

    def of(tenant, lang):
        return admitted(lambda: site.ask(f"/?lang={lang}", headers={"X-Tenant": tenant}))

    assert [of("acme", "en"), of("acme", "de"), of("other", "en"), of("free", "en")] == [5, 4, 2, 20]
    assert admitted(lambda: site.ask("/")) == 3, "a request that lacks a part is limited by its address"


def test_combination_does_not_let_a_value_stand_for_two(api):
    rule = {"by": {"a": "header:X-A", "b": "header:X-B"}, "limits": "1/min", "plain": True}
    site = api({"rules": [rule]})
    assert site.ask(headers={"X-A": "1:b:2", "X-B": "3"}).status_code == 200
    assert site.ask(headers={"X-A": "1", "X-B": "2:b:3"}).status_code == 200
    assert site.ask(headers={"X-A": "1", "X-B": "2:b:3"}).status_code == 429


def test_what_clients_send_is_hashed_in_keys_unless_the_rule_is_plain(api):
    for plain, is_shown in ((False, False), (True, True)):
        site = api({"rules": [{"by": "header:X-API-Key", "limits": "1/min", "plain": plain}]})
        site.ask(headers={"X-API-Key": "secret"})
        keys = [key.decode() for key in site.store.execute("KEYS", "ratelimit:")]
        assert any("secret" in key for key in keys) is is_shown, keys


@pytest.mark.parametrize(
    ("by", "one", "other"),
    [
        ("json:a.b", {"content": '{"a": {"b": 1}}', "headers": JSON}, {"content": '{"a": {"b": 2}}', "headers": JSON}),
        ("body:email", {"content": "email=a", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
         {"content": '{"email": "b"}', "headers": JSON}),
        ("cookie:sid", {"headers": {"Cookie": "sid=1"}}, {"headers": {"Cookie": "sid=2"}}),
        ("path:tenant", {"path": "/t/a/x"}, {"path": "/t/b/x"}),
        (["header:X-Key", "query:key"], {"path": "/t/a/x?key=1"}, {"headers": {"X-Key": "2"}}),
    ],
)  # fmt: skip
def test_each_part_of_a_request_can_say_who_asks(api, by, one, other):
    site = api({"rules": [{"match": {"path": "/t/{tenant}/x"}, "by": by, "limits": "1/min"}]})
    for asked in (one, other):
        arguments = {"path": "/t/a/x", "method": "POST"} | asked
        assert site.ask(**arguments).status_code == 200
        assert site.ask(**arguments).status_code == 429


def test_everyone_is_one_counter(api):
    site = api({"rules": [{"by": "everyone", "limits": "2/min"}]})
    assert [site.ask(peer=f"192.0.2.{index}").status_code for index in range(3)] == [200, 200, 429]


def test_body_reaches_the_application_after_a_rule_has_read_it(api):
    site = api({"rules": [{"by": "json:id", "limits": "5/min"}]})
    assert site.ask(method="POST", content='{"id": 7}', headers=JSON).text == '{"id": 7}'


def test_cost_is_what_the_request_says(api):
    site = api({"rules": [{"limits": "10/min", "cost": "json:n"}]})
    asked = [site.ask(method="POST", content=json.dumps({"n": n}), headers=JSON).status_code for n in (6, 6, 4, 1)]
    assert asked == [200, 429, 200, 429]
    assert site.ask(method="POST", content='{"n": "many"}', headers=JSON).status_code == 400
    function = api({"rules": [{"limits": "10/min", "cost": f"function:{PARSERS}:size"}]})
    assert [function.ask(headers={"X-Size": "6"}).status_code for _ in range(2)] == [200, 429]


def test_mode_and_on_outage_are_those_of_the_rule_else_of_the_document(api):
    rules = [{"match": {"path": "/m"}, "limits": "1/min", "mode": "monitor"}, {"limits": "1/min", "mode": "off"}]
    site = api({"rules": rules})
    assert [site.ask("/m").headers["RateLimit-Remaining"] for _ in range(2)] == ["0", "0"]
    assert "RateLimit-Limit" not in site.ask("/other").headers
    away = {"rules": [{"match": {"path": "/closed"}, "limits": "1/min", "on_outage": "closed"}, {"limits": "1/min"}]}
    made = api(away)
    dead = type(made.middleware)(made.middleware.app, rules=away, store="redis://127.0.0.1:1")
    made.middleware = dead
    assert (made.ask("/closed").status_code, made.ask("/open").status_code) == (503, 200)


def test_rule_is_in_force_from_and_until_its_time(api, ratekit_clock):
    start = datetime.fromtimestamp(clock.now(), UTC)
    soon, later = (start + timedelta(seconds=seconds) for seconds in (100, 200))
    rules = [
        {"limits": "1/s", "valid_from": soon.isoformat(), "valid_until": later.isoformat()},
        {"limits": "5/s", "overrides": {"ip:192.0.2.7": {"limits": "8/s", "valid_until": soon.isoformat()}}},
    ]
    site = api({"rules": rules})
    assert admitted(site.ask) == 8
    ratekit_clock.advance(150)
    assert admitted(site.ask) == 1
    ratekit_clock.advance(100)
    assert admitted(site.ask) == 5


def test_rule_without_limits_of_its_own_leaves_other_keys_to_the_next(api):
    site = api(ROWS, by=lambda request: request.headers.get("X-Client"))
    asked = {"headers": {"X-Client": "user:9"}}
    assert admitted(lambda: site.ask("/api/v1/search", **asked), 600) == 500, "an override"
    assert admitted(lambda: site.ask("/other", headers={"X-Client": "user:1"})) == 20, "no row is for it"
    assert admitted(lambda: site.ask("/api/v1/search", headers={"X-Client": "user:1"})) == 10


def test_methods_that_are_named_count_apart_and_preflights_too(api):
    site = api(
        {
            "rules": [
                {"match": {"path": "/a", "method": "POST"}, "limits": "1/min"},
                {"match": {"path": "/a"}, "limits": "1/min"},
            ]
        }
    )
    assert [site.ask("/a", method).status_code for method in ("POST", "GET", "OPTIONS", "PUT")] == [200, 200, 200, 429]


# Functions


def test_published_key_parsers_work_as_they_are_written(api):
    document = {
        "general_rate_limit": {"rpm": 3},
        "custom_rate_limits": {"apiKey:premium-tier": {"rpm": 5}, "tenant:a:lang:en": {"rpm": 2}},
    }
    site = api(document, by=sentiment, service="sentiment")
    body = json.dumps({"tenant_id": "a", "language": "en"})
    assert admitted(lambda: site.ask(headers={"X-API-Key": "premium-tier"})) == 5
    assert admitted(lambda: site.ask(method="POST", content=body, headers=JSON)) == 2
    assert admitted(lambda: site.ask(headers={"user_id": "7"})) == 3
    assert admitted(site.ask) == 3
    images = api({"rules": [{"by": f"function:{PARSERS}:image_recognition", "limits": "1/min"}]})
    for values in ({}, {"model_version": "v2"}, {"hd_mode": True}):
        asked = {"method": "POST", "content": json.dumps(values), "headers": JSON}
        assert [images.ask(**asked).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("anonymous", "statuses"), [(None, [200, 429]), ("ip", [200, 429]), ("pass", [200, 200]), ("refuse", [401, 401])]
)
def test_key_function_that_raises_is_handled_as_the_rule_says(api, anonymous, statuses, caplog):
    rule = {"by": f"function:{PARSERS}:raising", "limits": "1/min"} | ({"anonymous": anonymous} if anonymous else {})
    site = api({"rules": [rule]})
    assert [site.ask().status_code for _ in range(2)] == statuses


@pytest.mark.parametrize(("anonymous", "status"), [(None, 413), ("ip", 200), ("pass", 200), ("refuse", 401)])
def test_body_over_its_bound_is_handled_as_the_rule_says(api, anonymous, status):
    rule = {"by": "json:id", "limits": "1/min"} | ({"anonymous": anonymous} if anonymous else {})
    content = json.dumps({"id": 1, "more": "x" * 100_000})
    assert api({"rules": [rule]}).ask(method="POST", content=content, headers=JSON).status_code == status


def test_function_that_is_awaited_is_awaited():
    site = AsgiApi({"rules": [{"by": f"function:{PARSERS}:awaited", "limits": "1/min"}]})
    assert [site.ask(headers={"X-User": user}).status_code for user in "aab"] == [200, 429, 200]


@pytest.mark.parametrize("name", ["no.such:thing", "os:no_such", "os:sep"])
def test_function_that_is_not_there_refuses_the_document(name):
    with pytest.raises(DocumentError, match=r"rules\[0\]: the function"):
        Rules({"rules": [{"limits": "1/s", "by": f"function:{name}"}]})


# Changes and hostile requests


def test_change_of_the_rules_is_in_force_for_the_next_request(api, tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nlimits = "1/min"\n')
    rules = Rules.load(path)
    site = api(rules)
    assert [site.ask().status_code for _ in range(2)] == [200, 429]
    path.write_text('[[rules]]\nlimits = "3/min"\n')
    rules.refresh()
    assert [site.ask().status_code for _ in range(3)] == [200, 200, 429], "one was spent before"
    rules.close()


scopes = st.fixed_dictionaries(
    {
        "type": st.just("http"),
        "method": st.text(max_size=8),
        "path": st.text(max_size=40),
        "query_string": st.binary(max_size=20),
        "headers": st.lists(
            st.tuples(
                st.sampled_from([b"host", b"x-tier", b"cookie", b"content-type"]) | st.binary(max_size=5),
                st.binary(max_size=12),
            ),
            max_size=4,
        ),
        "client": st.sampled_from([None, ("192.0.2.7", 1), ("", 0), ("not an address", 1)]),
    }
)


@settings(max_examples=300)
@given(values=documents, scope=scopes)
def test_no_request_makes_matching_raise(values, scope):
    compiled = compile_document(Document.parse(values))
    request = AsgiRequest(scope, TrustedProxies())
    for rule in compiled.find(request):
        assert rule in compiled.rules or rule.qualifier == "options"


@pytest.mark.parametrize("api", [AsgiApi, WsgiApi])
@pytest.mark.parametrize("exempt", [["/health"], ["/health", "10.0.0.0/8"]])
def test_a_path_that_is_exempt_is_not_limited_by_a_document(api, exempt):
    api = api({"rules": [{"limits": ["2/min"]}]}, exempt=exempt)
    assert [api.ask("/other").status_code for _ in range(3)] == [200, 200, 429]
    assert [api.ask("/health").status_code for _ in range(3)] == [200, 200, 200]


@pytest.mark.parametrize("api", [AsgiApi, WsgiApi])
@pytest.mark.parametrize("limit", ["address_limit", "attempt_limit"])
def test_limits_by_address_count_what_no_rule_of_a_document_fits(api, limit):
    rules = {"rules": [{"match": {"endpoint": "/search"}, "limits": ["9/min"]}]}
    api = api(rules, exempt=["/health"], **{limit: "3/min"})
    paths = ("/other", "/search", "/other", "/other", "/search")
    assert [api.ask(path).status_code for path in paths] == [200, 200, 200, 429, 429]
    assert api.ask("/health").status_code == 200


@pytest.mark.parametrize("host", ["api.example.com", "API.example.com.", "api.example.com.:80", "api.example.com:"])
def test_a_host_is_the_same_however_it_is_spelt(host):
    api = AsgiApi({"rules": [{"match": {"host": ["api.example.com"]}, "limits": ["1/min"]}]})
    assert [api.ask(headers={"Host": host}).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("hosts", [["other", "api.example.com"], ["api.example.com", "other"], ["other, api.example.com"]])
def test_a_second_host_does_not_hide_the_first(hosts):
    api = AsgiApi({"rules": [{"match": {"host": ["*.example.com"]}, "limits": ["1/min"]}]})
    headers = [("Host", host) for host in hosts]
    assert [api.ask(headers=headers).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("lines", [["a", "b"], [""], ["", "a"]])
def test_a_header_that_has_to_be_there_is_there_whatever_it_says(lines):
    api = AsgiApi({"rules": [{"match": {"headers": {"X-API-Key": "*"}}, "limits": ["1/min"]}]})
    headers = [("X-API-Key", line) for line in lines]
    assert [api.ask(headers=headers).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("api", [AsgiApi, WsgiApi])
@pytest.mark.parametrize(
    ("cost", "sent"),
    [
        ("header:X-Cost", {"headers": {"X-Cost": "0"}}),
        ("header:X-Cost", {"headers": {"X-Cost": "00"}}),
        ("json:n", {"headers": JSON, "content": b'{"n": 0}'}),
        ("json:n", {"headers": JSON, "content": b'{"n": "0"}'}),
    ],
)
def test_a_client_cannot_say_that_its_request_costs_nothing(api, cost, sent):
    api = api({"rules": [{"limits": ["2/min"], "cost": cost}]})
    assert [api.ask(method="POST", **sent).status_code for _ in range(3)] == [200, 200, 429]


PLANNED = {"plans": {"free": "1/min", "pro": "2/min", "staff": "unlimited"}, "rules": [{"limits": "plan", "by": "ip"}]}


def plan_of(request):
    return request.header("x-plan")


def by_plan(made, plan, times):
    return [
        made.ask(headers={"X-Plan": plan} if plan else {}, peer=f"192.0.2.{len(plan)}").status_code for _ in range(times)
    ]


def test_limits_are_those_of_the_plan_that_plan_of_names(api):
    made = api(PLANNED, plan_of=plan_of)
    assert by_plan(made, "free", 2) == [200, 429]
    assert by_plan(made, "pro", 3) == [200, 200, 429]
    assert by_plan(made, "staff", 3) == by_plan(made, "", 3) == [200, 200, 200]
    with pytest.raises(UnknownLimitsError, match="'gold' is no plan: the plans are free, pro, staff"):
        made.ask(headers={"X-Plan": "gold"})


def test_plan_is_asked_for_some_keys_alone(api):
    rule = {"limits": "1/min", "by": {"user": "header:x-user"}, "custom": {"user:paid-*": "plan"}}
    made = api(PLANNED | {"rules": [rule]}, plan_of=plan_of)
    asked = [made.ask(headers={"X-User": user, "X-Plan": "pro"}).status_code for user in ["a", "a", *["paid-b"] * 3]]
    assert asked == [200, 429, 200, 200, 429]


def test_document_that_asks_for_plans_is_refused_without_plan_of(api, tmp_path):
    with pytest.raises(DocumentError, match=r"rules\[0\]: limits 'plan' needs plan_of"):
        api(PLANNED)
    with pytest.raises(ConfigurationError, match="limits 'plan' needs plan_of"):
        api(Rules(PLANNED))
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"rules": [{"limits": "1/min"}]}))
    for rules in (str(file), Rules(str(file))):
        made = api(rules)
        file.write_text(json.dumps(PLANNED))
        status = made.middleware.rules.refresh()
        assert "limits 'plan' needs plan_of" in status.trouble
        assert made.ask().status_code == 200
        assert made.ask().status_code == 429  # the old rules stay
        made.middleware.rules.close()
        file.write_text(json.dumps({"rules": [{"limits": "1/min"}]}))


def test_charges_of_every_plan_are_checked_before_a_request(api):
    planned = {"plans": {"a": "9/s", "b": "9 tokens/s"}, "rules": [{"limits": "plan"}]}
    with pytest.raises(DocumentError, match=r"rules\[0\]: .*tokens"):
        api(planned, plan_of=plan_of)
