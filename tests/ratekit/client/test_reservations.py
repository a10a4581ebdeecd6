"""Reservations by the clients, in both colours: every case of docs/quotas.md that a client decides."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from ratekit import ConfigurationError, Limit, Policy, RateLimitExceeded, RateLimitUnavailable
from ratekit.client import AsyncRateKitClient, Check, ServiceError
from support.servers import free_port
from tests.ratekit.client.conftest import made

TOKENS = {"tokens": 800}


@pytest.fixture
def llm(client, service, colour, request):
    """A client that asks by the plan with units, for a subject of its own."""
    return Llm(client, service[2]["llm"], f"{request.node.name}-{colour}"[-200:])


class Llm:
    def __init__(self, client, plan, subject):
        self.client, self.place, self.options = client, ("POST:/chat", subject), {"plan_id": plan}

    def reserve(self, estimate=TOKENS, **options):
        return self.client.reserve(*self.place, estimate=estimate, **self.options, **options)

    def reserve_now(self, estimate=TOKENS, **options):
        return self.client.reserve_now(*self.place, estimate=estimate, **self.options, **options)

    def used(self):
        answer = self.client.peek(*self.place, cost={"tokens": 0, "requests": 0}, **self.options)
        return {limit.unit: limit.used for limit in answer.limits}


def test_block_settles_what_it_has_cost(llm):
    with llm.reserve() as reservation:
        assert (reservation.allowed, reservation.estimate) == (True, {"requests": 1, "tokens": 800})
        assert llm.used() == {"requests": 1, "tokens": 800}
        reservation.settle(tokens=523)
    assert llm.used() == {"requests": 1, "tokens": 523}


def test_number_without_a_unit_is_of_the_only_unit_beside_requests(llm):
    with llm.reserve() as reservation:
        reservation.settle(523)
    assert llm.used() == {"requests": 1, "tokens": 523}


def test_what_is_said_of_the_cost_too_late_is_an_error_and_not_lost(llm):
    with llm.reserve({"tokens": 1}) as reservation:
        reservation.add(tokens=5)
    for say in (reservation.add, reservation.settle):
        with pytest.raises(ConfigurationError, match="cannot be taken note of: it was settled when its block ended"):
            say(tokens=7)
        with pytest.raises(ConfigurationError, match="7 cannot be taken note of: what reserve_now has reserved is settled"):
            getattr(llm.reserve_now({"tokens": 0}), say.__name__)(7)


def test_threads_that_work_for_one_request_add_to_one_sum(llm):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with llm.reserve({"tokens": 1}) as reservation:
            with ThreadPoolExecutor(8) as threads:
                for _ in range(8):
                    threads.submit(lambda: [reservation.add(tokens=1) for _ in range(5000)])
            assert reservation.actual() == {"requests": 1, "tokens": 40_000}
    finally:
        sys.setswitchinterval(interval)


def test_block_that_says_nothing_keeps_the_estimate(llm):
    with llm.reserve():
        pass
    assert llm.used() == {"requests": 1, "tokens": 800}


def test_what_a_stream_adds_is_its_cost(llm):
    with llm.reserve() as reservation:
        for _ in range(3):
            reservation.add(tokens=100)
    assert llm.used() == {"requests": 1, "tokens": 300}


def test_all_returns_if_the_block_raises_unless_something_was_added(llm):
    with pytest.raises(ZeroDivisionError), llm.reserve():
        raise ZeroDivisionError
    assert llm.used() == {"requests": 0, "tokens": 0}
    with pytest.raises(ZeroDivisionError), llm.reserve() as reservation:
        1 / (reservation.add(tokens=7) or 0)
    assert llm.used() == {"requests": 1, "tokens": 7}


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_estimate_stays_if_the_block_is_cancelled(llm, error):
    with pytest.raises(error), llm.reserve():
        raise error
    assert llm.used() == {"requests": 1, "tokens": 800}


def test_estimate_that_does_not_fit_raises_what_every_front_answers_with(llm):
    with llm.reserve() as reservation, pytest.raises(RateLimitExceeded) as raised, llm.reserve():
        pass
    result = raised.value.result
    assert (result.allowed, result.limit, result.max_requests, result.remaining) == (False, "tokens-3600s", 1000, 0)
    assert 3500 < result.retry_after <= 3600
    assert "Retry-After" in result.to_headers()
    assert reservation.allowed
    with pytest.raises(RateLimitExceeded) as raised, llm.reserve({"tokens": 5000}):
        pass
    assert raised.value.result.retry_after is None
    with llm.reserve({"tokens": 5000}, clamp=True) as clamped:
        assert clamped.estimate == {"requests": 1, "tokens": 200}


def test_reservation_travels_by_its_id_and_is_settled_once(llm):
    reservation = llm.reserve_now()
    assert not llm.reserve_now().allowed
    assert llm.client.settle(reservation.id, actual={"tokens": 100}).repeated is False
    assert llm.client.settle(reservation.id, actual={"tokens": 900}).repeated is True
    assert llm.used() == {"requests": 1, "tokens": 100}


def test_reserve_with_an_id_of_its_own_spends_once(llm, colour):
    first, again = [llm.reserve_now(reservation=f"mine{colour}") for _ in range(2)]
    assert (first.answer.repeated, again.answer.repeated) == (False, True)
    assert llm.used() == {"requests": 1, "tokens": 800}


def test_slot_of_a_concurrency_limit_is_held_for_the_block(client, service, colour):
    place = (f"h-{colour}", "u")
    options = {"plan_id": service[2]["held"], "estimate": {"tokens": 10}}
    with client.reserve(*place, **options) as first:
        assert client.renew(first.id)
        with client.reserve(*place, **options):
            assert not client.reserve_now(*place, **options).allowed
    with client.reserve(*place, **options):
        pass
    assert not client.renew(first.id)


def test_costs_shares_and_anchors_are_sent(llm, service):
    client, place, options = llm.client, llm.place, llm.options
    assert client.check(*place, cost={"tokens": 500}, **options).allowed
    assert not client.check(*place, cost={"tokens": 100}, share=0.5, **options).allowed
    assert not client.peek(*place, cost={"tokens": 100}, share=0.5, **options).allowed
    client.charge(*place, cost={"tokens": 600}, **options)
    client.refund(*place, cost={"tokens": 100, "requests": 2}, **options)
    assert llm.used() == {"requests": 0, "tokens": 1000}
    anchor = datetime.datetime(2024, 1, 15, 9, tzinfo=datetime.UTC)
    answer = client.check(*place, plan_id=service[2]["month"], anchor=anchor)
    ends = datetime.datetime.fromtimestamp(answer.reset_at, datetime.UTC)
    assert (ends.day, ends.hour) == (15, 9)
    batch = [Check(*place, {"tokens": 1}, options["plan_id"]), Check(*place, 1, service[2]["month"], 0.2, 31)]
    assert [one.allowed for one in client.check_batch(batch)] == [False, True]


def test_what_makes_no_sense_is_named(llm):
    with pytest.raises(ServiceError, match="estimate 1 says no unit"), llm.reserve(1):
        pass
    with llm.reserve() as reservation:
        with pytest.raises(ConfigurationError, match="unit 'pages' of actual is unknown: the plan counts requests, tokens"):
            reservation.settle(pages=5)
        with pytest.raises(ConfigurationError, match="amount -1 of tokens"):
            reservation.add(tokens=-1)
    for wrong, error in (("", ConfigurationError), ("~nonsense", ConfigurationError), ("nonsense", ServiceError)):
        with pytest.raises(error):
            llm.client.settle(wrong, actual=1)


def test_service_away_passes_or_raises_as_on_outage_says(colour):
    url = f"http://127.0.0.1:{free_port()}"
    client = made(colour, url, "k")
    with client.reserve("r", "u", estimate=TOKENS) as reservation:
        assert (reservation.allowed, reservation.answer.degraded) == (True, "connection")
        reservation.settle(tokens=5)
    assert client.settle(reservation.id, actual=TOKENS).degraded == "connection"
    client.close()
    client = made(colour, url, "k", on_outage="closed")
    with pytest.raises(RateLimitUnavailable), client.reserve("r", "u"):
        pass
    client.close()
    fallback = Policy("llm", [Limit(2, 60), Limit(1000, 60, unit="tokens")])
    client = made(colour, url, "k", on_outage="local", fallback=fallback)
    with client.reserve("r", "u", estimate={"tokens": 800, "pages": 1}):
        pass
    with pytest.raises(RateLimitExceeded), client.reserve("r", "u", estimate=TOKENS):
        pass
    assert client.check("r", "u").allowed
    client.close()


def test_reserve_whose_answer_was_lost_is_settled_when_the_service_is_back(service, colour, caplog):
    """The reserve arrives, and its answer does not."""
    url, key, plans = service
    sent = []

    class Lossy(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            sent.append((request.url.path, json.loads(request.content)))
            with httpx2.Client(timeout=10) as real:
                headers = {"x-api-key": key}
                answer = real.post(f"{url}{request.url.path}", json=sent[-1][1], headers=headers)
            if request.url.path == "/v1/reserve":
                raise httpx2.ReadTimeout("no answer")
            return httpx2.Response(answer.status_code, content=answer.content)

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            return self.handle_request(request)

    client = made(colour, "http://service", key, transport=Lossy())
    llm = Llm(client, plans["llm"], f"lost-{colour}")
    with caplog.at_level(logging.WARNING), llm.reserve() as reservation:
        assert reservation.answer.degraded == "timeout"
        reservation.settle(tokens=10)
    assert llm.used() == {"requests": 1, "tokens": 10}
    assert [path for path, _ in sent][:2] == ["/v1/reserve", "/v1/commit"]
    assert client.settle(reservation.id, actual=TOKENS).repeated is True
    client.close()


def test_commit_that_fails_does_not_hide_what_the_block_raised(service, colour, caplog):
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/reserve":
            body = {"allowed": True, "remaining": 1, "limit": 2, "reset_at": 0.0, "id": "x", "estimate": 1}
            return httpx2.Response(200, json=body)
        return httpx2.Response(404, json={"detail": "there is no such reservation", "field": "id"})

    client = made(colour, "http://service", "k", transport=httpx2.MockTransport(answer))
    with pytest.raises(ZeroDivisionError), client.reserve("r", "u"):
        raise ZeroDivisionError
    assert "a reservation is not settled" in caplog.text
    with pytest.raises(ServiceError, match="no such reservation"), client.reserve("r", "u") as reservation:
        reservation.settle(0)
    client.close()


@pytest.mark.parametrize(("name", "used"), [("llm", [0, 0]), ("tokens", [0])])
async def test_cancelled_reserve_returns_what_nobody_will_use(service, name, used):
    url, key, plans = service
    arrived, waiting = asyncio.Event(), asyncio.Event()

    class Slow(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            answer = await super().handle_async_request(request)
            if request.url.path == "/v1/reserve":
                arrived.set()
                await waiting.wait()
            return answer

    async with AsyncRateKitClient(url, key, deadline=10, transport=Slow()) as client:
        place, plan = ("POST:/chat", f"cancelled-{name}"), plans[name]
        task = asyncio.create_task(client.reserve_now(*place, estimate=TOKENS, plan_id=plan))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await client.peek(*place, cost={"tokens": 0}, plan_id=plan)
        assert [limit.used for limit in answer.limits] == used
