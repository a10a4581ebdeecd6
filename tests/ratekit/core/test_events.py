"""One event for each decision, whoever asked for it; and listeners that harm nobody."""

from __future__ import annotations

import asyncio
import logging

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from ratekit import (
    AsyncRateLimiter,
    ConfigurationError,
    Limit,
    Policy,
    RateLimiter,
    RateLimitMode,
    RateLimitUnavailable,
    asgi,
    wsgi,
)
from ratekit.core import events
from ratekit.core.events import Outcome, StoreState
from ratekit.core.keys import Counter, override_key
from ratekit.core.protocol import encode, merge
from ratekit_fastapi import PathRateLimiter, install
from support.listening import heard
from support.servers import free_port

pytestmark = pytest.mark.usefixtures("ratekit_store", "ratekit_clock")
TWO = Policy("search", [Limit(2, 60)])


def outcomes(decisions: list[events.Decision]) -> list[str]:
    return [str(decision.outcome) for decision in decisions]


def test_check_tells_one_decision_with_all_that_is_known_of_it():
    with heard() as decisions, RateLimiter("memory://") as limiter:
        result = limiter.check(TWO, "user:42", cost=2, endpoint="/search:v1")
    (decision,) = decisions
    assert (decision.endpoint, decision.subject, decision.policy) == ("/search:v1", "user:42", "search")
    assert (decision.cost, decision.mode, decision.outcome) == (2, RateLimitMode.ON, Outcome.ALLOWED)
    assert decision.result is result
    assert decision.limits == TWO.limits
    assert 0 < decision.seconds < 10
    assert (decision.degraded, decision.overridden, decision.refused_by) == (None, False, ())


def test_decision_of_several_checks_has_the_largest_of_their_costs():
    with heard() as decisions, RateLimiter("memory://") as limiter:
        limiter.decide(merge([encode(TWO, "user:42"), encode(Policy("tokens", "900/min"), "user:42", cost=80)]))
    assert [(decision.cost, decision.call.costs, decision.call.compiled.policies) for decision in decisions] == [
        (80, (1, 80), ("search", "tokens"))
    ]


SEVERAL = {
    "the first refuses": (("1/min", "5/min shadow"), "9/min", ("/a", "user:1", "first")),
    "the second refuses": (("9/min",), "1/min", ("/b", "ip:7", "second")),
    "a shadow of the second would refuse": (("9/min",), "1/min shadow", ("/b", "ip:7", "second")),
    "none refuses": (("9/min",), "9/min", ("/a", "user:1", "first")),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_decision_of_several_checks_is_of_the_one_that_refused(case):
    first, second, said = SEVERAL[case]
    parts = [encode(Policy("first", first), "user:1", "/a"), encode(Policy("second", second), "ip:7", "/b")]
    with heard() as decisions, RateLimiter("memory://") as limiter:
        for _ in range(2):
            limiter.decide(merge(parts))
    assert [(one.endpoint, one.subject, one.policy) for one in decisions] == [("/a", "user:1", "first"), said]


def test_decision_of_several_checks_that_refuse_is_of_the_one_with_the_longest_wait():
    parts = [encode(Policy("short", "1/min"), "user:1", "/a"), encode(Policy("long", "1/h"), "user:1", "/b")]
    with heard() as decisions, RateLimiter("memory://") as limiter:
        for _ in range(2):
            limiter.decide(merge(parts))
    assert (decisions[1].endpoint, decisions[1].policy) == ("/b", "long")
    assert decisions[1].refused_by == ("60s", "3600s")


def test_decision_of_checks_without_named_policies_is_of_the_endpoint_that_refused():
    app = FastAPI()
    install(app, store="memory://")
    limiters = [PathRateLimiter(5, 60, by=lambda _: "user:42"), PathRateLimiter(1, 60, by="ip", endpoint="all")]
    app.get("/x", dependencies=[Depends(limiter) for limiter in limiters])(lambda: "hello")
    with heard() as decisions:
        statuses = [TestClient(app).get("/x").status_code for _ in range(2)]
    assert statuses == [200, 429]
    assert [(one.endpoint, one.policy, one.subject) for one in decisions] == [
        ("/x", "/x", "user:42"),
        ("all", "all", "ip:127.0.0.1"),
    ]


def test_awaited_check_tells_the_same():
    async def checks():
        async with AsyncRateLimiter("memory://") as limiter:
            for _ in range(3):
                await limiter.check(TWO, "user:42")

    with heard() as decisions:
        asyncio.run(checks())
    assert outcomes(decisions) == ["allowed", "allowed", "denied"]
    assert decisions[2].refused_by == ("60s",)


def test_what_does_not_decide_is_not_told():
    jobs = Policy("jobs", Limit(1, 60, algorithm="concurrency"))
    with heard() as decisions, RateLimiter("memory://") as limiter:
        for ask in (limiter.peek, limiter.charge, limiter.refund, limiter.reset):
            ask(TWO, "user:42")
        with limiter.slot(jobs, "user:42"):
            limiter.renew(jobs, "user:42", "other")
    assert [decision.endpoint for decision in decisions] == ["jobs"]


def test_shadow_that_would_refuse_is_told_beside_an_admission():
    policy = Policy("search", [Limit(5, 60), Limit(1, 60, name="tight", shadow=True)])
    with heard() as decisions, RateLimiter("memory://") as limiter:
        allowed = [limiter.check(policy, "user:42").allowed for _ in range(6)]
    assert allowed == [True] * 5 + [False]
    assert outcomes(decisions) == ["allowed", *["would_deny"] * 4, "denied"]
    assert decisions[1].refused_by == ("tight",)


def test_override_that_applies_is_told():
    with heard() as decisions, RateLimiter("memory://") as limiter:
        limiter.store.execute("HSET", override_key("ratelimit", "search", "user:42"), "max_requests", "9")
        limiter.check(TWO, "user:42")
        limiter.check(TWO, "user:43")
    assert [decision.overridden for decision in decisions] == [True, False]


def test_outage_is_told_with_its_reason():
    url = f"redis://127.0.0.1:{free_port()}"
    with heard() as decisions:
        RateLimiter(url).check(TWO, "user:42")
        RateLimiter(url, on_outage="local").check(TWO, "user:42", cost=2)
        RateLimiter(url, on_outage="local").check(TWO, "user:42", cost=3)
        with pytest.raises(RateLimitUnavailable):
            RateLimiter(url, on_outage="closed").check(TWO, "user:42")
    assert outcomes(decisions) == ["degraded", "degraded", "denied", "error"]
    assert [decision.degraded for decision in decisions] == ["connection"] * 4
    assert decisions[3].result is None
    assert decisions[3].refused_by == ()
    assert not decisions[3].overridden


def test_awaited_outage_is_told_too():
    async def check():
        async with AsyncRateLimiter(f"redis://127.0.0.1:{free_port()}", on_outage="closed") as limiter:
            with pytest.raises(RateLimitUnavailable):
                await limiter.check(TWO, "user:42")

    with heard() as decisions:
        asyncio.run(check())
    assert outcomes(decisions) == ["error"]


async def _hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def _asgi(limits="1/min", **options):
    client = TestClient(asgi.RateLimitMiddleware(_hello, rules={"/x": limits}, by=lambda _: "user:42", **options))
    return lambda: client.get("/x").status_code


def _wsgi(limits="1/min", **options):
    def app(environ, start_response):
        start_response("200 OK", [])
        return [b"hello"]

    limited = wsgi.RateLimitMiddleware(app, rules={"/x": limits}, by=lambda _: "user:42", **options)
    statuses: list[str] = []

    def send() -> int:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/x", "REMOTE_ADDR": "192.0.2.1"}
        list(limited(environ, lambda status, *_: statuses.append(status)))
        return int(statuses[-1][:3])

    return send


def _fastapi(**options):
    app = FastAPI()
    install(app, store="memory://")
    limiter = PathRateLimiter(1, 60, by=lambda _: "user:42", **options)
    app.get("/x", dependencies=[Depends(limiter)])(lambda: "hello")
    client = TestClient(app)
    return lambda: client.get("/x").status_code


@pytest.mark.parametrize("front", [_asgi, _wsgi, _fastapi])
def test_front_tells_each_decision_once_with_its_mode(front, monkeypatch):
    send = front()
    with heard() as decisions:
        statuses = [send(), send()]
        monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
        statuses.append(send())
        monkeypatch.setenv("RATE_LIMIT_MODE", "off")
        statuses.append(send())
    assert statuses == [200, 429, 200, 200]
    assert outcomes(decisions) == ["allowed", "denied", "would_deny"]
    assert [str(decision.mode) for decision in decisions] == ["on", "on", "monitor"]
    assert {(decision.endpoint, decision.policy, decision.subject) for decision in decisions} == {("/x", "/x", "user:42")}


@pytest.mark.parametrize("front", [_asgi, _wsgi])
def test_front_that_holds_a_slot_tells_it_once(front):
    send = front(Policy("jobs", Limit(1, 60, algorithm="concurrency")), mode="monitor")
    with heard() as decisions:
        send()
    assert [(decision.policy, str(decision.mode)) for decision in decisions] == [("jobs", "monitor")]


def test_several_limiters_of_a_route_tell_what_they_decide_together_once():
    app = FastAPI()
    install(app, store="memory://")
    limiters = [
        PathRateLimiter(5, 60, by=lambda _: "user:42"),
        PathRateLimiter(1, 1, by=lambda _: "user:42", endpoint="all"),
    ]
    app.get("/x", dependencies=[Depends(limiter) for limiter in limiters])(lambda: "hello")
    with heard() as decisions:
        TestClient(app).get("/x")
    (decision,) = decisions
    assert decision.counters == (Counter("/x", "user:42"), Counter("all", "user:42"))
    assert decision.policy == "/x"


def test_key_of_a_subclass_is_told_as_it_is():
    class Own(PathRateLimiter):
        def make_key(self, request):
            return "mine:login:{user 42}"

        def make_override_key(self, request):
            return None

    app = FastAPI()
    install(app, store="memory://")
    app.get("/x", dependencies=[Depends(Own(1, 60))])(lambda: "hello")
    with heard() as decisions:
        TestClient(app).get("/x")
    assert decisions[0].counters == (Counter("mine:login", "user 42"),)


@pytest.mark.parametrize(
    ("endpoint", "subject"), [("/a:{b}", "1:2"), ("50 %", "späte Gäste\n"), ("/x", "{a}:{b}"), ("a:", ":b")], ids=repr
)
def test_endpoint_and_subject_are_told_as_they_were_given(endpoint, subject):
    with heard() as decisions, RateLimiter("memory://", prefix="my:limits") as limiter:
        limiter.check(TWO, subject, endpoint=endpoint)
    assert decisions[0].counters == (Counter(endpoint, subject),)


def test_long_subject_is_told_by_its_hash():
    with heard() as decisions, RateLimiter("memory://") as limiter:
        limiter.check(TWO, "x" * 300)
        limiter.check(TWO, "y" * 300)
    assert all(decision.subject.startswith("sha256-") for decision in decisions)
    assert decisions[0].subject != decisions[1].subject


def test_listener_that_raises_harms_no_request_and_is_logged_once(caplog):
    def broken(decision):
        raise RuntimeError("no")

    remove = events.on_decision(broken)
    try:
        with heard() as decisions, RateLimiter("memory://") as limiter, caplog.at_level(logging.ERROR):
            assert [limiter.check(TWO, "user:42").allowed for _ in range(3)] == [True, True, False]
    finally:
        remove()
    assert len(decisions) == 3
    assert [record.name for record in caplog.records] == ["ratekit.events"]
    assert "broken" in caplog.records[0].getMessage()


def test_listener_that_was_removed_is_told_no_more():
    with heard() as decisions:
        pass
    with RateLimiter("memory://") as limiter:
        limiter.check(TWO, "user:42")
    assert decisions == []
    assert events.decisions.listeners == ()


def test_listener_that_cannot_be_called_is_refused():
    with pytest.raises(ConfigurationError, match="listener 7 is not callable"):
        events.on_decision(7)


def test_change_of_a_store_is_told():
    changes: list[events.StoreChange] = []
    remove = events.on_store_change(changes.append)
    events.notify_store_change("redis://host", StoreState.DOWN, "timeout")
    remove()
    events.notify_store_change("redis://host", StoreState.UP)
    assert changes == [("redis://host", StoreState.DOWN, "timeout")]
