"""Counting in the process while the store is away, and settling with it when it is back."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ratekit import AsyncRateLimiter, Limit, Policy, RateLimiter
from ratekit.local import LocalFallback
from ratekit.overrides import set_rate_limit_override
from ratekit.protocol import encode
from support.servers import free_port, start_server, stop_server, wheel_server

TEN = Policy("ten", Limit(10, 600))


class Link:
    """A limiter of either colour on a server that comes and goes."""

    def __init__(self, colour: str, **options: Any) -> None:
        self.port = free_port()
        url = f"redis://127.0.0.1:{self.port}"
        kind = RateLimiter if colour == "sync" else AsyncRateLimiter
        self.limiter: Any = kind(url, on_outage="local", deadline=1, **options)
        self._runner = asyncio.Runner()
        self._server: Any = None

    def up(self) -> None:
        self._server = start_server(wheel_server(), port=self.port)

    def down(self) -> None:
        stop_server(self._server)
        self._server = None

    def ask(self, operation: str, *args: Any, **options: Any) -> Any:
        async def waited() -> Any:
            answer = getattr(self.limiter, operation)(*args, **options)
            return await answer if inspect.isawaitable(answer) else answer

        return self._runner.run(waited())

    def wait_until(self, condition: Callable[[Any], bool], operation: str, *args: Any) -> Any:
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
            self.down()


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
    assert admitted(one, TEN, "all", of=30) == 30


def test_what_was_admitted_locally_is_charged_once_when_the_store_is_back(link, ratekit_clock):
    one = link()
    both = Policy("both", [Limit(10, 600), Limit(100, 3600, algorithm="token_bucket")])
    one.up()
    one.ask("charge", both, "u", cost=2)
    one.down()
    assert admitted(one, both, "u", of=5) == 5
    one.up()
    one.wait_until(lambda answer: answer.degraded is None, "peek", both, "other")
    settled = one.wait_until(lambda answer: answer.tiers[0].used > 0, "peek", both, "u")
    assert [tier.used for tier in settled.tiers] == [5, 5]  # the server came back empty
    assert [tier.used for tier in one.ask("peek", both, "u").tiers] == [5, 5]


def test_what_was_admitted_in_a_window_that_is_over_is_not_charged(link, ratekit_clock):
    one = link()
    both = Policy("both", [Limit(10, 60), Limit(100, 3600)])
    assert admitted(one, both, "u", of=5) == 5
    ratekit_clock.advance(120)
    assert admitted(one, both, "u", of=1) == 1
    one.up()
    one.wait_until(lambda answer: answer.degraded is None, "peek", both, "other")
    settled = one.wait_until(lambda answer: answer.tiers[0].used > 0, "peek", both, "u")
    assert [tier.used for tier in settled.tiers] == [1, 6]


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
