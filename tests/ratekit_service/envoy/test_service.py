from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ratekit import AsyncRateLimiter, RateLimiter
from ratekit.overrides import set_rate_limit_override
from ratekit.rules.descriptors.file import DescriptorFile
from ratekit.rules.descriptors.tree import Domains
from ratekit.stores.memory import MemoryStore
from ratekit_service.envoy.errors import GrpcError, StatusCode
from ratekit_service.envoy.service import RateLimitService
from support.envoy_messages import OK, OVER_LIMIT, Entries, Response, headers_of, request
from support.servers import free_port
from support.topologies import start_cluster

FILE = """
domain: shop
descriptors:
  - {key: everyone, value: all, rate_limit: {unit: hour, requests_per_unit: 5, name: everyone}}
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: internal, rate_limit: {unlimited: true}}
"""
USER, IP, ALL = [("user", "42")], [("ip", "10.0.0.1")], [("everyone", "all")]


def domains(text: str = FILE) -> Domains:
    return Domains.of([DescriptorFile.parse(text)])


class Caller:
    """Asks a service, as Envoy does."""

    def __init__(self, store: Any, text: str = FILE, **options: Any) -> None:
        on_outage = options.pop("on_outage", "open")
        self.limiter = AsyncRateLimiter(store, on_outage=on_outage)
        self.service = RateLimitService(self.limiter, domains(text), **options)

    async def ask(self, *descriptors: Entries, hits: int = 0, domain: str = "shop") -> Any:
        return await self.send(request(domain, *descriptors, hits=hits))

    async def send(self, message: Any) -> Any:
        return Response.FromString(await self.service.should_rate_limit(message.SerializeToString()))


@pytest.fixture
def caller(ratekit_clock: Any) -> Caller:
    return Caller(MemoryStore())


async def test_statuses_have_the_figures_of_each_descriptor(caller):
    response = await caller.ask(USER, IP)
    assert response.overall_code == OK
    figures = [(one.code, one.current_limit.requests_per_unit, one.limit_remaining) for one in response.statuses]
    assert figures == [(OK, 3, 2), (OK, 4, 3)]
    assert [one.current_limit.name for one in response.statuses] == ["shop:user", "shop:ip"]
    assert {one.current_limit.unit for one in response.statuses} == {2}


async def test_refused_request_has_spent_nothing(caller):
    for _ in range(3):
        assert (await caller.ask(USER, IP)).overall_code == OK
    for _ in range(5):
        refused = await caller.ask(USER, IP)
        assert refused.overall_code == OVER_LIMIT
        assert [(one.code, one.limit_remaining) for one in refused.statuses] == [(OVER_LIMIT, 0), (OK, 1)]
    assert (await caller.ask(IP)).statuses[0].limit_remaining == 0


async def test_refusal_shows_the_limit_that_refuses(caller, ratekit_clock):
    ratekit_clock.set(1_800_000_000 + 12.5)  # a full minute, and some
    for _ in range(3):
        await caller.ask(USER, IP)
    refused = await caller.ask(IP, USER)
    assert headers_of(refused) == {
        "ratelimit-limit": "3",
        "ratelimit-remaining": "0",
        "ratelimit-reset": "48",
        "retry-after": "48",
        "x-ratekit-rule": "shop:user",
    }
    assert [one.duration_until_reset.seconds for one in refused.statuses] == [48, 48]
    ratekit_clock.advance(48)
    assert (await caller.ask(IP, USER)).overall_code == OK


async def test_passing_request_shows_what_is_closest_to_its_limit(caller):
    await caller.ask(ALL)
    assert headers_of(await caller.ask(ALL, IP))["x-ratekit-rule"] == "everyone"
    assert "retry-after" not in headers_of(await caller.ask(ALL, IP))


async def test_hits_of_the_request_are_its_cost(caller):
    assert (await caller.ask(USER, hits=2)).statuses[0].limit_remaining == 1
    refused = await caller.ask(USER, hits=2)
    assert refused.overall_code == OVER_LIMIT
    assert (await caller.ask(USER, hits=1)).overall_code == OK


async def test_hits_of_a_descriptor_come_before_those_of_the_request(caller):
    message = request("shop", USER, IP, hits=3)
    message.descriptors[1].hits_addend.value = 0  # looks, and spends nothing
    response = await caller.send(message)
    assert [one.limit_remaining for one in response.statuses] == [0, 4]


async def test_limit_of_a_descriptor_replaces_that_of_its_rule(caller):
    message = request("shop", USER)
    message.descriptors[0].limit.requests_per_unit, message.descriptors[0].limit.unit = 1, 2
    assert (await caller.send(message)).statuses[0].current_limit.requests_per_unit == 1
    assert (await caller.send(message)).overall_code == OVER_LIMIT
    assert (await caller.ask(USER)).statuses[0].limit_remaining == 1  # the same counter: one is used of three


async def test_limit_of_a_descriptor_without_a_rule_counts_by_all_of_its_values(caller):
    def message(value: str) -> Any:
        made = request("shop", [("new", "x"), ("more", value)])
        made.descriptors[0].limit.requests_per_unit, made.descriptors[0].limit.unit = 1, 3
        return made

    assert [(await caller.send(message("a"))).overall_code for _ in range(2)] == [OK, OVER_LIMIT]
    assert (await caller.send(message("b"))).overall_code == OK


async def test_shadow_never_refuses_and_says_what_it_would_do(caller):
    answers = [await caller.ask([("trial", "1")], USER) for _ in range(3)]
    assert [answer.overall_code for answer in answers] == [OK] * 3
    assert [answer.statuses[0].limit_remaining for answer in answers] == [0, 0, 0]
    assert {headers_of(answer)["x-ratekit-rule"] for answer in answers} == {"shop:user"}


async def test_unlimited_and_unmatched_descriptors_pass_without_the_store():
    caller = Caller(f"redis://127.0.0.1:{free_port()}", on_outage="closed")
    response = await caller.ask([("internal", "x")], [("nothing", "x")])
    assert [(one.code, one.limit_remaining) for one in response.statuses] == [(OK, 2**32 - 1), (OK, 0)]
    await caller.limiter.aclose()


async def test_override_in_the_store_counts_at_once(ratekit_clock):
    store = MemoryStore()
    caller = Caller(store)
    limiter = RateLimiter(store)
    set_rate_limit_override(limiter, subject="user:42", endpoint="shop:user", max_requests=1)
    first, second = [await caller.ask(USER) for _ in range(2)]
    assert (first.overall_code, second.overall_code) == (OK, OVER_LIMIT)
    assert second.statuses[0].current_limit.requests_per_unit == 1
    assert (await caller.ask([("user", "43")])).statuses[0].current_limit.requests_per_unit == 3
    set_rate_limit_override(limiter, subject="user:42", endpoint="shop:user", unlimited=True)
    assert (await caller.ask(USER)).statuses[0].limit_remaining == 2**32 - 1


async def test_monitor_mode_counts_and_refuses_nobody(caller, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "monitor")
    answers = [await caller.ask(USER) for _ in range(5)]
    assert {answer.overall_code for answer in answers} == {OK}
    assert {one.code for answer in answers for one in answer.statuses} == {OK}
    assert headers_of(answers[-1])["ratelimit-remaining"] == "0"
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert (await caller.ask(USER)).overall_code == OVER_LIMIT


async def test_mode_off_counts_nothing(caller, monkeypatch):
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    answers = [await caller.ask(USER, IP) for _ in range(9)]
    assert {(answer.overall_code, len(answer.statuses), len(headers_of(answer))) for answer in answers} == {(OK, 2, 0)}
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert (await caller.ask(USER)).statuses[0].limit_remaining == 2


async def test_store_away_passes_when_open_and_is_unavailable_when_closed():
    url = f"redis://127.0.0.1:{free_port()}"
    caller = Caller(url)
    response = await caller.ask(USER)
    assert (response.overall_code, response.statuses[0].HasField("current_limit")) == (OK, False)
    assert headers_of(response) == {}
    await caller.limiter.aclose()
    closed = Caller(url, on_outage="closed")
    with pytest.raises(GrpcError, match="the rate limit cannot be checked now") as caught:
        await closed.ask(USER)
    assert caught.value.code == StatusCode.UNAVAILABLE
    await closed.limiter.aclose()


async def test_other_limits_count_from_the_next_request(caller):
    assert (await caller.ask(USER)).statuses[0].limit_remaining == 2
    caller.service.use(domains(FILE.replace("requests_per_unit: 3", "requests_per_unit: 30")))
    assert (await caller.ask(USER)).statuses[0].limit_remaining == 28


@pytest.mark.parametrize(
    ("message", "code", "sentence"),
    [
        (b"\xff\xff", StatusCode.INVALID_ARGUMENT, "the request is not a RateLimitRequest: a number is cut off at byte 2"),
        (b"", StatusCode.INVALID_ARGUMENT, "domain is empty"),
        (request("", USER), StatusCode.INVALID_ARGUMENT, "domain is empty"),
        (request("shop"), StatusCode.INVALID_ARGUMENT, "descriptors are 0, not 1 to 100"),
        (request("shop", *[USER] * 101), StatusCode.INVALID_ARGUMENT, "descriptors are 101, not 1 to 100"),
        (request("other", USER), StatusCode.NOT_FOUND, "domain 'other' is unknown: there are shop"),
        (request("x" * 1000, USER), StatusCode.NOT_FOUND, "…' is unknown"),
        (request("shop", [("user", "x" * 2**20)]), StatusCode.INVALID_ARGUMENT, "has 1048600 bytes, and at most"),
    ],
)  # fmt: skip
async def test_request_that_makes_no_sense_is_answered_with_a_status(caller, message, code, sentence):
    data = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(GrpcError) as caught:
        await caller.service.should_rate_limit(data)
    assert caught.value.code == code
    assert sentence in caught.value.message


async def test_hits_and_units_that_make_no_sense_are_named(caller):
    message = request("shop", USER)
    message.descriptors[0].hits_addend.value = 2**64 - 1
    with pytest.raises(GrpcError, match="hits_addend 18446744073709551615 is more than"):
        await caller.send(message)
    message = request("shop", USER)
    message.descriptors[0].limit.requests_per_unit = 5
    with pytest.raises(GrpcError, match="the unit 0 of a descriptor's limit is none of 1, 2, 3, 4, 7, 5, 6"):
        await caller.send(message)
    message = request("shop", USER)
    message.descriptors[0].is_negative_hits = True
    with pytest.raises(GrpcError, match="is_negative_hits is not supported") as caught:
        await caller.send(message)
    assert caught.value.code == StatusCode.UNIMPLEMENTED


async def test_long_values_and_odd_characters_count_apart(caller):
    for value in ("x" * 10_000, "x" * 10_001, "", "{", "}", "%", "a b", "\n", "ü", "user:42"):
        assert (await caller.ask([("user", value)])).statuses[0].limit_remaining == 2


async def test_no_random_request_is_refused_or_crashes_where_nothing_is_limited():
    caller = Caller(MemoryStore(), "domain: shop\ndescriptors: []")
    draw = random.Random(7)
    for _ in range(2000):
        data = bytearray(request("shop", USER, IP).SerializeToString())
        for _ in range(draw.randrange(3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            answer = Response.FromString(await caller.service.should_rate_limit(bytes(data)))
        except GrpcError as error:
            assert error.code in (StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND, StatusCode.UNIMPLEMENTED)
        else:
            assert answer.overall_code == OK


async def test_exactly_the_limit_passes_of_many_at_once(redis_server):
    """Two services on one Redis, and every request with two descriptors, of which one is exhausted first."""
    text = FILE.replace("unit: minute, requests_per_unit: 3", "unit: year, requests_per_unit: 50")
    text = text.replace("unit: hour, requests_per_unit: 5", "unit: year, requests_per_unit: 70")
    callers = [Caller(redis_server.url, text) for _ in range(2)]
    asked = [callers[number % 2].ask(USER, ALL) for number in range(200)]
    answers = await asyncio.gather(*asked)
    assert sum(answer.overall_code == OK for answer in answers) == 50
    assert (await callers[0].ask(ALL, hits=20)).overall_code == OK  # 50 of 70 are spent, and not one more
    assert (await callers[0].ask(ALL)).overall_code == OVER_LIMIT
    for caller in callers:
        await caller.limiter.aclose()


async def test_refused_request_has_spent_nothing_on_a_cluster():
    """Descriptors of different slots are one call each, and what earlier calls have spent is given back."""
    with start_cluster() as cluster:
        text = FILE.replace("unit: minute", "unit: year").replace("unit: hour", "unit: year")
        caller = Caller(cluster.url, text)
        for _ in range(3):
            assert (await caller.ask(USER, IP, ALL)).overall_code == OK
        for _ in range(4):
            refused = await caller.ask(ALL, IP, USER)
            assert refused.overall_code == OVER_LIMIT
            assert refused.statuses[2].code == OVER_LIMIT
            assert headers_of(refused)["x-ratekit-rule"] == "shop:user"
        left = [(await caller.ask(descriptor)).statuses[0].limit_remaining for descriptor in (IP, ALL)]
        assert left == [0, 1]
        await caller.limiter.aclose()
