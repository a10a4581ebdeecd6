"""Requests of a kind that was decided before: the short way decides what the long one would, for each its own."""

from __future__ import annotations

import asyncio
import contextvars
import traceback

import pytest

from ratekit import AsyncRateLimiter, RateLimitMode, events
from ratekit.addresses import TrustedProxies
from ratekit.asgi import RateLimitMiddleware
from ratekit.modes import add_mode_source
from ratekit.requests import AsgiRequest
from ratekit.results import RateLimitResult
from ratekit.scopes import results_in
from ratekit.stores.memory import MemoryStore
from support.servers import start_server, stop_server, wheel_server


@pytest.fixture(params=["memory", "redis"])
async def store(request):
    """A store in this process, and one in a server."""
    if request.param == "memory":
        yield MemoryStore()
        return
    limiter = AsyncRateLimiter(f"{request.getfixturevalue('redis_server').url}?socket_timeout=2")
    yield limiter.store
    await limiter.aclose()


SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("203.0.113.9", 1)}


async def _receive():
    return {"type": "http.request"}


async def _app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"rateLIMIT-Remaining", b"1")]})
    await send({"type": "http.response.body", "body": b""})


async def _one(middleware, **scope):
    """Send a request; return the status, with what is told to remain, None if nothing is."""
    sent = []

    async def send(message):
        sent.append(message)

    await middleware({**SCOPE, **scope}, _receive, send)
    remaining = [int(value) for name, value in sent[0]["headers"] if name == b"ratelimit-remaining"]
    return sent[0]["status"], *(remaining or [None])


async def _answers(middleware, count):
    return await asyncio.gather(*(_one(middleware) for _ in range(count)))


def _checks(middleware, **scope):
    request = AsgiRequest({**SCOPE, **scope}, TrustedProxies())
    return middleware.guard.checks(request, middleware.guard.rule("GET", "/"))


@pytest.mark.parametrize("listening", [False, True])
async def test_requests_at_once_are_admitted_exactly_and_told_their_own_figures(store, listening):
    heard = []
    remove = events.decisions.add(heard.append) if listening else lambda: None
    try:
        middleware = RateLimitMiddleware(_app, store=store, default="20/min")
        first = await _answers(middleware, 1)  # from here on it is known what there is to check
        rest = await _answers(middleware, 30)
    finally:
        remove()
    assert first == [(200, 19)]
    assert rest == [(200, left) for left in range(18, -1, -1)] + [(429, 0)] * 11
    assert len(heard) == (31 if listening else 0)


async def test_known_request_is_decided_on_the_short_way(store, monkeypatch):
    middleware = RateLimitMiddleware(_app, store=store, default="20/min")
    assert await _answers(middleware, 1) == [(200, 19)]
    monkeypatch.delattr(RateLimitMiddleware, "_limit")
    assert await _answers(middleware, 2) == [(200, 18), (200, 17)]


async def test_several_limits_are_decided_and_told_as_one(store):
    middleware = RateLimitMiddleware(_app, store=store, default=["5/min", "3/h"])
    assert await _answers(middleware, 1) + await _answers(middleware, 4) == [
        (200, 2),
        (200, 1),
        (200, 0),
        (429, 0),
        (429, 0),
    ]


async def test_limit_by_address_is_decided_first_and_the_strictest_is_told(store):
    middleware = RateLimitMiddleware(_app, store=store, default="9/min", address_limit="2/min")
    assert await _answers(middleware, 1) + await _answers(middleware, 3) == [(200, 1), (200, 0), (429, 0), (429, 0)]
    peeked = [await middleware.limiter.peek(c.policy, c.subject, endpoint=c.endpoint) for c, _ in _checks(middleware)]
    assert [result.request_count for result in peeked] == [2, 2]  # what the address may not do spends nothing else


@pytest.mark.parametrize("copies", [False, True])
async def test_fronts_one_inside_the_other_tell_of_the_strictest(store, copies):
    inner = RateLimitMiddleware(_app, store=store, default="3/min", rules={"/": "4/min"})

    async def between(scope, receive, send):
        await inner(dict(scope) if copies else scope, receive, send)

    outer = RateLimitMiddleware(between, store=store, default="9/min")
    assert [await _one(outer) for _ in range(5)] == [(200, 3), (200, 2), (200, 1), (200, 0), (429, 0)]


async def test_what_was_decided_can_be_read_by_the_application(store, ratekit_clock):
    seen = []

    async def app(scope, receive, send):
        seen.append(list(results_in(scope)))
        assert results_in(scope) is results_in(scope)
        await _app(scope, receive, send)

    middleware = RateLimitMiddleware(app, store=store, default="9/min")
    long = RateLimitMiddleware(app, store=store, default="9/min")
    long._passages.is_usable = False
    for front, left in ((middleware, 8), (middleware, 7), (long, 6)):
        assert await _one(front) == (200, left)
    (_,), (short,), (result,) = seen
    assert type(short) is RateLimitResult
    assert short.decided_at == result.decided_at == ratekit_clock.now
    assert (short.limits, short.remaining, short.degraded) == (result.limits, 7, None)


async def test_application_that_refuses_by_itself_has_the_figures_of_its_request(store):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 429, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    middleware = RateLimitMiddleware(app, store=store, default="9/min")
    assert await _answers(middleware, 1) + await _answers(middleware, 2) == [(429, 8), (429, 7), (429, 6)]


async def test_request_that_is_not_limited_passes_untouched(store):
    middleware = RateLimitMiddleware(_app, store=store, default="1/min", exempt=["/health"])
    await _answers(middleware, 2)
    assert await _one(middleware, path="/health") == (200, None)
    assert await _one(middleware, method="OPTIONS") == (200, None)


async def test_requests_of_one_turn_keep_to_their_peers_and_paths(store):
    middleware = RateLimitMiddleware(_app, store=store, default="9/min", rules={"/a": "2/min", "/b/{id}": "3/min"})
    asked = [(path, peer) for path in ("/a", "/b/1", "/b/2", "/c") for peer in ("192.0.2.1", "192.0.2.2")]
    rounds = [
        await asyncio.gather(*(_one(middleware, path=path, client=(peer, 1)) for path, peer in asked)) for _ in range(2)
    ]
    assert rounds[0] == [(200, left) for left in (1, 1, 2, 2, 1, 1, 8, 8)]
    assert rounds[1] == [(200, 0), (200, 0), (200, 0), (200, 0), (429, 0), (429, 0), (200, 7), (200, 7)]


async def test_refused_request_is_counted_once(store):
    middleware = RateLimitMiddleware(_app, store=store, default=["1/min", "100/h shadow"])
    await _answers(middleware, 1)
    await _answers(middleware, 4)
    (check, _), *_ = _checks(middleware)
    alone = AsyncRateLimiter(MemoryStore())
    for _ in range(5):
        await alone.check(check.policy, check.subject, endpoint=check.endpoint)
    peeked = [
        await limiter.peek(check.policy, check.subject, endpoint=check.endpoint) for limiter in (middleware.limiter, alone)
    ]
    assert [tier.used for tier in peeked[0].tiers] == [tier.used for tier in peeked[1].tiers]


async def test_cancelled_requests_harm_no_neighbour(store):
    middleware = RateLimitMiddleware(_app, store=store, default="20/min")
    await _answers(middleware, 1)
    tasks = [asyncio.ensure_future(_one(middleware)) for _ in range(12)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, False, False] * 4
    told = [remaining for status, remaining in (answer for answer in answers if isinstance(answer, tuple))]
    assert told == sorted(set(told), reverse=True)  # each its own, in order
    ((check, _),) = _checks(middleware)
    used = (await middleware.limiter.peek(check.policy, check.subject, endpoint=check.endpoint)).request_count
    assert 9 <= used <= 13


async def test_monitor_mode_lets_pass_and_keeps_counting(store):
    middleware = RateLimitMiddleware(_app, store=store, default="2/min", mode=RateLimitMode.MONITOR)
    assert [status for status, _ in await _answers(middleware, 5)] == [200] * 5


async def test_mode_is_read_for_every_request(store, monkeypatch):
    middleware = RateLimitMiddleware(_app, store=store, default="2/min")
    assert await _answers(middleware, 3) == [(200, 1), (200, 0), (429, 0)]
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    assert await _one(middleware) == (200, 0)
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert await _one(middleware) == (200, None)
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert await _one(middleware) == (429, 0)


async def _spoil(middleware, **scope):
    """Put something else where the state is."""
    ((_, call),) = _checks(middleware, **scope)
    store = middleware.limiter.store
    (key,) = call.state_keys
    if isinstance(store, MemoryStore):
        store.execute("DEL", key)
        store.execute("ZADD", key, 1, "x")
    else:
        client = await store.client()
        await client.delete(key)
        await client.zadd(key, {"x": 1})


@pytest.mark.parametrize(("on_outage", "answer"), [("open", (200, None)), ("closed", (503, None))])
async def test_key_that_holds_something_else_follows_on_outage(store, on_outage, answer):
    middleware = RateLimitMiddleware(_app, store=store, default="5/min", on_outage=on_outage)
    await _answers(middleware, 1)
    await _spoil(middleware)
    assert await _answers(middleware, 3) == [answer] * 3


async def test_requests_pass_while_the_server_is_away_and_are_decided_when_it_is_back():
    server = start_server(wheel_server())
    middleware = RateLimitMiddleware(_app, store=f"{server.url}?socket_timeout=2", default="20/min")
    try:
        assert await _answers(middleware, 1) == [(200, 19)]
        assert await _answers(middleware, 2) == [(200, 18), (200, 17)]
        stop_server(server)
        for _ in range(4):  # found out by asking, and known by then
            assert await _answers(middleware, 5) == [(200, None)] * 5
        server = start_server(wheel_server(), port=server.port)
        await _until_decided(middleware)
        assert await _answers(middleware, 2) == [(200, 18), (200, 17)]
    finally:
        await middleware.limiter.aclose()
        stop_server(server)


async def _until_decided(middleware):
    for _ in range(200):
        if (await _one(middleware))[1] is not None:
            return
        await asyncio.sleep(0.05)  # the breaker's own pauses


async def test_bug_surfaces_in_the_requests_of_its_turn_and_in_no_other(monkeypatch):
    middleware = RateLimitMiddleware(_app, store=MemoryStore(), default="20/min")
    await _answers(middleware, 1)
    decide, fails = middleware.limiter.ask_each, iter((True, False))

    def decide_or_fail(calls):
        return 1 // 0 if next(fails) else decide(calls)

    monkeypatch.setattr(middleware.limiter, "ask_each", decide_or_fail)
    answers = await asyncio.gather(*(_one(middleware) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ZeroDivisionError] * 3
    assert len(set(map(id, answers))) == 1
    assert len(traceback.extract_tb(answers[0].__traceback__)) < 12  # it does not grow each time that it is raised
    assert await _answers(middleware, 2) == [(200, 18), (200, 17)]


@pytest.mark.parametrize("wrong", [{"path": None}, {"path": ["/"]}, {"client": 5}])
async def test_scope_that_makes_no_sense_is_nothing_to_the_others_of_its_turn(store, wrong):
    middleware = RateLimitMiddleware(_app, store=store, default="20/min")
    await _answers(middleware, 1)
    requests = [_one(middleware), _one(middleware, **wrong), _one(middleware)]
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert [answers[0], answers[2]] == [(200, 18), (200, 17)]
    assert isinstance(answers[1], TypeError | AttributeError)


async def test_mode_source_is_asked_in_the_context_of_each_request(store):
    tenant = contextvars.ContextVar("tenant", default="other")
    remove = add_mode_source(lambda: "off" if tenant.get() == "trusted" else None)

    async def ask(name):
        tenant.set(name)
        return await _one(middleware)

    try:
        middleware = RateLimitMiddleware(_app, store=store, default="2/min")
        await _answers(middleware, 1)
        names = ("other", "trusted", "trusted", "other", "other")
        answers = await asyncio.gather(*(ask(name) for name in names))
    finally:
        remove()
    assert answers == [(200, 0), (200, None), (200, None), (429, 0), (429, 0)]


class _Own:
    """A store in this process that is not ours: it has what the protocol of a store asks for, and takes note of calls."""

    is_local = True

    def __init__(self):
        self.store, self.calls = MemoryStore(), []

    def run(self, call):
        self.calls.append(call)
        return self.store.run(call)

    def health(self):
        return self.store.health()

    async def aclose(self):
        pass


class _Handing(_Own):
    """One that hands on to ours whatever it does not have itself."""

    def __getattr__(self, name):
        return getattr(vars(self)["store"], name)


class _Inheriting(MemoryStore):
    def __init__(self):
        super().__init__()
        self.calls = []

    def run(self, call):
        self.calls.append(call)
        return super().run(call)


@pytest.mark.parametrize("make", [_Own, _Handing, _Inheriting])
async def test_store_that_has_its_own_way_to_decide_is_asked_for_each_request(make):
    store = make()
    middleware = RateLimitMiddleware(_app, store=store, default="9/min", exempt=["/health"])
    answers = await _answers(middleware, 1) + await _answers(middleware, 9)
    assert answers == [(200, left) for left in range(8, -1, -1)] + [(429, 0)]
    assert await _one(middleware, path="/health") == (200, None)
    assert len(store.calls) == 10


async def test_key_that_holds_something_else_is_nothing_to_the_others_of_its_turn():
    middleware = RateLimitMiddleware(_app, store=MemoryStore(), default="20/min")
    peers = [f"192.0.2.{number}" for number in range(8)]

    async def turn():
        return await asyncio.gather(*(_one(middleware, client=(peer, 1)) for peer in peers))

    assert await turn() == [(200, 19)] * 8
    await _spoil(middleware, client=("192.0.2.3", 1))
    for left in (18, 17):
        assert await turn() == [(200, None if peer == "192.0.2.3" else left) for peer in peers]


async def test_mode_is_off_for_a_turn_that_was_begun_before(monkeypatch, store):
    middleware = RateLimitMiddleware(_app, store=store, default="2/min")
    assert await _answers(middleware, 2) == [(200, 1), (200, 0)]
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert await _answers(middleware, 6) == [(200, None)] * 6


@pytest.mark.parametrize("style", ["ratelimit", "x-ratelimit", "draft-11", "none", ("ratelimit", "draft-11")])
@pytest.mark.parametrize("default", ["5/min", ["5/min", "9/h"], "5/min shadow"])
async def test_headers_are_those_of_the_long_way(store, style, default, ratekit_clock):
    async def lines(middleware):
        sent = []

        async def send(message):
            sent.append(message)

        await middleware(dict(SCOPE), _receive, send)
        return sent[0]["headers"]

    short, long = (RateLimitMiddleware(_app, store=store, default=default, headers=style) for _ in range(2))
    long._passages.is_usable = False
    await lines(long)
    await lines(short)
    ratekit_clock.advance(0.5)
    for _ in range(3):
        told = await lines(short)
        for check, _ in _checks(short):
            await short.limiter.refund(check.policy, check.subject, endpoint=check.endpoint)
        assert told == await lines(long)
