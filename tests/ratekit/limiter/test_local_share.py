"""Counting in the process while the store is away, and settling with it when it is back."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from faults.proxy import Proxy
from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter
from ratekit.core.protocol import Extra, encode, merge
from ratekit.limiter.local_share import LocalFallback
from ratekit.overrides import set_rate_limit_override
from support.servers import free_port, start_server, stop_server, wheel_server

TEN = Policy("ten", Limit(10, 600))


class Link:
    """A limiter of either colour on a server that comes and goes."""

    def __init__(self, colour: str, *, port: int = 0, store: Any = None, **options: Any) -> None:
        self.port = port or free_port()
        kind = RateLimiter if colour == "sync" else AsyncRateLimiter
        store = store or f"redis://127.0.0.1:{self.port}"
        self.limiter: Any = kind(store, on_outage="local", **{"deadline": 1} | options)
        self._runner = asyncio.Runner()
        self._server: Any = None

    def up(self) -> None:
        self._server = start_server(wheel_server(), port=self.port)

    def down(self) -> None:
        stop_server(self._server)
        self._server = None
        self._runner.run(asyncio.sleep(0.05))  # an event loop notices: else the next call is sent, and in doubt

    def ask(self, operation: str, *args: Any, **options: Any) -> Any:
        async def waited() -> Any:
            answer = getattr(self.limiter, operation)(*args, **options)
            return await answer if inspect.isawaitable(answer) else answer

        return self._runner.run(waited())

    def ask_until(self, condition: Callable[[Any], bool], operation: str, *args: Any) -> Any:
        """Ask until an answer is as it should be; the breaker and the settling take their time."""
        deadline = time.monotonic() + 10
        while not condition(answer := self.ask(operation, *args)):
            assert time.monotonic() < deadline, answer
            self._runner.run(asyncio.sleep(0.02))
        return answer

    def close(self) -> None:
        self.ask("close" if isinstance(self.limiter, RateLimiter) else "aclose")
        self._runner.close()
        if self._server is not None:
            stop_server(self._server)


@pytest.fixture(params=["sync", "async"])
def link(request: pytest.FixtureRequest) -> Iterator[Callable[..., Link]]:
    made: list[Link] = []

    def make(**options: Any) -> Link:
        made.append(Link(request.param, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def admitted(link: Link, policy: Policy, subject: str, of: int) -> int:
    answers = [link.ask("check", policy, subject) for _ in range(of)]
    assert all(answer.degraded for answer in answers)
    return sum(answer.allowed for answer in answers)


def test_exhausted_subject_stays_exhausted_when_the_store_goes(link):
    one = link(instances=2)
    one.up()
    one.ask("charge", TEN, "spent", cost=10)
    one.ask("charge", TEN, "half", cost=5)
    one.down()
    assert admitted(one, TEN, "spent", of=10) == 0
    assert admitted(one, TEN, "half", of=10) == 2  # 5 of 10 used is 3 of its share of 5, rounded up
    assert admitted(one, TEN, "new", of=10) == 5


def test_window_of_the_store_ends_locally_when_it_would_have_ended_there(link, ratekit_clock):
    one = link()
    one.up()
    one.ask("charge", TEN, "u", cost=10)
    ratekit_clock.advance(400)
    assert one.ask("peek", TEN, "u").reset_after == 200
    one.down()
    assert one.ask("check", TEN, "u").retry_after == 200
    ratekit_clock.advance(200)
    assert one.ask("check", TEN, "u").allowed


def test_override_that_the_store_has_told_of_counts_when_it_is_away(link):
    one = link(instances=2)
    one.up()
    for subject, numbers in (("many", {"max_requests": 100}), ("none", {"max_requests": 0}), ("all", {"unlimited": True})):
        with RateLimiter(f"redis://127.0.0.1:{one.port}", deadline=5) as admin:
            set_rate_limit_override(admin, endpoint="ten", subject=subject, **numbers)
        one.ask("peek", TEN, subject)
    one.down()
    assert admitted(one, TEN, "many", of=60) == 50
    assert admitted(one, TEN, "none", of=3) == 0
    assert one.ask("take", TEN, "none", cost=3).taken == 0
    assert admitted(one, TEN, "all", of=30) == 30


def test_what_was_admitted_locally_is_charged_once_when_the_store_is_back(link, ratekit_clock):
    one = link()
    both = Policy("both", [Limit(10, 600), Limit(100, 3600, algorithm="token_bucket")])
    one.up()
    one.ask("charge", both, "u", cost=2)
    one.down()
    assert admitted(one, both, "u", of=5) == 5
    one.up()
    one.ask_until(lambda answer: answer.degraded is None, "peek", both, "other")
    settled = one.ask_until(lambda answer: answer.tiers[0].used > 0, "peek", both, "u")
    assert [tier.used for tier in settled.tiers] == [5, 5]  # the server came back empty
    assert [tier.used for tier in one.ask("peek", both, "u").tiers] == [5, 5]


def test_what_was_admitted_in_a_window_that_is_over_is_not_charged(link, ratekit_clock):
    one = link()
    both = Policy("both", [Limit(10, 60), Limit(100, 3600)])
    assert admitted(one, both, "u", of=5) == 5
    ratekit_clock.advance(120)
    assert admitted(one, both, "u", of=1) == 1
    one.up()
    one.ask_until(lambda answer: answer.degraded is None, "peek", both, "other")
    settled = one.ask_until(lambda answer: answer.tiers[0].used > 0, "peek", both, "u")
    assert [tier.used for tier in settled.tiers] == [1, 6]


SHADOWED = Policy("shadowed", [Limit(60, 600, name="enforced"), Limit(5, 600, name="shadow", shadow=True)])


def test_what_is_admitted_is_owed_although_a_shadow_would_refuse():
    fallback = LocalFallback(1)
    for _ in range(50):
        assert fallback.run(encode(SHADOWED, "u"))[0] & 1
    assert [(debt.compiled.limits[0].name, debt.cost) for debt in fallback.debts()] == [("enforced", 50), ("shadow", 5)]


def test_what_an_enforced_limit_refuses_is_not_owed():
    fallback = LocalFallback(1)
    for _ in range(70):
        fallback.run(encode(SHADOWED, "u"))
    assert [debt.cost for debt in fallback.debts()] == [60, 5]


def test_only_shadow_limits_are_owed_where_none_is_enforced():
    fallback = LocalFallback(1)
    for _ in range(7):
        fallback.run(encode(Policy("watched", Limit(5, 600, shadow=True)), "u"))
    assert [debt.cost for debt in fallback.debts()] == [5]


def test_override_of_a_shadow_to_nothing_refuses_nobody(link):
    one = link()
    one.up()
    with RateLimiter(f"redis://127.0.0.1:{one.port}", deadline=5) as admin:
        set_rate_limit_override(admin, endpoint="shadowed", subject="u", limit="shadow", max_requests=0)
    one.ask("peek", SHADOWED, "u")
    one.down()
    assert admitted(one, SHADOWED, "u", of=10) == 10


@pytest.mark.parametrize("behaviour", [{"lost": True}, {"silent": True}])
def test_what_may_have_been_charged_is_not_charged_again(link, redis_server, behaviour):
    with Proxy(redis_server.port) as proxy:
        one = link(deadline=0.2, port=proxy.port)
        many = Policy("many", Limit(1000, 600))
        assert one.ask("check", many, "u").degraded is None
        proxy.behave(**behaviour)
        assert admitted(one, many, "u", of=50) == 50
        proxy.behave()
        one.ask_until(lambda answer: answer.degraded is None, "peek", many, "other")
        settled = one.ask_until(lambda answer: answer.request_count > 40, "peek", many, "u")
        assert settled.request_count == 51


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_what_a_brought_client_could_not_send_is_charged(redis_server, colour):
    port = free_port()
    one = Link(colour, store=(redis if colour == "sync" else redis.asyncio).Redis(port=port, retry=None))
    try:
        assert admitted(one, TEN, "u", of=5) == 5
        assert [debt.cost for batch in one.limiter._fallback.debts() for debt in batch] == [5]
    finally:
        one.close()


def test_each_counter_is_owed_its_own_cost_when_checks_cost_differently():
    requests, tokens = Policy("requests", Limit(9, 60)), Policy("tokens", Limit(1000, 60))
    fallback = LocalFallback(1)
    fallback.run(merge([encode(requests, "u"), encode(tokens, "u", cost=400)]))
    assert [(debt.compiled.limits, debt.cost) for debt in fallback.debts()] == [(requests.limits, 1), (tokens.limits, 400)]


def test_memory_is_bounded_and_who_is_exhausted_stays_so_when_many_come():
    fallback = LocalFallback(1, most=100)
    while fallback.run(encode(TEN, "spent"))[0] & 1:
        pass
    for number in range(20_000):
        fallback.run(encode(TEN, f"user:{number}"))
        fallback.learn(encode(TEN, f"seen:{number}"), (1, 10, 1, 9, 0, 1))
    assert len(fallback._store) <= 400
    assert len(fallback._seen) == 100
    assert len(fallback._owing) == 100
    assert not fallback.run(encode(TEN, "spent"))[0] & 1
    assert fallback.run(encode(TEN, "one more")) == ()


def test_settle_that_is_sent_again_while_the_store_is_away_is_charged_once_when_it_is_back(link):
    one = link()
    one.up()
    one.ask("check", TEN, "other")
    one.down()
    one.ask("check", TEN, "other")
    reservation = one.ask("reserve_now", TEN, "u", estimate=8)
    settle = {"actual": 3, "known": reservation.estimate}
    assert [one.ask("settle", TEN, "u", reservation.id, **settle).repeated for _ in range(3)] == [False, True, True]
    one.up()
    one.ask_until(lambda answer: answer.degraded is None, "peek", TEN, "other")
    one.ask_until(lambda answer: answer.request_count > 0, "peek", TEN, "u")
    assert one.ask("settle", TEN, "u", reservation.id, **settle).repeated
    assert one.ask("peek", TEN, "u").request_count == 3


def test_what_was_not_needed_of_a_reservation_returns_when_the_store_is_back():
    """The store remembers what was reserved: the settle that did not reach it is told by its id, and charges nothing."""
    fallback = LocalFallback(1)
    extra = Extra(hold_ms=1000, known=8)
    fallback.run(encode(TEN, "u", operation="settle", cost=3, slot="one", extra=extra))
    fallback.run(encode(TEN, "u", operation="settle", cost=9, slot="two", extra=extra))
    debts = [(debt.operation, debt.slot, debt.cost) for debt in fallback.debts()]
    assert debts == [("settle", "one", 3), ("settle", "two", 8), ("charge", None, 1)]
    assert not fallback.owes


@pytest.mark.parametrize(("asked", "taken"), [(1, 1), (3, 3), (4, 4), (500, 10)])
def test_take_is_owed_as_much_as_was_there(asked, taken):
    fallback = LocalFallback(1)
    assert fallback.run(encode(TEN, "u", operation="take", cost=asked))[-1] == taken
    assert [debt.cost for debt in fallback.debts()] == [taken]


def test_take_by_units_is_owed_as_much_as_was_there_of_each():
    both = Policy("both", ["5/min", Limit(10, 60, unit="tokens")])
    fallback = LocalFallback(1)
    fallback.run(encode(both, "u", operation="take", cost={"tokens": 500}))
    assert [debt.cost for debt in fallback.debts()] == [1, 10]


def test_ban_that_the_store_has_told_of_counts_when_it_is_away(link, ratekit_clock):
    one = link()
    one.up()
    with RateLimiter(f"redis://127.0.0.1:{one.port}", deadline=5) as admin:
        set_rate_limit_override(admin, endpoint="ten", subject="u", until=ratekit_clock.now + 100)
    assert one.ask("check", TEN, "u").retry_after == 100
    one.down()
    ratekit_clock.advance(40)
    refused = one.ask("check", TEN, "u")
    assert (refused.allowed, refused.retry_after, refused.degraded) == (False, 60, "connection")
    assert one.ask("reserve_now", TEN, "u").is_over_limit
    assert one.ask("take", TEN, "u", cost=5).taken == 0
    ratekit_clock.advance(60)
    assert one.ask("check", TEN, "u").allowed
