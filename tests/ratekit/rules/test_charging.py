"""What a document says of charges: units, estimates that are settled, outcomes that count, shares, calendars."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from fastapi import FastAPI, Response

from ratekit import asgi, wsgi
from ratekit.core.errors import DocumentError
from ratekit.rules import RateKit, Rules
from ratekit.rules.diff import changes
from ratekit.rules.document import Document
from ratekit.stores.memory import MemoryStore
from ratekit_fastapi import install

pytestmark = pytest.mark.usefixtures("ratekit_clock")


async def asgi_app(scope, receive, send):
    status = int(dict(scope["headers"]).get(b"x-answer", b"200"))
    await send({"type": "http.response.start", "status": status, "headers": [(b"x-usage", b"5")]})
    await send({"type": "http.response.body", "body": b""})


def wsgi_app(environ, start_response):
    start_response(f"{environ.get('HTTP_X_ANSWER', '200')} X", [("x-usage", "5")])
    return [b""]


def ask_asgi(middleware, **options) -> httpx2.Response:
    async def ask() -> httpx2.Response:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(middleware), base_url="http://a") as client:
            return await client.post("/x", **options)

    return asyncio.run(ask())


def ask_wsgi(middleware, **options) -> httpx2.Response:
    with httpx2.Client(transport=httpx2.WSGITransport(middleware), base_url="http://a") as client:
        return client.post("/x", **options)


@pytest.fixture(params=["asgi", "wsgi"])
def api(request):
    """Make an application limited by one rule, and return a function that asks it for a status."""

    def make(**rule):
        door, app, ask = (asgi, asgi_app, ask_asgi) if request.param == "asgi" else (wsgi, wsgi_app, ask_wsgi)
        middleware = door.RuleMiddleware(app, rules={"rules": [rule]}, store=MemoryStore())
        return lambda **options: ask(middleware, **options)

    return make


def test_only_outcomes_that_are_named_count(api):
    ask = api(limits="2/min", count=[401, "5xx"])
    wrong, right = {"x-answer": "401"}, {"x-answer": "200"}
    assert [ask(headers=right).status_code for _ in range(4)] == [200] * 4
    assert [ask(headers=wrong).status_code for _ in range(3)] == [401, 401, 429]


def test_outcome_that_resets_forgets_what_was_counted(api):
    ask = api(limits="2/min", count=401, reset_when="2xx")
    answers = ["401", "200", "401", "401", "401"]
    assert [ask(headers={"x-answer": answer}).status_code for answer in answers] == [401, 200, 401, 401, 429]


def test_estimate_is_settled_by_what_the_response_says(api):
    ask = api(limits="20 tokens/min", estimate="json:max_tokens", actual="header:x-usage", hide=True)
    body = {"content": json.dumps({"max_tokens": 15}), "headers": {"content-type": "application/json"}}
    answers = [ask(**body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]  # 15, then 5 + 15, then 10 + 15
    assert "x-usage" not in answers[0].headers


def test_cost_is_by_unit(api):
    ask = api(limits=["10/min", "100 tokens/min"], cost={"requests": 1, "tokens": "header:x-size"})
    assert [ask(headers={"x-size": "40"}).status_code for _ in range(3)] == [200, 200, 429]
    assert ask(headers={"x-size": "20"}).status_code == 200


def test_key_whose_own_limits_do_not_count_the_unit_of_an_estimate_costs_one_request(api):
    custom = {"who:big": "3/min", "who:vast": "unlimited"}
    ask = api(
        limits="9 tokens/min", by={"who": "header:x-who"}, estimate={"tokens": 6}, actual="header:x-usage", custom=custom
    )
    assert [ask(headers={"x-who": "ann"}).status_code for _ in range(2)] == [200, 429]
    assert [ask(headers={"x-who": "big"}).status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [ask(headers={"x-who": "vast"}).status_code for _ in range(4)] == [200] * 4


def test_estimate_of_nothing_is_an_estimate(api):
    ask = api(limits="9 tokens/min", estimate=0, actual="header:x-usage")
    assert [ask().headers["ratelimit-remaining"] for _ in range(2)] == ["4", "0"]


def test_share_is_the_part_of_a_capacity_that_a_rule_may_use(api):
    ask = api(limits="10/min", share=0.3)
    assert [ask().status_code for _ in range(4)] == [200, 200, 200, 429]


def test_calendar_has_a_zone_and_an_anchor(api):
    ask = api(limits="2/month Europe/Berlin", anchor=15)
    assert [ask().status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"limits": "9/s", "count": "6xx"}, "rules[0].count: count '6xx' is neither a status "),
        ({"limits": "9/s", "actual": "x-usage"}, "rules[0].actual: actual 'x-usage' is not the name of a header"),
        ({"limits": "9/s", "share": 2}, "rules[0].share: share 2 "),
        ({"limits": "9/s", "share": 0}, "rules[0].share: share 0 "),
        (
            {"limits": ["9/s", "9 tokens/s"], "estimate": {"token": 4}},
            "rules[0]: limits: unit 'token' of estimate {'token': 4} is unknown: the limits count requests, tokens",
        ),
        (
            {"limits": "9 tokens/s", "estimate": {"tokens": 4}, "custom": {"ann": "9/s", "bob": "9 images/s"}},
            "rules[0]: custom.bob: estimate {'tokens': 4} does not say how many images",
        ),
        ({"limits": "9/month", "anchor": 40}, "rules[0].anchor: 40 is neither a day of 1 to 31 nor a date"),
        ({"limits": "9/s", "hide": True}, "rules[0]: hide True has no meaning without actual"),
        ({"limits": "9/s", "cost": 2, "estimate": 3}, "rules[0]: cost 2 and estimate "),
        ({"limits": "9/s", "cost": {"tokens": -1}}, "rules[0].cost.tokens: -1 is not between 0 and "),
        ({"limits": "9/s", "cost": {"tokens": 1}}, "rules[0]: "),
        ({"limits": ["9/s", "9 tokens/s"]}, "rules[0]: "),
    ],
)
def test_charge_that_makes_no_sense_is_told(rule, sentence):
    with pytest.raises(DocumentError) as told:
        Rules({"rules": [rule]})
    assert told.value.problems[0].startswith(sentence), told.value.problems


def test_function_of_an_estimate_is_refused_unless_it_is_allowed():
    values = {"rules": [{"limits": "9 tokens/s", "estimate": {"tokens": "function:shop:cost"}}]}
    with pytest.raises(DocumentError, match=r"rules\[0\].estimate: the function 'shop:cost' is not allowed"):
        Document.parse(values, functions=())


def test_what_is_settled_is_refused_where_nobody_knows_the_response():
    with pytest.raises(DocumentError, match="settled when the response has ended"):
        RateKit(service="x", rules={"rules": [{"limits": "9/s", "count": 401}]}, store="memory://charging")


def test_charges_survive_being_written_and_differences_are_shown():
    rule = {"name": "a", "limits": ["90000 tokens/min"], "estimate": {"tokens": "json:n"}, "actual": "header:x-usage"}
    rule |= {"count": ["2xx", 401], "reset_when": 200, "share": 0.5, "hide": True}
    document = Document.parse({"rules": [rule]})
    assert document.values() == {"rules": [rule]}
    other = Document.parse({"rules": [rule | {"share": 0.4}]})
    assert [tuple(change) for change in changes(document, other)] == [("otherwise", "a", "(share)", "0.5", "0.4")]


def test_fastapi_settles_by_outcomes_of_a_document():
    app = FastAPI()
    install(app, store=MemoryStore(), rules={"rules": [{"limits": "2/min", "count": 401}]})

    @app.post("/x")
    def answer(status: int) -> Response:
        return Response(status_code=status)

    statuses = [ask_asgi(app, params={"status": status}).status_code for status in (200, 200, 200, 401, 401, 401)]
    assert statuses == [200, 200, 200, 401, 401, 429]
