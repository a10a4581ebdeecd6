"""Rules that change while a middleware runs, several rules of one request, and rules that say more than their limits."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import pytest

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, RateLimitMode, asgi, wsgi
from ratekit.stores.memory import MemoryStore
from ratekit.web.exemptions import Exemptions
from ratekit.web.identity import as_key_function, json_field
from ratekit.web.requests import FrontRequest
from ratekit.web.table import Rule, Rules, RuleSet

Ask = Callable[..., Any]


class ChangingRules:
    """A set of rules that somebody changes while requests are decided."""

    def __init__(self, *rules: Rule) -> None:
        self.current: tuple[Rule, ...] = rules
        self.asked: list[FrontRequest] = []

    def find(self, request: FrontRequest) -> Sequence[Rule]:
        self.asked.append(request)
        return self.current


def rule(limit: Limit, endpoint: str = "/x", **options: Any) -> Rule:
    return Rule(endpoint=endpoint, policy=Policy(endpoint, [limit]), **options)


def asgi_asker(store: MemoryStore, **options: Any) -> Ask:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body + message.get("body", b"")})

    front = asgi.RateLimitMiddleware(app, limiter=AsyncRateLimiter(store), **options)

    def ask(path: str = "/x", method: str = "GET", **request: Any) -> Any:
        async def once() -> Any:
            transport = httpx2.ASGITransport(front, client=("192.0.2.7", 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
                return await client.request(method, path, **request)

        return asyncio.run(once())

    return ask


def wsgi_asker(store: MemoryStore, **options: Any) -> Ask:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        start_response("200 OK", [("Content-Type", "application/octet-stream")])
        return [environ["wsgi.input"].read(length)]

    front = wsgi.RateLimitMiddleware(app, limiter=RateLimiter(store), **options)
    client = httpx2.Client(transport=httpx2.WSGITransport(front, remote_addr="192.0.2.7"), base_url="http://api")
    return lambda path="/x", method="GET", **request: client.request(method, path, **request)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(params=[asgi_asker, wsgi_asker])
def asker(request: pytest.FixtureRequest, store: MemoryStore) -> Callable[..., Ask]:
    return lambda **options: request.param(store, **options)


def statuses(ask: Ask, times: int, **request: Any) -> list[int]:
    return [ask(**request).status_code for _ in range(times)]


def names_used(store: MemoryStore) -> dict[str, int]:
    keys = [key.decode() for key in store.execute("KEYS", "ratelimit:")]
    return {key.partition(":")[2].partition(":{")[0]: int(store.execute("HMGET", key, "n")[0]) for key in keys}


def test_table_and_a_set_of_ones_own_are_rule_sets():
    assert isinstance(Rules(), RuleSet)
    assert isinstance(ChangingRules(), RuleSet)


def test_rules_that_change_are_in_force_at_the_next_request(asker):
    rules = ChangingRules(rule(Limit(1, 60)))
    ask = asker(rules=rules)
    assert statuses(ask, 2) == [200, 429]
    rules.current = (rule(Limit(3, 60)),)
    assert statuses(ask, 3) == [200, 200, 429]
    rules.current = ()
    assert statuses(ask, 3) == [200, 200, 200]
    rules.current = (rule(Limit(3, 60)),)
    assert statuses(ask, 1) == [429]


def test_each_request_is_decided_by_one_look_at_the_rules(asker):
    rules = ChangingRules(rule(Limit(9, 60)))
    ask = asker(rules=rules)
    statuses(ask, 3)
    assert [request.path for request in rules.asked] == ["/x"] * 3


def test_several_rules_are_one_decision_and_a_refused_request_has_spent_nothing(asker, store):
    wide, narrow = rule(Limit(100, 60), "wide"), rule(Limit(2, 60), "narrow")
    ask = asker(rules=ChangingRules(wide, narrow))
    assert statuses(ask, 5) == [200, 200, 429, 429, 429]
    assert names_used(store) == {"wide": 2, "narrow": 2}


def test_rules_of_one_request_may_be_monitored_off_and_not_blocking(asker, store):
    rules = ChangingRules(
        rule(Limit(1, 60), "candidate", mode=RateLimitMode.MONITOR),
        rule(Limit(1, 60), "captcha", block=False),
        rule(Limit(1, 60), "nothing", mode=RateLimitMode.OFF),
        rule(Limit(3, 60), "enforced"),
    )
    assert statuses(asker(rules=rules), 5) == [200, 200, 200, 429, 429]
    assert names_used(store) == {"candidate": 1, "captcha": 1, "enforced": 3}


def test_rules_have_subjects_and_costs_of_their_own(asker, store):
    by_user = rule(Limit(4, 60), "user", by=as_key_function("header:X-User"), cost=2)
    ask = asker(rules=ChangingRules(by_user, rule(Limit(100, 60), "address", cost=3)))
    assert statuses(ask, 3, headers={"X-User": "ann"}) == [200, 200, 429]
    assert statuses(ask, 1, headers={"X-User": "bob"}) == [200]
    assert names_used(store)["address"] == 9


def test_body_is_read_once_for_several_rules_and_left_to_the_application(asker):
    rules = ChangingRules(
        rule(Limit(2, 60), "user", by=json_field("user")), rule(Limit(100, 60), "model", by=json_field("model"))
    )
    ask = asker(rules=rules)
    body = {"user": "ann", "model": "large"}
    answers = [ask(method="POST", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert json.loads(answers[0].content) == body


def test_body_that_is_longer_than_a_rule_may_look_into_is_a_413(asker):
    ask = asker(rules=ChangingRules(rule(Limit(2, 60), by=json_field("user", most_body=10))))
    assert statuses(ask, 1, method="POST", json={"user": "somebody with a long name"}) == [413]


def test_exempt_of_the_middleware_holds_for_a_set_of_rules_too(asker):
    ask = asker(rules=ChangingRules(rule(Limit(1, 60))), exempt=["192.0.2.0/24"])
    assert statuses(ask, 3) == [200, 200, 200]


@pytest.mark.parametrize("given", [["/x"], ["192.0.2.7"], [lambda request: request.path == "/x"]])
def test_what_the_middleware_exempts_has_no_limit_at_all(asker, given):
    ask = asker(default="1/min", exempt=given, address_limit="2/min")
    assert statuses(ask, 4) == [200] * 4
    assert statuses(ask, 2, path="/y") == ([200] * 2 if given == ["192.0.2.7"] else [200, 429])


def test_what_a_rule_exempts_is_still_limited_by_address(asker):
    ask = asker(rules={"/x": {"limits": "1/min", "exempt": ["192.0.2.0/24"]}}, address_limit="2/min")
    assert statuses(ask, 3) == [200, 200, 429]


def test_rules_with_one_counter_are_counted_together_whatever_their_methods(asker, store):
    searching = {"limits": "3/min", "counter": "search"}
    ask = asker(rules={"GET /v1/search": searching, "POST /v2/search": searching}, default=None)
    assert statuses(ask, 2, path="/v1/search") == [200, 200]
    assert statuses(ask, 2, path="/v2/search", method="POST") == [200, 429]
    assert names_used(store) == {"search": 3}


def test_methods_of_a_rule_have_counters_of_their_own(asker):
    rules = {"/x": {"limits": "1/min", "methods": ["POST", "PUT"]}}
    ask = asker(rules=rules, default=None)
    assert statuses(ask, 2, method="POST") == [200, 429]
    assert statuses(ask, 1, method="PUT") == [429]
    assert statuses(ask, 2, method="GET") == [200, 200]


def test_address_of_a_trusted_proxys_client_is_exempt(asker):
    ask = asker(default="1/min", exempt=["198.51.100.0/24"], trusted_hops=1)
    assert statuses(ask, 3, headers={"X-Forwarded-For": "198.51.100.9"}) == [200] * 3
    assert statuses(ask, 2, headers={"X-Forwarded-For": "203.0.113.9"}) == [200, 429]


def test_results_are_told_to_the_application_that_reads_them():
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.extend(result.is_over_limit for result in wsgi.results_in(environ))
        start_response("200 OK", [])
        return []

    front = wsgi.RateLimitMiddleware(app, limiter=RateLimiter(MemoryStore()), default={"limits": "1/min", "block": False})
    for _ in range(2):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "REMOTE_ADDR": "192.0.2.7", "wsgi.input": io.BytesIO()}
        front(environ, lambda status, lines: None)
    assert seen == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": "1/s", "bye": "ip"}, "has bye: it has limits, and actual, anchor, block, by, cost"),
        ({"by": "ip"}, "has no limits"),
        ({"limits": "1/s", "by": "nobody"}, "by 'nobody' is unknown"),
        ({"limits": "1/s", "cost": -1}, "cost -1"),
        ({"limits": "1/s", "mode": "maybe"}, "maybe"),
        ({"limits": "1/s", "on_outage": "maybe"}, "maybe"),
        ({"limits": "1/s", "block": "no"}, "block 'no' is neither True nor False"),
        ({"limits": "1/s", "counter": ""}, "counter '' is neither a name nor a callable"),
        ({"limits": "1/s", "counter": 5}, "counter 5 is neither a name nor a callable"),
        ({"limits": "1/s", "exempt": "/health"}, "exempt '/health' is one text"),
        ({"limits": "1/s", "exempt": ["health"]}, "pattern 'health' is not a path"),
        ({"limits": "1/s", "exempt": [5]}, "pattern 5 is not a path"),
        ({"limits": "1/s", "methods": "POST"}, "methods 'POST' is not a list"),
        ({"limits": "1/s", "methods": ["PSOT"]}, "did you mean POST"),
        ({"limits": "1/s", "per_route": True}, "does not know the routes"),
        ({"limits": "1/s", "per_route": "yes"}, "per_route 'yes' is neither True nor False"),
        ({"limits": 5}, "rule 5 of '/x' is neither"),
    ],
)
def test_rule_that_makes_no_sense_is_an_error_at_the_start(options, message):
    with pytest.raises(ConfigurationError) as caught:
        Rules({"/x": options})
    assert message in str(caught.value)


def test_rule_that_names_its_method_twice_is_an_error():
    with pytest.raises(ConfigurationError, match="names a method, and so do its methods"):
        Rules({"POST /x": {"limits": "1/s", "methods": ["GET"]}})


async def later(request: Any) -> Any:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("by", {"by": later}),
        ("cost", {"cost": later}),
        ("exempt", {"exempt": [later]}),
        ("plan_of", {"plan_of": later}),
        ("limits", {"default": later}),
        ("by", {"rules": {"/x": {"limits": "1/s", "by": later}}}),
        ("cost", {"rules": {"/x": {"limits": "1/s", "cost": later}}}),
        ("counter", {"rules": {"/x": {"limits": "1/s", "counter": later}}}),
        ("exempt", {"rules": {"/x": {"limits": "1/s", "exempt": [later]}}}),
    ],
)
def test_wsgi_refuses_what_has_to_be_awaited_and_asgi_takes_it(what, options):
    with pytest.raises(ConfigurationError, match=f"^{what} .*has to be awaited"):
        wsgi.RateLimitMiddleware(lambda environ, start: [], store="memory://", **options)
    assert asgi.RateLimitMiddleware(lambda scope, receive, send: later(None), store="memory://", **options)


def test_nothing_is_exempt_by_an_empty_list():
    assert Exemptions.of([]) == Exemptions()
    assert Exemptions.of([]).is_by_address
