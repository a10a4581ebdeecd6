"""What the ASGI and the WSGI middleware do alike, run on both: headers, refusals, modes, outages, bad input."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
import warnings
from types import ModuleType, SimpleNamespace
from wsgiref.validate import validator

import http_sf
import httpx2
import pytest

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, RateLimitMode, asgi, wsgi
from ratekit.core.errors import RateLimitUnavailable, UnusableRequestError, WrongTypeError
from ratekit.core.headers import QUOTA_EXCEEDED, REDUCED_CAPACITY
from ratekit.overrides import set_rate_limit_override
from ratekit.stores.memory import MemoryStore
from ratekit.web.answers import ResponseWriter, unavailable, unusable
from ratekit.web.arguments import checked_cost, cost_of, current_mode
from ratekit.web.client_address import TrustedProxies
from ratekit.web.drivers import run
from ratekit.web.identity import client_ip, first_of, form_field, header, json_field
from ratekit.web.options import MiddlewareOptions, UnverifiedIdentityWarning
from ratekit.web.requests import AsgiRequest
from support.servers import free_port

ONE_SLOT = Limit(1, 60, algorithm="concurrency", name="slots")
JSON = {"Content-Type": "application/json"}
CHAIN = first_of(header("X-API-Key"), header("X-User-Id"), client_ip())


class Boom(Exception):
    pass


async def asgi_echo(scope, receive, send):
    """Answer with the body that was sent; "/boom" raises, "/429" is a refusal of the application's own."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/boom":
        raise Boom
    headers = [(b"content-type", b"text/plain"), (b"ratelimit-limit", b"theirs"), (b"x-app", b"1")]
    await send({"type": "http.response.start", "status": 429 if scope["path"] == "/429" else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body[:10], "more_body": True})
    await send({"type": "http.response.body", "body": body[10:]})


def wsgi_echo(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if environ["PATH_INFO"] == "/boom":
        raise Boom
    status = "429 Too Many Requests" if environ["PATH_INFO"] == "/429" else "200 OK"
    start_response(status, [("Content-Type", "text/plain"), ("RateLimit-Limit", "theirs"), ("X-App", "1")])
    return [body[:10], body[10:]]


class AsgiApi:
    """An application behind one or several middlewares, and a client of it."""

    def __init__(self, *options: dict) -> None:
        self.app = asgi_echo
        for each in options:
            self.app = asgi.RateLimitMiddleware(self.app, **each)

    def ask(self, path="/", method="GET", *, headers=None, content=None, peer="192.0.2.7") -> httpx2.Response:
        async def ask() -> httpx2.Response:
            transport = httpx2.ASGITransport(self.app, client=(peer, 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
                return await client.request(method, path, headers=headers, content=content)

        return asyncio.run(ask())


class WsgiApi:
    """The same, with the standard library's validator on both sides of each middleware."""

    def __init__(self, *options: dict) -> None:
        self.app = validator(wsgi_echo)
        for each in options:
            self.app = validator(wsgi.RateLimitMiddleware(self.app, **each))

    def ask(self, path="/", method="GET", *, headers=None, content=None, peer="192.0.2.7") -> httpx2.Response:
        transport = httpx2.WSGITransport(self.app, remote_addr=peer)
        with httpx2.Client(transport=transport, base_url="http://api") as client:
            return client.request(method, path, headers=headers, content=content)


@pytest.fixture(params=[AsgiApi, WsgiApi], ids=["asgi", "wsgi"])
def api_of(request, ratekit_store):
    """Make an API of the options of its middlewares, from the inside out, on the empty memory://."""
    return request.param


@pytest.fixture(params=[asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware], ids=["asgi", "wsgi"])
def middleware(request):
    return request.param


def limit_headers(response: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if "ratelimit" in name or name == "retry-after"}


def statuses(api, number: int, path="/", **options) -> list[int]:
    return [api.ask(path, **options).status_code for _ in range(number)]


def is_problem(response: httpx2.Response, status: int) -> bool:
    body = response.json()
    kind = response.headers["content-type"]
    return response.status_code == body["status"] == status and kind == "application/problem+json" and bool(body["title"])


def test_admitted_request_has_headers_and_the_application_s_answer(api_of, ratekit_clock):
    response = api_of({"default": "3/min"}).ask(method="POST", content=b"0123456789 and more")
    assert response.status_code == 200
    assert response.text == "0123456789 and more"
    assert response.headers["x-app"] == "1"
    assert limit_headers(response) == {"ratelimit-limit": "3", "ratelimit-remaining": "2", "ratelimit-reset": "60"}


def test_header_of_the_same_name_is_replaced_not_doubled(api_of):
    response = api_of({"default": "3/min"}).ask()
    assert response.headers.get_list("ratelimit-limit") == ["3"]


def test_refusal_is_a_429_with_headers_and_a_problem(api_of, ratekit_clock):
    api = api_of({"default": Policy("all", Limit(2, 60, name="minute"))})
    assert statuses(api, 2) == [200, 200]
    ratekit_clock.advance(12.5)
    response = api.ask()
    assert is_problem(response, 429)
    assert response.reason_phrase == "Too Many Requests"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["content-length"] == str(len(response.content))
    assert response.json()["type"] == QUOTA_EXCEEDED
    assert response.json()["violated-policies"] == ["minute"]
    assert limit_headers(response) == {
        "ratelimit-limit": "2",
        "ratelimit-remaining": "0",
        "ratelimit-reset": "48",
        "retry-after": "48",
    }


def test_request_passes_again_after_retry_after(api_of, ratekit_clock):
    api = api_of({"default": "1/min"})
    assert statuses(api, 2) == [200, 429]
    ratekit_clock.advance(int(api.ask().headers["retry-after"]))
    assert api.ask().status_code == 200


def test_refusal_spends_nothing(api_of, ratekit_store):
    api = api_of({"default": "2/min"})
    assert statuses(api, 10) == [200] * 2 + [429] * 8
    seen = RateLimiter(ratekit_store).peek(Policy("p", "2/min"), "ip:192.0.2.7", endpoint="default")
    assert seen.request_count == 2


def test_addresses_have_counters_of_their_own(api_of):
    api = api_of({"default": "1/min"})
    assert statuses(api, 2) == [200, 429]
    assert statuses(api, 2, peer="192.0.2.8") == [200, 429]
    assert statuses(api, 2, peer="2001:db8::1") == [200, 429]
    assert api.ask(peer="2001:db8::2").status_code == 429


def test_client_cannot_choose_its_address(api_of):
    api = api_of({"default": "1/min"})
    for index in range(3):
        spoofed = {"X-Forwarded-For": f"6.6.6.{index}", "Forwarded": f"for=6.6.6.{index}", "X-Real-IP": f"6.6.6.{index}"}
        assert api.ask(headers=spoofed).status_code == (429 if index else 200)


def test_trusted_hops_tell_clients_behind_a_proxy_apart(api_of):
    api = api_of({"default": "1/min", "trusted_hops": 1})
    for index in range(3):
        assert api.ask(headers={"X-Forwarded-For": f"6.6.6.6, 203.0.113.{index}"}).status_code == 200
    assert api.ask(headers={"X-Forwarded-For": "7.7.7.7, 203.0.113.1"}).status_code == 429
    assert statuses(api, 2, headers={"X-Forwarded-For": "garbage"}) == [200, 429]


def test_trusted_header_may_be_forwarded(api_of):
    api = api_of({"default": "1/min", "trusted_hops": ["192.0.2.0/24"], "trusted_header": "Forwarded"})
    assert statuses(api, 2, headers={"Forwarded": 'for="[2001:db8::1]:5"'}) == [200, 429]
    assert api.ask(headers={"Forwarded": "for=203.0.113.9"}).status_code == 200


def test_rules_have_counters_of_their_own(api_of):
    api = api_of({"default": "1/min", "rules": {"/search": "2/min", "POST /items/{id}": "1/min"}})
    assert statuses(api, 3, "/search") == [200, 200, 429]
    assert statuses(api, 2, "/other") == [200, 429]
    assert api.ask("/another").status_code == 429
    assert [api.ask(f"/items/{index}", "POST").status_code for index in range(2)] == [200, 429]


def test_slashes_do_not_evade_a_rule(api_of):
    api = api_of({"default": None, "rules": {"/search": "1/min"}})
    paths = ["/search", "/search/", "//search", "/search//", "///search"]
    assert [api.ask(f"http://api{path}").status_code for path in paths] == [200, 429, 429, 429, 429]


def test_several_limits_are_decided_together(api_of, ratekit_clock):
    api = api_of({"default": ["2/s", "3/min"]})
    assert statuses(api, 3) == [200, 200, 429]
    ratekit_clock.advance(1)
    assert statuses(api, 2) == [200, 429]


@pytest.mark.parametrize("seconds", [0, 0.98, 1.5])
@pytest.mark.parametrize("inner_store", ["memory://", "memory://inner"])
def test_refused_request_gives_back_to_the_window_that_it_was_charged_in_only(api_of, ratekit_clock, inner_store, seconds):
    """Of a request that was in the application when the outer window ended, nothing is given back to the next one."""
    delays: list[float] = []

    def slowly(request):
        for delay in delays:
            ratekit_clock.advance(delay)
            other = threading.Thread(target=api.ask, args=("/other",))
            other.start()
            other.join()
        return "someone"

    inner = {"store": inner_store, "default": None, "rules": {"/slow": "1/h"}, "by": slowly}
    api = api_of(inner, {"default": "5/s"})
    api.ask("/slow")
    ratekit_clock.advance(10)
    delays.append(seconds)
    assert api.ask("/slow").status_code == 429
    delays.clear()
    assert api.ask("/other").headers["ratelimit-remaining"] == "3"  # that of the other request, and its own


def test_what_no_rule_limits_passes_untouched(api_of, ratekit_store):
    response = api_of({"default": None, "rules": {"/search": "1/min"}}).ask("/other")
    assert limit_headers(response) == {"ratelimit-limit": "theirs"}
    assert len(ratekit_store) == 0


def test_exempt_path_passes_untouched(api_of, ratekit_store):
    api = api_of({"default": "1/min", "exempt": ["/health", "/static/*"]})
    for path in ("/health", "/static/a/b.css", "/health/"):
        assert statuses(api, 3, path) == [200] * 3
        assert limit_headers(api.ask(path)) == {"ratelimit-limit": "theirs"}
    assert len(ratekit_store) == 0


def test_preflights_are_limited_and_leave_the_budget_of_requests_alone(api_of, ratekit_store):
    api = api_of({"default": "2/min", "address_limit": "3/min"})
    assert statuses(api, 3, method="OPTIONS") == [200, 200, 429]
    assert statuses(api, 3) == [200, 200, 429]
    suffixes = {key.decode().rpartition(":")[2] for key in ratekit_store.execute("KEYS", "ratelimit:")}
    assert suffixes == {"60s", "options-60s"}


def asgi_raw(options: dict, method: str, path: str) -> int:
    """Send a request whose method no client has put in upper case, and return the status."""
    sent = []

    async def receive():
        return {"type": "http.request"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "client": ("192.0.2.7", 1)}
    asyncio.run(asgi.RateLimitMiddleware(asgi_echo, **options)(scope, receive, send))
    return sent[0]["status"]


def wsgi_raw(options: dict, method: str, path: str) -> int:
    """The same; the standard library's validator would warn of such methods."""
    started = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "REMOTE_ADDR": "192.0.2.7", "wsgi.input": io.BytesIO()}
    wsgi.RateLimitMiddleware(wsgi_echo, **options)(environ, lambda status, *_: started.append(int(status[:3])))
    return started[0]


@pytest.fixture(params=[asgi_raw, wsgi_raw], ids=["asgi", "wsgi"])
def raw(request, ratekit_store):
    """Send a request by the middleware of a front, on the empty memory://."""
    return request.param


def test_case_of_a_method_does_not_evade_its_rule(raw):
    options = {"default": None, "rules": {"POST /login": "2/min"}}
    methods = ["post", "Post", "POST", "pOST", "GET", "get"]
    assert [raw(options, method, "/login") for method in methods] == [200, 200, 429, 429, 200, 200]


def test_invented_methods_have_no_counters_of_their_own(raw, ratekit_store):
    methods = ["GET", "FOO1", "FOO2", "FOO3", "get"]
    assert [raw({"default": "3/min"}, method, "/x") for method in methods] == [200] * 3 + [429] * 2
    assert len(ratekit_store) == 1


def test_options_in_any_case_has_one_counter(raw, ratekit_store):
    methods = ["OPTIONS", "options", "Options", "GET"]
    assert [raw({"default": "2/min"}, method, "/x") for method in methods] == [200, 200, 429, 200]


def test_methods_of_one_path_count_apart_and_share_their_override(api_of, ratekit_store):
    api = api_of({"default": None, "rules": {"GET /x": "1/min", "POST /x": "1/min", "/x": "1/min"}})
    for method in ("GET", "POST", "PUT"):
        assert statuses(api, 2, "/x", method=method) == [200, 429]
    who = {"endpoint": "/x", "subject": "ip:192.0.2.7"}
    set_rate_limit_override(ratekit_store, **who, max_requests=3)
    for method in ("GET", "POST", "PUT"):
        assert statuses(api, 3, "/x", method=method) == [200, 200, 429]
    set_rate_limit_override(ratekit_store, **who, limit="post-60s", max_requests=5)
    assert statuses(api, 3, "/x", method="POST") == [200, 200, 429]
    assert statuses(api, 1, "/x", method="PUT") == [429]


def test_refusal_of_a_head_request_has_no_body(api_of):
    api = api_of({"default": "1/min"})
    api.ask()
    response = api.ask(method="HEAD")
    assert response.status_code == 429
    assert response.headers["retry-after"]
    assert response.content == b""


STYLES = {
    "ratelimit": {"ratelimit-limit": "2", "ratelimit-remaining": "1", "ratelimit-reset": "60"},
    "draft-11": {"ratelimit-policy": '"minute";q=2;w=60', "ratelimit": '"minute";r=1;t=60'},
    "x-ratelimit": {"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1", "x-ratelimit-reset": "1800000060"},
    "none": {},
}


@pytest.mark.parametrize("style", STYLES)
def test_style_of_the_headers_is_chosen(api_of, ratekit_clock, style):
    lines = limit_headers(api_of({"default": "2/min", "headers": style}).ask())
    assert lines == {"ratelimit-limit": "theirs"} | STYLES[style]


def test_styles_are_sent_together(api_of, ratekit_clock):
    api = api_of({"default": "1/min", "headers": ["ratelimit", "draft-11", "x-ratelimit"]})
    names = {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "ratelimit", "ratelimit-policy"}
    names |= {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}
    assert set(limit_headers(api.ask())) == names
    assert set(limit_headers(api.ask())) == names | {"retry-after"}


def test_draft_11_lines_are_structured_fields(api_of, ratekit_clock):
    api = api_of({"default": Policy("p", [Limit(2, 60, name="minute"), Limit(9, 3600, name="hour")]), "headers": "draft-11"})
    for left in (1, 0, 0):
        response = api.ask()
        policy = http_sf.parse(response.headers["ratelimit-policy"].encode(), tltype="list")
        assert policy == [("minute", {"q": 2, "w": 60}), ("hour", {"q": 9, "w": 3600})]
        assert http_sf.parse(response.headers["ratelimit"].encode(), tltype="list") == [("minute", {"r": left, "t": 60})]
    assert response.headers["retry-after"] == "60"


def test_refusal_without_a_style_still_says_when_to_come_back(api_of, ratekit_clock):
    api = api_of({"default": "1/min", "headers": "none"})
    api.ask()
    assert limit_headers(api.ask()) == {"retry-after": "60"}


def test_headers_and_body_are_those_of_a_service_under_a_surge(api_of, ratekit_clock):
    """Mission C3: by API key, else user, else address; X-RateLimit-* and a small body."""
    api = api_of(
        {
            "default": "100/min",
            "rules": {"/rides": "1/min"},
            "by": CHAIN,
            "address_limit": "1000/min",
            "headers": "x-ratelimit",
            "body": lambda result: {"error": "rate_limited", "retry_after": result.ttl},
        }
    )
    assert api.ask("/rides", headers={"X-API-Key": "k"}).headers["x-ratelimit-remaining"] == "0"
    response = api.ask("/rides", headers={"X-API-Key": "k"})
    assert response.status_code == 429
    assert response.json() == {"error": "rate_limited", "retry_after": 60}
    assert response.headers["content-type"] == "application/json"
    assert limit_headers(response) == {
        "x-ratelimit-limit": "1",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": str(int(ratekit_clock.now) + 60),
        "retry-after": "60",
    }
    assert api.ask("/rides", headers={"X-User-Id": "k"}).status_code == 200
    assert api.ask("/rides").status_code == 200


@pytest.mark.parametrize(
    ("body", "expected"), [("später", "später"), (b"\x00\x01", "\x00\x01"), ({"a": 1}, '{"a":1}'), ([], "[]")]
)
def test_body_may_be_a_text_or_bytes_or_json(api_of, body, expected):
    api = api_of({"default": "1/min", "body": lambda result: body})
    api.ask()
    response = api.ask()
    assert response.content.decode() == expected
    assert response.headers["content-type"].startswith("text/plain" if isinstance(body, str | bytes) else "application/json")
    assert response.headers["content-length"] == str(len(response.content))


def test_cost_is_taken_from_the_request(api_of):
    api = api_of({"default": "10/min", "cost": lambda request: int(request.query("n") or 1)})
    assert api.ask("/?n=7").headers["ratelimit-remaining"] == "3"
    assert api.ask("/?n=4").status_code == 429
    assert api.ask("/?n=3").headers["ratelimit-remaining"] == "0"


def test_cost_is_the_same_for_all_when_it_is_a_number(api_of):
    assert statuses(api_of({"default": "10/min", "cost": 4}), 3) == [200, 200, 429]


def test_cost_of_zero_looks_without_spending(api_of):
    api = api_of({"default": "1/min", "cost": 0})
    assert statuses(api, 3) == [200] * 3
    assert api.ask().headers["ratelimit-remaining"] == "1"


def test_cost_that_never_fits_names_no_time_to_come_back(api_of):
    response = api_of({"default": "10/min", "cost": 11}).ask()
    assert response.status_code == 429
    assert "retry-after" not in response.headers
    assert response.headers["ratelimit-remaining"] == "0"


@pytest.mark.parametrize("cost", ["hunter2", 1.5, None, True, "1", ["hunter2"], float("nan")])
def test_cost_of_a_wrong_type_is_a_bug_of_which_the_type_is_named_only(api_of, ratekit_store, cost, caplog):
    with pytest.raises(WrongTypeError, match=f"cost gave a value of the type {type(cost).__name__}") as caught:
        api_of({"cost": lambda request: cost}).ask()
    assert "hunter2" not in f"{caught.value} {caplog.text}"
    assert type(cost).__name__ in caplog.text
    assert len(ratekit_store) == 0


def test_cost_of_a_wrong_type_passes_while_monitoring(api_of):
    assert api_of({"cost": lambda request: 1.5, "mode": "monitor"}).ask().status_code == 200


@pytest.mark.parametrize("cost", [-1, 10**30])
def test_cost_that_cannot_be_counted_is_a_400(api_of, cost):
    assert is_problem(api_of({"cost": lambda request: cost}).ask(), 400)


def test_cost_over_a_query_of_thousands_of_fields_is_a_400(api_of):
    api = api_of({"cost": lambda request: len(request.query("ids") or "x")})
    assert is_problem(api.ask("/?" + "&".join(["ids=1"] * 1500)), 400)


def test_cost_that_is_no_number_in_the_query_is_a_400(api_of):
    api = api_of({"cost": lambda request: int(request.query("n") or 1)})
    assert is_problem(api.ask("/?n=many"), 400)


def test_address_limit_stands_beside_a_chain(api_of):
    api = api_of({"default": "2/min", "by": CHAIN, "address_limit": "5/min"})
    answers = [api.ask(headers={"X-API-Key": f"key-{index}"}) for index in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert answers[-1].headers["ratelimit-limit"] == "5"
    assert api.ask(peer="192.0.2.8", headers={"X-API-Key": "key-0"}).status_code == 200


def test_attempt_limit_counts_what_another_limit_refuses(api_of):
    api = api_of({"default": "1/min", "attempt_limit": "5/min"})
    answers = [api.ask() for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] + [429] * 5
    assert [answer.headers["ratelimit-limit"] for answer in answers] == ["1"] * 5 + ["5"]
    look = RateLimiter().peek(Limit(5, 60), "ip:192.0.2.7", endpoint="attempts", cost=0)
    assert look.request_count == 5
    assert statuses(api, 1, peer="192.0.2.8") == [200]


def test_address_limit_does_not_count_what_another_limit_refuses(api_of):
    api = api_of({"default": "1/min", "address_limit": "5/min"})
    assert statuses(api, 9) == [200] + [429] * 8
    assert RateLimiter().peek(Limit(5, 60), "ip:192.0.2.7", endpoint="address", cost=0).request_count == 1


@pytest.mark.parametrize("limit", ["address_limit", "attempt_limit"])
def test_limits_by_address_count_paths_that_no_rule_fits(api_of, limit):
    api = api_of({"default": None, "rules": {"/search": "9/min"}, limit: "3/min", "exempt": ["/health", "192.0.2.99"]})
    assert statuses(api, 3, "/other") == [200] * 3
    assert [api.ask(path).status_code for path in ("/other", "/search", "/third")] == [429] * 3
    assert api.ask("/health").status_code == 200
    assert api.ask("/other", peer="192.0.2.8").status_code == 200
    assert [api.ask("/other", peer="192.0.2.99").status_code for _ in range(4)] == [200] * 4
    assert limit_headers(api.ask("/health")) == {"ratelimit-limit": "theirs"}


@pytest.mark.parametrize("limit", ["address_limit", "attempt_limit"])
def test_limits_by_address_alone_limit_every_request(api_of, limit):
    api = api_of({"default": None, limit: "2/min"})
    assert [api.ask(path).status_code for path in ("/a", "/b", "/c")] == [200, 200, 429]


def test_attempt_limit_counts_requests_that_cannot_be_read(api_of):
    api = api_of({"default": "9/min", "by": "query:user", "attempt_limit": "3/min"})
    assert statuses(api, 3, "/?user=a&user=b") == [400] * 3
    assert statuses(api, 1, "/?user=a") == [429]


def test_attempt_limit_stands_beside_address_limit(api_of):
    api = api_of({"default": "1/min", "by": CHAIN, "address_limit": "2/min", "attempt_limit": "4/min"})
    answers = [api.ask(headers={"X-API-Key": key}) for key in "aabcd"]
    assert [answer.status_code for answer in answers] == [200, 429, 200, 429, 429]
    assert [answer.headers["ratelimit-limit"] for answer in answers][-2:] == ["2", "4"]


def test_attempt_limit_only_looks_while_monitoring(api_of):
    api = api_of({"default": "9/min", "attempt_limit": "1/min", "mode": "monitor"})
    assert statuses(api, 3) == [200] * 3


def test_attempt_limit_counts_what_an_inner_front_refuses(api_of):
    api = api_of({"default": "1/min"}, {"default": "9/min", "attempt_limit": "3/min"})
    assert statuses(api, 5) == [200] + [429] * 4
    assert RateLimiter().peek(Limit(3, 60), "ip:192.0.2.7", endpoint="attempts", cost=0).request_count == 3


def test_attempt_limit_cannot_count_slots(middleware):
    with pytest.raises(ConfigurationError, match="attempt_limit counts attempts"):
        middleware(None, attempt_limit=ONE_SLOT)


def test_attempt_limit_quiets_the_warning_of_claims(middleware, recwarn):
    middleware(None, by="header:X-API-Key", attempt_limit="9/min")
    assert not recwarn


def test_headers_are_those_of_the_stricter_of_both_limits(api_of):
    api = api_of({"default": "10/min", "by": CHAIN, "address_limit": "3/min"})
    assert [api.ask(headers={"X-API-Key": "k"}).headers["ratelimit-limit"] for _ in range(2)] == ["3", "3"]
    api = api_of({"default": "2/h", "by": CHAIN, "address_limit": "9/h"})
    assert api.ask(headers={"X-API-Key": "k"}).headers["ratelimit-limit"] == "2"


def test_nested_middlewares_send_one_set_of_headers(api_of):
    api = api_of({"default": "2/min"}, {"rules": {"/": "9/h"}})
    response = api.ask()
    assert response.headers.get_list("ratelimit-limit") == ["2"]
    assert api.ask().headers.get_list("ratelimit-remaining") == ["0"]
    refused = api.ask()
    assert refused.status_code == 429
    for name in (
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "retry-after",
        "content-type",
        "cache-control",
    ):
        assert len(refused.headers.get_list(name)) == 1, name
    assert refused.headers["ratelimit-limit"] == "2"


def test_outer_refusal_does_not_reach_the_inner_middleware(api_of, ratekit_store):
    api = api_of({"rules": {"/": "9/h"}}, {"default": "1/min"})
    assert statuses(api, 3) == [200, 429, 429]
    inner = RateLimiter(ratekit_store).peek(Policy("p", "9/h"), "ip:192.0.2.7", endpoint="/", cost=0)
    assert inner.request_count == 1


def test_exception_of_the_application_propagates(api_of):
    api = api_of({"default": "1/min"})
    with pytest.raises(Boom):
        api.ask("/boom")
    assert api.ask().status_code == 429


def test_refusal_of_the_application_s_own_gets_no_retry_after(api_of):
    response = api_of({"default": "2/min"}).ask("/429")
    assert response.status_code == 429
    assert "retry-after" not in response.headers
    assert response.headers["x-app"] == "1"


def test_slot_is_free_again_after_each_response(api_of):
    api = api_of({"default": ONE_SLOT})
    assert statuses(api, 3) == [200] * 3
    with pytest.raises(Boom):
        api.ask("/boom")
    assert api.ask().status_code == 200


def test_slot_of_the_address_is_freed_when_the_rule_refuses(api_of, ratekit_store):
    api = api_of({"default": "1/min", "address_limit": ONE_SLOT})
    assert statuses(api, 3) == [200, 429, 429]
    held = RateLimiter(ratekit_store).peek(Policy("address", ONE_SLOT), "ip:192.0.2.7", endpoint="address")
    assert held.allowed


def test_field_of_a_json_body_says_who_is_limited_and_the_body_arrives(api_of):
    api = api_of({"default": "1/min", "by": json_field("user.id"), "address_limit": "100/min"})
    for user, status in [("ann", 200), ("bob", 200), ("ann", 429)]:
        body = json.dumps({"user": {"id": user}, "padding": "x" * 1000})
        response = api.ask("/", "POST", content=body, headers=JSON)
        assert response.status_code == status
        assert status == 429 or response.text == body


@pytest.mark.parametrize("body", [b"{", b"\xff", b"user=ann", b'{"user": "a"} {}'])
def test_body_that_is_not_json_is_a_400(api_of, ratekit_store, body):
    response = api_of({"by": json_field("user"), "address_limit": "9/min"}).ask("/", "POST", content=body, headers=JSON)
    assert is_problem(response, 400)
    assert "not JSON" in response.json()["detail"]


def test_json_nested_too_deeply_is_a_400(api_of):
    body = b"[" * 20_000 + b"]" * 20_000
    response = api_of({"by": json_field("user"), "address_limit": "9/min"}).ask("/", "POST", content=body, headers=JSON)
    assert is_problem(response, 400)


def test_body_over_the_bound_is_a_413(api_of):
    api = api_of({"by": json_field("user", most_body=20), "address_limit": "9/min"})
    assert api.ask("/", "POST", content=b'{"user": "123456789"}'[:20].ljust(20)).status_code == 400
    assert api.ask("/", "POST", content=b'{"user": "ann"}'.ljust(20)).status_code == 200
    response = api.ask("/", "POST", content=b'{"user": "ann"}'.ljust(21))
    assert is_problem(response, 413)
    assert "20 bytes" in response.json()["detail"]


def test_form_field_says_who_is_limited_and_the_form_arrives(api_of):
    api = api_of({"default": "1/min", "by": form_field("user"), "address_limit": "100/min"})
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answers = [api.ask("/", "POST", content=f"user={user}&x=1", headers=form) for user in ("ann", "bob", "ann")]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].text == "user=ann&x=1"


UPLOAD = {"Content-Type": "multipart/form-data; boundary=b"}


def upload_of(user: str, size: int) -> bytes:
    return (
        f'--b\r\nContent-Disposition: form-data; name="user"\r\n\r\n{user}\r\n'
        '--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\nContent-Type: image/png\r\n\r\n'
    ).encode() + b"\x00\xff" * (size // 2) + b"\r\n--b--\r\n"  # fmt: skip


def test_field_of_an_upload_is_who_is_limited_and_the_upload_stays_intact(api_of):
    api = api_of({"default": "1/min", "by": form_field("user"), "address_limit": "100/min"})
    contents = [upload_of(user, 50_000) for user in ("ann", "bob", "ann")]
    answers = [api.ask("/", "POST", content=content, headers=UPLOAD) for content in contents]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].content == contents[0]


def test_upload_beyond_the_bound_is_a_413_unless_the_bound_is_raised(api_of):
    """Limited by its address instead, a client would only have to send much to get around the limit of a user."""
    content = upload_of("ann", 200_000)
    for by, status in ((form_field("user"), 413), (form_field("user", most_body=300_000), 200)):
        api = api_of({"by": by, "address_limit": "100/min"})
        assert api.ask("/", "POST", content=content, headers=UPLOAD).status_code == status


def test_no_byte_is_read_of_a_body_that_says_it_is_too_long(ratekit_store):
    received = []

    async def receive():
        received.append(1)
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(message):
        received.append(message.get("status"))

    scope = {"type": "http", "method": "POST", "path": "/", "client": ("192.0.2.7", 1)}
    scope["headers"] = [(b"content-length", b"200000000")]
    app = asgi.RateLimitMiddleware(asgi_echo, by=json_field("user"), address_limit="9/min")
    asyncio.run(app(scope, receive, send))
    assert received == [413, None]


@pytest.mark.parametrize("length", ["9" * 5000, "99999999999999999999"])
def test_length_of_many_digits_is_a_413(ratekit_store, length):
    app = wsgi.RateLimitMiddleware(wsgi_echo, by=json_field("user"), address_limit="9/min")
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "CONTENT_LENGTH": length, "REMOTE_ADDR": "192.0.2.7"}
    said = []
    app(environ, lambda status, lines: said.append(status))
    assert said[0].startswith("413")


def test_large_body_passes_when_the_header_already_says_who_is_limited(api_of):
    by = first_of(header("X-API-Key"), json_field("user", most_body=100))
    content = b"x" * 10_000
    response = api_of({"by": by, "address_limit": "9/min"}).ask("/", "POST", content=content, headers={"X-API-Key": "k"})
    assert response.status_code == 200
    assert response.content == content


def test_chain_over_headers_warns_where_the_middleware_is_built(middleware):
    with pytest.warns(UnverifiedIdentityWarning, match=r"first_of\(header:x-api-key.*address_limit") as caught:
        middleware(None, by=CHAIN)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("by", ["header:X", "query:x", "cookie:x", "json:x", "form:x", first_of("header:x", "ip")])
def test_what_clients_say_of_themselves_warns_unless_an_address_limit_stands_beside(middleware, by):
    with pytest.warns(UnverifiedIdentityWarning):
        middleware(None, by=by)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        middleware(None, by=by, address_limit="1000/min")


@pytest.mark.parametrize("by", ["ip", client_ip(), lambda request: "u", first_of(lambda request: None, "ip")])
def test_what_clients_cannot_choose_does_not_warn(middleware, by):
    middleware(None, by=by)


@pytest.mark.parametrize(
    "by", ["ip", "header:X-API-Key", first_of("header:X-API-Key", "ip"), first_of(lambda request: None, "ip")]
)
def test_requests_without_an_address_pass_and_it_is_logged_once_for_each_endpoint(api_of, caplog, by):
    api = api_of({"default": "1/min", "by": by, "rules": {"/a": "1/min"}, "address_limit": "1/min"})
    assert statuses(api, 3, peer="") == statuses(api, 3, "/a", peer="") == [200] * 3
    assert [record.levelname for record in caplog.records if record.name.startswith("ratekit")] == ["WARNING", "WARNING"]
    assert "/a" in caplog.text


def test_mode_is_read_on_every_request(api_of, monkeypatch):
    api = api_of({"default": "1/min"})
    assert statuses(api, 2) == [200, 429]
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert api.ask().status_code == 200
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert limit_headers(api.ask()) == {"ratelimit-limit": "theirs"}
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert api.ask().status_code == 429


def test_mode_follows_the_file_between_requests(api_of, monkeypatch, tmp_path):
    path = tmp_path / "mode"
    monkeypatch.setenv("RATE_LIMIT_MODE_FILE", str(path))
    api = api_of({"default": "1/min"})
    assert statuses(api, 2) == [200, 429]
    for mode, status in [("monitor", 200), ("on", 429), ("off", 200), ("nonsense", 200), ("on\n", 429)]:
        path.write_text(mode)
        assert api.ask().status_code == status, mode


def test_monitor_counts_and_sends_headers_and_never_refuses(api_of, monkeypatch, ratekit_clock):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    api = api_of({"default": "2/min"})
    answers = [api.ask() for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["1", "0", "0", "0"]
    assert not any("retry-after" in answer.headers for answer in answers)
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert api.ask().status_code == 429


def test_off_counts_nothing_and_sends_no_headers(api_of, monkeypatch, ratekit_store):
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    api = api_of({"default": "1/min", "cost": lambda request: -1})
    assert statuses(api, 3) == [200] * 3
    assert limit_headers(api.ask()) == {"ratelimit-limit": "theirs"}
    assert len(ratekit_store) == 0


@pytest.mark.parametrize(
    ("own", "everyone", "status"),
    [
        ("on", "on", 429),
        ("monitor", "on", 200),
        ("on", "monitor", 200),
        ("off", "on", 200),
        ("on", "off", 200),
        (None, "on", 429),
    ],
)
def test_weaker_of_the_own_mode_and_the_global_one_wins(api_of, monkeypatch, own, everyone, status):
    monkeypatch.setenv("RATE_LIMIT_MODE", everyone)
    api = api_of({"default": "1/min", "mode": own})
    assert statuses(api, 2) == [200, status]


def test_monitor_lets_pass_what_cannot_be_counted(api_of, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert api_of({"cost": lambda request: "x"}).ask().status_code == 200
    assert api_of({"by": lambda request: 5}).ask().status_code == 200


def test_monitor_leaves_a_body_over_the_bound_intact(api_of, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    api = api_of({"by": json_field("user", most_body=10), "address_limit": "9/min"})
    response = api.ask("/", "POST", content=b"0123456789" * 10)
    assert response.status_code == 200
    assert response.content == b"0123456789" * 10


def test_monitor_leaves_a_body_that_is_not_json_intact(api_of, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    api = api_of({"by": json_field("user"), "address_limit": "9/min"})
    assert api.ask("/", "POST", content=b"0123456789 not JSON").text == "0123456789 not JSON"


class Span:
    def __init__(self) -> None:
        self.tags: dict[str, str] = {}

    def set_tag(self, key, value) -> None:
        self.tags[key] = value


@pytest.fixture
def root_span(monkeypatch) -> Span:
    """The root span of a stand-in for ddtrace, which the application has loaded."""
    span, module = Span(), ModuleType("ddtrace")
    module.tracer = SimpleNamespace(current_root_span=lambda: span)
    monkeypatch.setitem(sys.modules, "ddtrace", module)
    return span


def test_over_limit_request_tags_the_root_span_in_monitor_mode(api_of, monkeypatch, root_span):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    api = api_of({"default": None, "rules": {"/items/{id}": "1/min"}})
    api.ask("/items/5")
    assert root_span.tags == {}
    api.ask("/items/6")
    assert root_span.tags == {"ratelimit.over_limit": "/items/{id}"}


@pytest.mark.parametrize("mode", ["on", "off"])
def test_over_limit_request_tags_nothing_in_other_modes(api_of, monkeypatch, root_span, mode):
    monkeypatch.setenv("RATE_LIMIT_MODE", mode)
    statuses(api_of({"default": "1/min"}), 3)
    assert root_span.tags == {}


def test_nothing_is_tagged_or_loaded_without_a_tracer(api_of, monkeypatch):
    monkeypatch.delitem(sys.modules, "ddtrace", raising=False)
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert statuses(api_of({"default": "1/min"}), 3) == [200] * 3
    assert "ddtrace" not in sys.modules


@pytest.mark.parametrize("tracer", [None, SimpleNamespace(current_root_span=lambda: None)], ids=["no tracer", "no trace"])
def test_nothing_is_tagged_without_a_trace(api_of, monkeypatch, tracer):
    module = ModuleType("ddtrace")
    if tracer is not None:
        module.tracer = tracer
    monkeypatch.setitem(sys.modules, "ddtrace", module)
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert statuses(api_of({"default": "1/min"}), 3) == [200] * 3


def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}"


def test_outage_lets_pass_without_headers_when_open(api_of):
    api = api_of({"default": "1/min", "store": nowhere(), "on_outage": "open"})
    assert statuses(api, 3) == [200] * 3
    assert limit_headers(api.ask()) == {"ratelimit-limit": "theirs"}


def test_outage_is_a_503_with_retry_after_when_closed(api_of):
    response = api_of({"default": "1/min", "store": nowhere(), "on_outage": "closed"}).ask()
    assert is_problem(response, 503)
    assert response.json()["type"] == REDUCED_CAPACITY
    assert int(response.headers["retry-after"]) >= 1
    assert response.headers["cache-control"] == "no-store"
    assert limit_headers(response) == {"retry-after": response.headers["retry-after"]}


def test_outage_does_not_tell_clients_where_the_store_is(api_of):
    url = nowhere()
    response = api_of({"default": "1/min", "store": url, "on_outage": "closed"}).ask()
    assert url.rpartition(":")[2] not in response.text


def test_outage_counts_a_share_when_local(api_of):
    api = api_of({"default": "2/min", "store": nowhere(), "on_outage": "local"})
    assert statuses(api, 3) == [200, 200, 429]


def test_outage_is_answered_for_as_the_rule_says_before_the_middleware(api_of):
    rules = {"/pay": {"limits": "5/min", "on_outage": "closed"}, "/free": {"limits": "5/min"}}
    api = api_of({"default": "5/min", "rules": rules, "store": nowhere(), "on_outage": "open"})
    assert [api.ask(path).status_code for path in ("/pay", "/free", "/other")] == [503, 200, 200]


@pytest.mark.parametrize("mode", ["monitor", "off"])
def test_outage_refuses_nobody_in_weaker_modes(api_of, monkeypatch, mode):
    monkeypatch.setenv("RATE_LIMIT_MODE", mode)
    api = api_of({"default": "1/min", "store": nowhere(), "on_outage": "closed"})
    assert statuses(api, 2) == [200, 200]


def test_outage_does_not_touch_what_is_not_limited(api_of):
    api = api_of({"exempt": ["/health"], "store": nowhere(), "on_outage": "closed"})
    assert api.ask("/health").status_code == 200


def test_slot_that_the_store_did_not_grant_is_no_error(api_of):
    api = api_of({"default": ONE_SLOT, "store": nowhere(), "on_outage": "open"})
    assert statuses(api, 2) == [200, 200]


BAD_OPTIONS = [
    ({"default": "100/fortnight"}, "rate '100/fortnight'"),
    ({"rules": {"/a": {"on_outage": "open"}}}, "no limits"),
    ({"rules": {"/a": {"limits": "1/s", "on_outrage": "open"}}}, "on_outrage"),
    ({"rules": {"/a": {"limits": "1/s", "on_outage": "perhaps"}}}, "perhaps"),
    ({"default": 5}, "5"),
    ({"default": []}, "limits"),
    ({"rules": {"/a": "many"}}, "rate 'many'"),
    ({"rules": {"a": "1/s"}}, "pattern 'a'"),
    ({"rules": {"/a/{b": "1/s"}}, "pattern '/a/{b'"),
    ({"exempt": "/health"}, "exempt '/health'"),
    ({"exempt": ["health"]}, "pattern 'health'"),
    ({"mode": "audit"}, "mode 'audit'"),
    ({"mode": 5}, "mode 5"),
    ({"headers": "x-rate"}, "style 'x-rate'"),
    ({"headers": ["ratelimit", "nope"]}, "style 'nope'"),
    ({"trusted_hops": -1}, "trusted_hops -1"),
    ({"trusted_hops": 1.5}, "trusted_hops 1.5"),
    ({"trusted_hops": "everyone"}, "trusted_hops 'everyone'"),
    ({"trusted_hops": ["10.0.0.0/33"]}, "trusted_hops '10.0.0.0/33'"),
    ({"trusted_hops": 1, "trusted_header": "X-Client-IP"}, "trusted_header 'X-Client-IP'"),
    ({"body": "busy"}, "body 'busy'"),
    ({"body": {"error": "busy"}}, "body {'error': 'busy'}"),
    ({"cost": -1}, "cost -1"),
    ({"cost": "x"}, "cost 'x'"),
    ({"cost": 1.5}, "cost 1.5"),
    ({"cost": True}, "cost True"),
    ({"cost": 10**13}, "cost 10000000000000"),
    ({"by": "nobody"}, "by 'nobody'"),
    ({"by": 5}, "by 5"),
    ({"address_limit": "lots"}, "rate 'lots'"),
    ({"on_outage": "panic"}, "on_outage 'panic'"),
    ({"store": "mysql://x"}, "mysql"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD_OPTIONS, ids=[str(options) for options, _ in BAD_OPTIONS])
def test_option_that_makes_no_sense_is_refused_when_the_middleware_is_built(middleware, options, sentence):
    with pytest.raises(ConfigurationError) as caught:
        middleware(None, **options)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("options", [{"rules": ["/a"]}, {"exempt": 5}, {"headers": 5}], ids=str)
def test_option_of_a_wrong_kind_is_refused_when_the_middleware_is_built(middleware, options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        middleware(None, **options)


def test_unknown_option_is_refused_when_the_middleware_is_built(middleware):
    with pytest.raises(TypeError, match="limit_by"):
        middleware(None, limit_by="ip")


def test_unknown_mode_of_the_environment_is_refused_when_the_middleware_is_built(middleware, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "audit")
    with pytest.raises(ConfigurationError, match="RATE_LIMIT_MODE 'audit'"):
        middleware(None)


def test_store_is_that_of_the_environment_when_none_is_given(api_of, monkeypatch, ratekit_store):
    monkeypatch.setenv("RATE_LIMIT_STORE_URL", "memory://elsewhere")
    api = api_of({"default": "1/min"})
    api.ask()
    assert len(ratekit_store) == 0


def test_limiter_may_be_brought(middleware):
    store = MemoryStore()
    brought = (AsyncRateLimiter if middleware is asgi.RateLimitMiddleware else RateLimiter)(store, prefix="mine")
    assert middleware(None, limiter=brought).limiter is brought


def test_mode_of_a_limiter_is_the_weaker_one(monkeypatch):
    assert current_mode() is RateLimitMode.ON
    assert current_mode(RateLimitMode.MONITOR) is RateLimitMode.MONITOR
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert current_mode(RateLimitMode.MONITOR) is RateLimitMode.OFF


@pytest.fixture
def refused():
    limiter = RateLimiter(MemoryStore())
    limiter.charge(Policy("p", "1/min"), "u")
    return limiter.check(Policy("p", "1/min"), "u")


def test_one_set_of_headers_is_that_of_the_strictest_result(refused):
    admitted = RateLimiter(MemoryStore()).check(Policy("q", "9/min"), "u")
    lines = ResponseWriter().lines([admitted, refused], refused=True)
    assert lines["RateLimit-Limit"] == "1"
    assert "Retry-After" in lines
    assert "Retry-After" not in ResponseWriter().lines([admitted, refused], refused=False)
    assert ResponseWriter().lines([], refused=False) == {}


def test_refusal_is_encoded_as_json_of_the_problem(refused):
    refusal = ResponseWriter(["x-ratelimit", "ratelimit"]).refusal([refused])
    assert refusal.status == 429
    assert json.loads(refusal.body)["violated-policies"] == ["minute"]
    assert {"Content-Type", "Cache-Control", "Retry-After", "X-RateLimit-Limit", "RateLimit-Limit"} <= set(refusal.headers)


def test_unavailable_is_a_503_with_whole_seconds():
    refusal = unavailable(RateLimitUnavailable("timeout", retry_after=0.2))
    assert (refusal.status, refusal.headers["Retry-After"]) == (503, "1")


def test_unusable_has_the_status_of_the_error():
    assert unusable(UnusableRequestError("why", status=413)).status == 413
    assert json.loads(unusable(UnusableRequestError("why")).body)["detail"] == "why"


def test_cost_is_a_number_or_what_a_callable_says():
    assert cost_of(3, None) == 3
    assert cost_of(lambda request: request * 2, 4) == 8
    with pytest.raises(UnusableRequestError, match="-1"):
        cost_of(lambda request: -1, None)
    assert checked_cost(len) is len


def options_and_request(**given):
    request = AsgiRequest({"type": "http", "path": "/", "headers": [], "client": ("203.0.113.9", 1)}, TrustedProxies())
    options = MiddlewareOptions(RateLimiter(MemoryStore()), **given)
    return options, options.rules.find(request), request


LIMITER = RateLimiter(MemoryStore())  # that nothing of a flow is asked of, here


def groups_of(options, request, rules):
    return run(options.read(request, rules, ON, load_body=lambda by: None), LIMITER)


ON = RateLimitMode.ON


@pytest.mark.parametrize("given", [{}, {"default": ["9/s", "99/min"]}, {"address_limit": "9/s"}])
def test_checks_of_a_peer_are_found_once_when_nothing_else_matters(given):
    options, rules, request = options_and_request(**given)
    assert options.known_groups(rules, "203.0.113.9", ON) is None
    groups = groups_of(options, request, rules)
    assert options.known_groups(rules, "203.0.113.9", ON) is groups
    assert options.known_groups(rules, "203.0.113.8", ON) is None


def test_checks_of_a_peer_stay_known_in_a_flood_of_others():
    options, rules, _ = options_and_request()
    known = []
    for number in range(40_000):
        scope = {
            "type": "http",
            "path": "/",
            "headers": [],
            "client": (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 1),
        }
        request = AsgiRequest(scope, TrustedProxies())
        groups_of(options, request, rules)
        if number % 1000 == 0:
            known.append(options.known_groups(rules, "10.0.0.0", ON))
    assert all(groups is known[0] for groups in known)


@pytest.mark.filterwarnings("ignore::ratekit.web.options.UnverifiedIdentityWarning")
@pytest.mark.parametrize(
    "given",
    [
        {"by": "header:X-Key"},
        {"by": first_of(lambda request: None, "ip")},
        {"cost": lambda request: 2},
        {"trusted_hops": 1},
        {"default": Limit(9, 60, soft=0.5)},
        {"default": Limit(2, 60, algorithm="concurrency")},
    ],
)
def test_checks_are_made_for_each_request_when_more_than_the_peer_matters(given):
    options, rules, request = options_and_request(**given)
    assert groups_of(options, request, rules)
    assert options.known_groups(rules, "203.0.113.9", ON) is None


def test_no_style_and_a_style_twice_make_no_line_twice(refused):
    assert ResponseWriter([]).written([], [refused], refused=True) == []
    names = [name for name, _ in ResponseWriter(["ratelimit", "ratelimit"]).written([], [refused], refused=False)]
    assert names == [b"ratelimit-limit", b"ratelimit-remaining", b"ratelimit-reset"]


@pytest.mark.parametrize("is_refusal", [True, False])
@pytest.mark.parametrize("styles", ["ratelimit", "draft-11", ["x-ratelimit", "draft-11"], "none"])
def test_lines_are_the_same_as_texts_and_as_bytes(refused, styles, is_refusal):
    answers = ResponseWriter(styles)
    texts = answers.lines([refused], refused=is_refusal)
    raw = answers.written([], [refused], refused=is_refusal)
    assert [(name.lower().encode(), value.encode()) for name, value in texts.items()] == raw
