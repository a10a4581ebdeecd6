from __future__ import annotations

import json
from typing import Any

import pytest

from ratekit_service.gateways.authorize import Answer, Authorization, AuthorizeMiddleware

asked: list[Authorization] = []


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def app(status: int = 200, *, is_closed: bool = False) -> AuthorizeMiddleware:
    async def authorize(request: Authorization) -> Answer:
        asked.append(request)
        lines = [(b"x-ratelimit-limit", b"5"), (b"www-authenticate", b"ApiKey"), (b"x-ratekit-config-version", b"7")]
        return Answer(status, lines, {"status": status, "limit": 5}, is_closed)

    asked.clear()
    return AuthorizeMiddleware(inner, authorize)


async def ask(
    made: AuthorizeMiddleware, path: str, query: str = "", method: str = "GET", **headers: str | list[str]
) -> tuple[int, dict[str, str], bytes]:
    lines = [
        (name.replace("_", "-").encode(), value.encode("latin-1"))
        for name, values in headers.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is read")

    asgi = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    await made(asgi | {"headers": lines, "client": ("10.0.0.9", 1234)}, receive, send)
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


async def test_query_of_the_proxy_says_what_is_limited():
    status, headers, body = await ask(
        app(), "/v1/authorize", "resource=orders&cost=3&plan_id=p1", x_api_key="k", x_ratekit_subject="user:42"
    )
    assert (status, headers["x-ratelimit-status"], headers["content-length"], body) == (
        200,
        "ok",
        "24",
        b'{"status":200,"limit":5}',
    )
    assert asked == [Authorization("k", "orders", "user:42", 3, "p1", "10.0.0.9")]


async def test_headers_that_clients_send_count_for_nothing_where_the_query_counts():
    made = app()
    query = "resource=orders&by=header:X-User"
    await ask(made, "/v1/authorize", query, x_user="42", x_ratekit_resource="free", x_ratekit_cost="0")
    assert asked == [Authorization(None, "orders", "42", 1, None, "10.0.0.9")]


async def test_query_that_clients_send_counts_for_nothing_where_headers_count():
    made = app()
    set_by_proxy = {"x_ratekit_resource": "orders", "x_ratekit_by": "header:x-user", "x_user": "42", "x_api_key": "k"}
    await ask(made, "/v1/authorize/free", "resource=free&cost=0&refuse=403", method="DELETE", **set_by_proxy)
    assert asked == [Authorization("k", "orders", "42", 1, None, "10.0.0.9")]


@pytest.mark.parametrize(
    ("forwarded", "subject"),
    [("203.0.113.7", "ip:203.0.113.7"), ("1.2.3.4, 203.0.113.7", "ip:203.0.113.7"), ("2001:db8::1", "ip:2001:db8::/64")],
)
async def test_address_is_the_one_that_the_proxy_has_seen(forwarded, subject):
    await ask(app(), "/v1/authorize", "resource=orders&by=ip", x_forwarded_for=forwarded)
    assert asked[0].subject == subject


@pytest.mark.parametrize(
    ("given", "query", "expected", "word"),
    [
        (429, "", 429, "limited"),
        (429, "&refuse=403", 403, "limited"),
        (401, "&refuse=403", 401, "unauthorized"),
        (403, "&refuse=403", 403, "forbidden"),
        (503, "&refuse=403", 503, "unavailable"),
        (422, "", 422, "error"),
    ],
)
async def test_refusal_is_told_from_other_answers(given, query, expected, word):
    status, headers, _ = await ask(app(given), "/v1/authorize", f"resource=orders{query}", x_ratekit_subject="42")
    assert (status, headers["x-ratelimit-status"], headers["x-ratelimit-limit"]) == (expected, word, "5")


@pytest.mark.parametrize(("query", "expected"), [("", 503), ("&closed=503", 503), ("&closed=403", 403)])
async def test_plan_that_is_closed_is_told_from_a_service_that_cannot_decide(query, expected):
    answer = await ask(app(503, is_closed=True), "/v1/authorize", f"resource=a{query}", x_ratekit_subject="42")
    assert (answer[0], answer[1]["x-ratelimit-status"]) == (expected, "closed")
    starting = await ask(app(503), "/v1/authorize", f"resource=a{query}", x_ratekit_subject="42")
    assert (starting[0], starting[1]["x-ratelimit-status"]) == (503, "unavailable")


@pytest.mark.parametrize(("given", "status"), [(429, 403), (422, 403), (401, 401)])
async def test_body_has_the_status_of_the_answer(given, status):
    answered, _, body = await ask(app(given), "/v1/authorize", "resource=orders&refuse=403", x_ratekit_subject="42")
    assert (answered, json.loads(body)["status"]) == (status, status)


async def test_lines_that_are_not_for_clients_are_left_out():
    _, headers, _ = await ask(app(401), "/v1/authorize", "resource=orders", x_ratekit_subject="42")
    assert set(headers) == {"x-ratelimit-limit", "x-ratelimit-status", "content-length"}


async def test_commas_are_part_of_a_subject_that_the_proxy_says_is_one_line():
    await ask(app(), "/v1/authorize", "resource=a&by=line:x-dn", x_dn="CN=ann,O=shop")
    assert asked[0].subject == "CN=ann,O=shop"


@pytest.mark.parametrize(
    ("path", "query", "headers", "sentence"),
    [
        ("/v1/authorize", "", {}, "resource is missing: the query has to name what is limited"),
        ("/v1/authorize/x", "resource=a", {}, "resource is missing: the header 'x-ratekit-resource' has to name"),
        ("/v1/authorize", "resource=a", {}, "the header 'x-ratekit-subject' is missing or empty: the proxy has to set it"),
        ("/v1/authorize", "resource=a", {"x_ratekit_subject": ["a", "b"]}, "the header 'x-ratekit-subject' has several"),
        (
            "/v1/authorize",
            "resource=a",
            {"x_ratekit_subject": "a,b"},
            "the header 'x-ratekit-subject' has a comma, by which",
        ),
        ("/v1/authorize", "resource=a&by=line:x-dn", {"x_dn": ["a", "b"]}, "the header 'x-dn' has several values"),
        ("/v1/authorize", "resource=a&by=ip", {}, "the header 'x-forwarded-for' is missing: by 'ip' needs it"),
        (
            "/v1/authorize",
            "resource=a&by=cookie:x",
            {},
            "by 'cookie:x' is neither 'ip' nor 'header:' or 'line:' with a name",
        ),
        ("/v1/authorize", "resource=a&closed=200", {}, "closed '200' is neither 503 nor 403"),
        ("/v1/authorize", "resource=a&cost=-1", {"x_ratekit_subject": "a"}, "cost '-1' is neither a whole number nor"),
        ("/v1/authorize", "resource=a&refuse=200", {}, "refuse '200' is neither 429 nor 403"),
        ("/v1/authorize", "resource=a&resource=b", {}, "a field stands twice in the query"),
        ("/v1/authorize", "ressource=a", {}, "the field 'ressource' is unknown: there are resource, by, cost"),
        ("/v1/authorize", "resource=" + "a" * 5000, {}, "the query has 5009 bytes, and at most 4096 are read"),
    ],
)
async def test_question_that_makes_no_sense_is_answered_with_what_is_wrong(path, query, headers, sentence):
    status, lines, body = await ask(app(), path, query, **headers)
    assert (status, lines["content-type"], asked) == (400, "application/problem+json", [])
    assert sentence in json.loads(body)["detail"]


@pytest.mark.parametrize(("refuse", "status"), [("403", 403), ("429", 400)])
async def test_question_that_a_client_can_spoil_is_refused_where_the_proxy_would_take_it_for_an_outage(refuse, status):
    answered, headers, _ = await ask(app(), "/v1/authorize", f"resource=orders&refuse={refuse}")
    assert (answered, headers["x-ratelimit-status"]) == (status, "error")


async def test_cost_by_unit_is_read():
    await ask(app(), "/v1/authorize", "resource=orders&cost=tokens=800,pages=2", x_ratekit_subject="user:42")
    assert asked[-1].cost == {"tokens": 800, "pages": 2}


async def test_same_value_twice_is_one_value():
    await ask(app(), "/v1/authorize", "resource=a", x_ratekit_subject=["42", "42"])
    assert asked[0].subject == "42"


async def test_other_paths_are_handed_on():
    for path in ("/v1/authorized", "/v1", "/"):
        assert (await ask(app(), path))[0] == 404
