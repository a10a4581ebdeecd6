"""The clients: what the service decides, both colours, and what happens while it is away."""

from __future__ import annotations

import pickle
import time

import httpx2
import pytest

from ratekit import ConfigurationError, Limit, RateLimitUnavailable
from ratekit.client import Answer, Check, RateKitClient, ServiceError
from ratekit.client.answers import wait_of
from support.servers import free_port, wait_until
from tests.ratekit.client.conftest import made


def test_client_gets_what_the_service_decides(client, service, colour):
    answers = [client.check(f"r-{colour}", "user:1") for _ in range(4)]
    assert [answer.allowed for answer in answers] == [True, True, True, False]
    assert [answer.remaining for answer in answers] == [2, 1, 0, 0]
    assert (answers[0].retry_after, answers[0].limit, answers[0].rule) == (0, 3, "pro/3600s")
    assert 3590 < answers[3].retry_after <= 3600
    assert client.check(f"r-{colour}", "user:1", cost=9).retry_after is None


def test_peek_charge_refund_and_batches(client, colour):
    resource = f"p-{colour}"
    assert client.peek(resource, "u").remaining == 3
    client.charge(resource, "u", cost=2)
    assert client.peek(resource, "u").remaining == 1
    client.refund(resource, "u")
    answers = client.check_batch([Check(resource, "u"), Check(resource, "u", cost=2), Check(resource, "v")])
    assert [answer.allowed for answer in answers] == [True, False, True]


def test_slot_is_held_for_a_block(client, service, colour):
    plan = service[2]["slots"]
    with client.slot(f"s-{colour}", "u", plan_id=plan) as first:
        assert first.allowed
        assert client.renew(first.slot)
        assert not client.check(f"s-{colour}", "u", plan_id=plan).allowed
    with pytest.raises(ZeroDivisionError), client.slot(f"s-{colour}", "u", plan_id=plan) as second:
        1 / (not second.allowed)
    assert client.check(f"s-{colour}", "u", plan_id=plan).allowed


def test_refused_check_is_repeated_when_the_service_says_so(client, service, colour):
    plan = service[2]["quick"]
    for _ in range(2):
        assert client.check(f"w-{colour}", "u", plan_id=plan).allowed
    begun = time.monotonic()
    assert client.check(f"w-{colour}", "u", plan_id=plan, wait=5).allowed
    assert 0.05 < time.monotonic() - begun < 3
    begun = time.monotonic()
    assert not client.check(f"r2-{colour}", "u", cost=4, wait=5).allowed
    assert time.monotonic() - begun < 1


def test_request_that_the_service_refuses_is_an_error_that_names_the_field(client, service, colour):
    with pytest.raises(ServiceError) as raised:
        client.check("r", "u", plan_id="plan_x")
    assert (raised.value.status, raised.value.field) == (404, "plan_id")
    assert pickle.loads(pickle.dumps(raised.value)).field == "plan_id"
    wrong = made(colour, service[0], "nonsense")
    with pytest.raises(ServiceError) as raised:
        wrong.check("r", "u")
    assert raised.value.status == 401
    wrong.close()


def test_service_that_is_away_is_treated_as_on_outage_says(colour):
    url = f"http://127.0.0.1:{free_port()}"
    client = made(colour, url, "k")
    answer = client.check("r", "u")
    assert (answer.allowed, answer.degraded) == (True, "connection")
    assert [one.allowed for one in client.check_batch([Check("r", "u")] * 2)] == [True, True]
    client.close()
    client = made(colour, url, "k", on_outage="closed")
    with pytest.raises(RateLimitUnavailable):
        client.check("r", "u")
    client.close()
    client = made(colour, url, "k", on_outage="local", fallback=Limit(6, 60), instances=2)
    assert [client.check("r", "u").allowed for _ in range(5)] == [True] * 3 + [False] * 2
    client.close()


def test_service_that_is_down_costs_nothing_and_is_tried_again(service, colour):
    tries = []

    class Down(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
        is_down = True

        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            tries.append(1)
            if self.is_down:
                raise httpx2.ConnectTimeout("no answer")
            return httpx2.Response(200, json={"allowed": True, "remaining": 1, "limit": 2, "reset_at": 0.0})

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            return self.handle_request(request)

    transport = Down()
    client = made(colour, "http://service", "k", transport=transport)
    for _ in range(200):
        assert client.check("r", "u").degraded == "timeout"
    assert len(tries) < 20
    transport.is_down = False
    wait_until(lambda: client.check("r", "u").degraded is None, "it was not tried again")
    client.close()


@pytest.mark.parametrize(
    ("status", "body"), [(500, b"oops"), (503, b"{}"), (429, b'{"detail":"too much"}'), (502, b"<html>")]
)
def test_answer_that_is_no_decision_is_an_outage(colour, status, body):
    client = answered_by(colour, status, body)
    found = client.check("r", "u")
    assert (found.allowed, found.degraded) == (True, f"status {status}")
    client.close()


GARBAGE = {
    "page": (200, b"<html>", {}),
    "nothing": (200, b"", {}),
    "list": (200, b"[]", {}),
    "of others": (200, b'{"allowed": true}', {}),
    "words": (200, b'{"allowed": "no", "remaining": 1, "limit": 1, "reset_at": 1}', {}),
    "wait": (200, b'{"allowed": true, "remaining": 1, "limit": 1, "reset_at": 1, "retry_after_ms": "x"}', {}),
    "limits": (200, b'{"allowed": true, "remaining": 1, "limit": 1, "reset_at": 1, "limits": [5]}', {}),
    "too few": (200, b'{"results": []}', {}),
    "deep": (200, b"[" * 100_000, {}),
    "number": (200, b'{"allowed": ' + b"9" * 5000 + b"}", {}),
    "redirect": (302, b"", {"location": "http://elsewhere"}),
    "no content": (204, b"", {}),
    "gzip": (200, b"nonsense", {"content-encoding": "gzip"}),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_answer_that_is_not_of_the_service_is_an_outage_and_never_a_crash(colour, case):
    status, body, headers = GARBAGE[case]
    client = answered_by(colour, status, body, headers)
    reason = "connection" if case == "gzip" else "answer"
    assert client.check("r", "u").degraded == reason
    assert [one.degraded for one in client.check_batch([Check("r", "u"), Check("r", "v")])] == [reason] * 2
    assert client.renew("slot") is False
    client.close()
    closed = answered_by(colour, status, body, headers, on_outage="closed")
    with pytest.raises(RateLimitUnavailable):
        closed.check("r", "u")
    closed.close()


def answered_by(colour, status, body, headers=None, **options):
    """Return a client whose every request gets the same answer."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, stream=httpx2.ByteStream(body), headers=headers)

    return made(colour, "http://service", "k", transport=httpx2.MockTransport(answer), **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"deadline": 0}, "deadline 0"),
        ({"on_outage": "panic"}, "on_outage 'panic'"),
        ({"on_outage": "local"}, "needs a fallback"),
        ({"fallback": Limit(1, 60)}, "needs a fallback"),
        ({"on_outage": "local", "fallback": Limit(1, 60), "instances": 0}, "instances '0'"),
    ],
)
def test_nonsense_is_refused_by_name(options, named):
    with pytest.raises(ConfigurationError, match=named):
        RateKitClient("http://service", "k", **options)
    with pytest.raises(ConfigurationError, match="api_key"):
        RateKitClient("http://service", "a\nb")


@pytest.mark.parametrize("url", ["ratekit:8080", "127.0.0.1:8080", "", "redis://ratekit", "http://", None])
def test_url_without_a_service_is_refused_and_not_an_outage(url):
    with pytest.raises(ConfigurationError, match="is not where a service is: write it like 'http://ratekit:8080'"):
        RateKitClient(url, "k")


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (Answer(True, 4, 5, 99.2), {"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset": "100"}),
        (
            Answer(False, 0, 5, 99.2, 1.2),
            {"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "100", "Retry-After": "2"},
        ),
        (Answer(True, degraded="timeout"), {}),
        (Answer(False, 0, 5, 99.2, 0.2, degraded="timeout"), {"Retry-After": "1"}),
        (Answer(False, retry_after=None, degraded="timeout"), {}),
    ],
)
def test_answer_has_the_headers_for_ones_own_caller(answer, lines):
    assert answer.to_headers() == lines


THEN = "Thu, 01 Jan 1970 00:00:00"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 1),
        ("", 1),
        ("7", 7),
        ("-3", 0),
        ("soon", 1),
        ("nan", 1),
        ("inf", 1),
        (THEN, 0),
        (THEN + " GMT", 0),
        (THEN + " -0000", 0),
    ],
)
def test_retry_after_is_read_as_a_number_or_a_date(text, seconds):
    assert wait_of(text) == seconds
