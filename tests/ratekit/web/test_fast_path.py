"""The fast path beside the engine: with and without it, requests have the same answers, and leave the same behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import Depends, FastAPI, Request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratekit import AsyncRateLimiter, Limit, RateLimiter
from ratekit.asgi import RateLimitMiddleware
from ratekit.core import clock
from ratekit.core.errors import RateLimitExceeded
from ratekit.core.outages import Outage, StoreOutage
from ratekit.stores.async_memory import AsyncMemoryStore
from ratekit.stores.memory import MemoryStore
from ratekit.web import fast_path
from ratekit.web.ledger import Ledger
from ratekit_fastapi import PathRateLimiter, install
from support.listening import heard

FUZZ = int(os.environ.get("RATEKIT_FUZZ", "1"))
PEERS = ["192.0.2.1", "192.0.2.2"]
START_US = 1_700_000_000_000_000
REFUSAL = RateLimiter("memory://").check(Limit(1, 60, name="own"), "u", endpoint="own", cost=2)


class FailingStore(MemoryStore):
    """A store in memory whose next calls fail, as many as it is told."""

    failures = 0

    def run(self, call: Any) -> Sequence[int]:
        """Decide a call, or fail."""
        if self.failures:
            self.failures -= 1
            raise StoreOutage(Outage("timeout", "no answer"))
        return super().run(call)


@dataclass(frozen=True)
class Sent:
    """A request of a peer. Those of one turn are sent at the same time."""

    peer: str = PEERS[0]
    path: str = "/"
    is_refused_behind: bool = False  # the application finds it over another limit
    failures: int = 0  # of the store, from this turn on
    microseconds: int = 0  # that pass before this turn


@dataclass(frozen=True)
class Setting:
    """What a front is told."""

    limits: tuple[Limit, ...]
    cost: int = 1
    mode: str = "on"
    headers: str = "ratelimit"
    on_outage: str = "open"
    address_limit: Limit | None = None
    refusal_cache: bool = False
    fronts: int = 1  # so many stand around the application


def limits() -> st.SearchStrategy[Limit]:
    return st.builds(
        Limit,
        st.integers(1, 4),
        st.sampled_from([1, 60]),
        algorithm=st.sampled_from(["fixed_window", "sliding_window_counter", "token_bucket"]),
        shadow=st.sampled_from([False, False, True]),
        name=st.sampled_from(["a", "b", "c"]),
    )


SETTINGS = st.builds(
    Setting,
    st.lists(limits(), min_size=1, max_size=2, unique_by=lambda limit: limit.name).map(tuple),
    cost=st.sampled_from([1, 1, 2, 0]),
    mode=st.sampled_from(["on", "on", "monitor"]),
    headers=st.sampled_from(["ratelimit", "ratelimit", "draft-11", "x-ratelimit", "none"]),
    on_outage=st.sampled_from(["open", "open", "closed", "local"]),
    address_limit=st.sampled_from([None, None, Limit(2, 60, name="address")]),
    refusal_cache=st.sampled_from([False, False, False, True]),
    fronts=st.sampled_from([1, 2]),
)
SENT = st.builds(
    Sent,
    peer=st.sampled_from(PEERS),
    is_refused_behind=st.sampled_from([False, False, False, True]),
    failures=st.sampled_from([0, 0, 0, 1]),
    microseconds=st.sampled_from([0, 300_000, 1_500_000]),
)
TURNS = st.lists(st.lists(SENT, min_size=1, max_size=4), min_size=1, max_size=6)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["is_refused_behind"]:
        raise RateLimitExceeded(REFUSAL)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"ratelimit-limit", b"its own")]})
    await send({"type": "http.response.body", "body": b"ok"})


def asgi_app(setting: Setting, limiter: AsyncRateLimiter) -> Any:
    app: Any = answer
    for _ in range(setting.fronts):
        app = RateLimitMiddleware(
            app,
            limiter=limiter,
            default=list(setting.limits),
            cost=setting.cost,
            mode=setting.mode,
            headers=setting.headers,
            address_limit=setting.address_limit,
        )
    return app


def fastapi_app(setting: Setting, store: AsyncMemoryStore, by: str | None) -> Any:
    app = FastAPI()
    install(app, store=store, headers=setting.headers, refusal_cache=setting.refusal_cache)
    declared = [[limit] for limit in setting.limits] if setting.fronts > 1 else [list(setting.limits)]
    limiters = [
        PathRateLimiter(limits=some, cost=setting.cost, mode=setting.mode, on_outage=setting.on_outage, by=by)
        for some in declared
    ]

    @app.get("/", dependencies=[Depends(limiter) for limiter in limiters])
    async def read(request: Request) -> str:
        if request.scope["is_refused_behind"]:
            raise RateLimitExceeded(REFUSAL)
        return "ok"

    return app


def made(front: str, setting: Setting, store: FailingStore) -> Any:
    awaited = AsyncMemoryStore.of(store)
    if front != "asgi":
        return fastapi_app(setting, awaited, "ip" if "ip" in front else None)
    return asgi_app(setting, AsyncRateLimiter(awaited, on_outage=setting.on_outage, refusal_cache=setting.refusal_cache))


@contextlib.contextmanager
def set_up(*, is_on: bool) -> Iterator[list[int]]:
    """Turn the fast path on or off, with a clock that stands still. Yields a list of one: the time in microseconds."""
    now = [START_US]
    clock.source, fast_path.is_on = lambda: now[0], is_on
    try:
        yield now
    finally:
        clock.source, fast_path.is_on = None, True


def ledger_of(scope: dict[str, Any]) -> object:
    ledger = Ledger.of(scope)
    spent = [(one.group.call.keys, one.group.call.costs, one.counters, one.result, one.at) for one in ledger.spent]
    return ledger.results, spent, ledger.is_refused, ledger.is_held


async def ask(app: Any, sent: Sent) -> object:
    """Send a request. Returns everything that can be told of it afterwards."""
    messages: list[dict[str, Any]] = []
    scope = {"type": "http", "method": "GET", "path": sent.path, "headers": [], "client": (sent.peer, 1), "root_path": ""}
    scope |= {"query_string": b"", "is_refused_behind": sent.is_refused_behind}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(dict(message))

    (error,) = await asyncio.gather(app(scope, receive, send), return_exceptions=True)
    return messages, repr(error), ledger_of(scope)


def heard_of(decisions: list[Any]) -> list[object]:
    return [(one.call.keys, one.cost, one.result, one.mode, one.failure) for one in decisions]


def contents(store: FailingStore) -> object:
    keys = sorted(store.execute("KEYS", ""))
    return [(key, store.execute("PTTL", key), sorted(store.execute("HGETALL", key))) for key in keys]


async def told(app: Any, store: FailingStore, turns: list[list[Sent]], now: list[int], *, listens: bool) -> object:
    """Send the requests, one turn after the other; return all that came of them, and what is in the store."""
    answers = []
    with heard() if listens else contextlib.nullcontext([]) as decisions:
        for turn in turns:
            now[0] += sum(sent.microseconds for sent in turn)
            store.failures = sum(sent.failures for sent in turn)
            answers.append(await asyncio.gather(*(ask(app, sent) for sent in turn)))
        return answers, heard_of(decisions), contents(store)


def comparable(turns: list[list[Sent]], setting: Setting) -> list[list[Sent]]:
    """Return turns in which no request depends on whether another one is decided before it or after.

    What the application refuses is given back, and a front behind another decides later.
    """
    sent = [one for turn in turns for one in turn]
    is_alone = setting.fronts > 1 or any(one.is_refused_behind for one in sent)
    return [[one] for one in sent] if is_alone else turns


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("front", ["asgi", "FastAPI", "FastAPI by ip"])
@settings(max_examples=150 * FUZZ, suppress_health_check=[HealthCheck.too_slow])
@given(setting=SETTINGS, turns=TURNS)
def test_fast_path_does_what_the_engine_does(front: str, listens: bool, setting: Setting, turns: list[list[Sent]]) -> None:
    outcomes = []
    for is_on in (True, False):
        store = FailingStore()
        with set_up(is_on=is_on) as now:
            app = made(front, setting, store)
            outcomes.append(asyncio.run(told(app, store, comparable(turns, setting), now, listens=listens)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("path", ["/limited", "/free"])
def test_a_front_writes_what_another_has_decided_in_its_own_style(path: str) -> None:
    def outcome() -> object:
        store = FailingStore()
        inner = FastAPI()
        install(inner, store=AsyncMemoryStore.of(store), headers="draft-11")
        inner.get("/limited", dependencies=[Depends(PathRateLimiter(5, 60))])(lambda: "ok")
        inner.get("/free")(lambda: "ok")
        app = RateLimitMiddleware(inner, store=AsyncMemoryStore.of(store), default="3/min", headers="x-ratelimit")
        return asyncio.run(told(app, store, [[Sent(path=path)]] * 4, now, listens=False))

    outcomes = []
    for is_on in (True, False):
        with set_up(is_on=is_on) as now:
            outcomes.append(outcome())
    assert outcomes[0] == outcomes[1]


async def status(app: Any, sent: Sent) -> int:
    messages, _, _ = await ask(app, sent)
    return messages[0]["status"]


@pytest.mark.parametrize("is_on", [True, False])
async def test_as_many_are_admitted_as_the_limit_says(redis_server, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path, "is_on", is_on)
    for store in (AsyncMemoryStore.of(MemoryStore()), redis_server.url):
        limiter = AsyncRateLimiter(store, deadline=5)
        app = RateLimitMiddleware(answer, limiter=limiter, default="100/hour")
        statuses = await asyncio.gather(*(status(app, Sent()) for _ in range(250)))
        assert sorted(statuses) == [200] * 100 + [429] * 150
        await limiter.aclose()


async def test_a_request_that_is_cancelled_before_its_turn_has_spent_nothing() -> None:
    store = MemoryStore()
    app = RateLimitMiddleware(answer, store=AsyncMemoryStore.of(store), default="100/hour")
    await asyncio.gather(*(status(app, Sent()) for _ in range(40)))  # from now on several wait for each other
    tasks = [asyncio.create_task(status(app, Sent())) for _ in range(10)]
    asyncio.get_running_loop().call_soon(lambda: [task.cancel() for task in tasks[::2]])
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, int] * 5
    assert b"45" in store.execute("HGETALL", "ratelimit:default:{ip:192.0.2.1}:3600s")


async def test_a_bug_is_raised_to_its_own_request() -> None:
    class Broken(MemoryStore):
        def run(self, call: Any) -> Sequence[int]:
            if b"192.0.2.2" in call.keys[0]:
                raise ZeroDivisionError
            return super().run(call)

    app = RateLimitMiddleware(answer, store=AsyncMemoryStore.of(Broken()), default="100/hour")
    for _ in range(2):  # the second time several wait for each other
        sent = [Sent(PEERS[number % 2]) for number in range(20)]
        errors = [error for _, error, _ in await asyncio.gather(*(ask(app, one) for one in sent))]
        assert errors == ["None", "ZeroDivisionError()"] * 10


def test_a_request_that_is_alone_waits_for_nobody() -> None:
    app = RateLimitMiddleware(answer, store=AsyncMemoryStore.of(MemoryStore()), default="1000/hour")
    waited = []

    async def send_one_after_the_other() -> None:
        for _ in range(64):
            turns = asyncio.get_running_loop().create_task(count_turns())
            await asyncio.sleep(0)
            await status(app, Sent())
            turns.cancel()

    async def count_turns() -> None:
        waited.append(0)
        while True:
            waited[-1] += 1
            await asyncio.sleep(0)

    asyncio.run(send_one_after_the_other())
    assert sum(count > min(waited) for count in waited) <= 64 // 16


@pytest.mark.parametrize("is_on", [True, False])
def test_an_attempt_stays_counted_where_nothing_else_is_decided_in_front(is_on: bool, monkeypatch) -> None:
    monkeypatch.setattr(fast_path, "is_on", is_on)
    store, statuses = MemoryStore(), []

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message) -> None:
        if "status" in message:
            statuses.append(message["status"])

    inner = RateLimitMiddleware(app, store=store, default="1/min")
    front = RateLimitMiddleware(inner, store=store, default=lambda request: None, attempt_limit="3/hour")

    async def ask() -> None:
        for _ in range(4):
            scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": (PEERS[0], 1)}
            await front(scope, None, send)

    asyncio.run(ask())
    assert statuses == [200, 429, 429, 429]
    check = RateLimiter(store).peek(Limit(3, 3600), f"ip:{PEERS[0]}", endpoint="attempts")
    assert check.remaining == 0
