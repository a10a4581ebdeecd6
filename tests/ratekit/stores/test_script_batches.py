"""Batches: requests see each other, and a fault stays with its request. On every real server, and in the process."""

from __future__ import annotations

import pytest

from ratekit import Limit, Policy, RateLimiter
from ratekit.core.protocol import Operation, encode, merge, only
from ratekit.stores.memory import MemoryStore
from ratekit.testing import is_admitted
from support.servers import SERVERS, server_of, start_server, stop_server

pytestmark = pytest.mark.usefixtures("ratekit_clock")
FIVE = Policy("five", Limit(5, 60))


@pytest.fixture(params=["memory", "memory-plain-lua", *SERVERS])
def limiter(request):
    if request.param.startswith("memory"):
        yield RateLimiter(MemoryStore("lua54" if "plain" in request.param else None))
        return
    server = server_of(request.param)
    with server.client() as client, RateLimiter(server.url, deadline=5) as limiter:
        client.flushall()
        yield limiter


def spoil(limiter, key: str) -> None:
    """Put a value of a type that no algorithm uses under a key."""
    if isinstance(limiter.store, MemoryStore):
        other = "ZADD" if "log" not in key and "concurrency" not in key else "HSET"
        limiter.store.execute(other, key, 1, "x") if other == "ZADD" else limiter.store.execute(other, key, "x", "1")
    else:
        limiter.store.client.set(key, "x")


def test_two_requests_of_a_batch_on_one_key_see_each_other(limiter):
    calls = [encode(FIVE, "u", cost=2) for _ in range(4)]
    flags = [answer[0] % 2 for answer in limiter.store.run_many(calls)]
    assert flags == [1, 1, 0, 0]
    assert limiter.peek(FIVE, "u").request_count == 4


def test_batch_of_different_policies_and_operations_is_decided_in_order(limiter):
    slots = Policy("slots", [Limit(1, 60, algorithm="concurrency", name="slots"), Limit(9, 60)])
    calls = [
        encode(slots, "u", operation="acquire", slot="a"),
        encode(FIVE, "u", cost=5),
        encode(slots, "u", operation="acquire", slot="b"),
        encode(FIVE, "u", operation="refund", cost=3),
        encode(slots, "u", operation="release", slot="a"),
        encode(FIVE, "u", cost=3),
        encode(slots, "u", operation="acquire", slot="b"),
        encode(FIVE, "u", operation="charge", cost=4),
        encode(FIVE, "u", operation="peek"),
    ]
    answers = limiter.store.run_many(calls)
    assert [answer[0] % 2 for answer in answers] == [1, 1, 0, 1, 1, 1, 1, 1, 0]
    assert [answer[2] for answer in answers] == [1, 5, 1, 2, 0, 5, 1, 9, 9]


def test_override_of_one_request_does_not_leak_into_the_next_of_the_batch(limiter):
    key = "ratelimit_override:five:{low}"
    if isinstance(limiter.store, MemoryStore):
        limiter.store.execute("HSET", key, "max_requests", "1", "expiry", "5")
    else:
        limiter.store.client.hset(key, mapping={"max_requests": 1, "expiry": 5})
    answers = limiter.store.run_many([encode(FIVE, subject) for subject in ("low", "u", "low", "u")])
    assert [(answer[0], answer[1], answer[5]) for answer in answers] == [
        (1 + 2, 1, 5_000_000),
        (1, 5, 60_000_000),
        (0 + 2, 1, 5_000_000),
        (1, 5, 60_000_000),
    ]


def test_checks_of_one_request_spend_each_its_own_cost_or_nothing(limiter):
    requests, tokens = Policy("requests", Limit(3, 60)), Policy("tokens", Limit(1000, 60))
    call = merge([encode(requests, "u"), encode(tokens, "u", cost=400)])
    answers = limiter.store.run_many([call] * 3)
    assert [(answer[0] % 2, answer[2], answer[6] % 2, answer[8]) for answer in answers] == [
        (1, 1, 1, 400),
        (1, 2, 1, 800),
        (1, 2, 0, 800),
    ]


def test_request_takes_one_slot_whatever_its_checks_cost(limiter):
    slots, tokens = Policy("slots", Limit(2, 60, algorithm="concurrency")), Policy("tokens", Limit(1000, 60))
    calls = [
        merge([encode(slots, "u", operation="acquire", slot=slot), encode(tokens, "u", cost=400)])
        for slot in ("a", "b", "c")
    ]
    answers = limiter.store.run_many([*calls, only(calls[0], [0], Operation.RELEASE), only(calls[0], [1], Operation.REFUND)])
    assert [(answer[0] % 2, answer[2]) for answer in answers] == [(1, 1), (1, 2), (0, 2), (1, 1), (1, 400)]
    assert [answer[8] for answer in answers[:3]] == [400, 800, 800]


@pytest.mark.parametrize("order", [1, -1])
def test_checks_that_meet_in_one_counter_move_it_once_by_the_larger_cost(limiter, order):
    calls = [
        encode(Policy(name, Limit(most, 60)), "u", endpoint="e", cost=cost)
        for name, most, cost in [("a", 5, 1), ("b", 9, 3)]
    ]
    answers = limiter.store.run_many([merge(calls[::order])] * 2)
    assert [[answer[2], answer[8]] for answer in answers] == [[3, 3], [3, 3]]
    assert [flags % 2 for flags in answers[1][::6]] == [0, 1][::order]


def test_limit_whose_override_another_limit_brought_has_it_alone_too(limiter):
    """Fields without a name are the first limit's of a policy, also in a call without that limit."""
    policy, key = Policy("p", [Limit(5, 60, name="one"), Limit(5, 60, name="two")]), "ratelimit_override:p:{u}"
    fields = ("max_requests", "7", "two.expiry", "9")
    if isinstance(limiter.store, MemoryStore):
        limiter.store.execute("HSET", key, *fields)
    else:
        limiter.store.client.hset(key, items=fields)
    call = only(encode(policy, "u"), [1], Operation.CHECK)
    for check in (call, merge([call, encode(FIVE, "u", cost=2)])):
        (answer,) = limiter.store.run_many([check])
        assert (answer[0], answer[1], answer[5]) == (1 + 2, 5, 9_000_000)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window_log", "token_bucket"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_key_of_a_wrong_type_fails_its_request_alone(limiter, algorithm, position):
    policy = Policy("p", [Limit(5, 60, name="first"), Limit(5, 60, algorithm=algorithm, name="second")])
    subjects = ["a", "b", "c"]
    spoil(limiter, encode(policy, subjects[position]).keys[-1].decode())
    answers = limiter.store.run_many([encode(policy, subject, cost=2) for subject in subjects])
    for index, (subject, answer) in enumerate(zip(subjects, answers, strict=True)):
        if index == position:
            assert "WRONGTYPE" in answer
            assert limiter.peek(Policy("p", Limit(5, 60, name="first")), subject).request_count == 0
        else:
            assert answer[2] == answer[8] == 2


@pytest.mark.parametrize("limiter", list(SERVERS), indirect=True)
def test_fault_while_the_limits_of_a_request_are_written_leaves_its_neighbours_their_answers(limiter):
    """A number that Redis does not count on is found when it is written, after that of the limit behind it."""
    policy = Policy("p", [Limit(5, 60, name="first"), Limit(5, 60, name="second")])
    calls = [encode(policy, subject) for subject in ("a", "b", "c")]
    limiter.store.run_many(calls)
    limiter.store.client.hset("ratelimit:p:{b}:first", "n", "1.0")
    answers = limiter.store.run_many(calls)
    assert "not an integer" in answers[1]
    assert [(answer[2], answer[8], len(answer)) for answer in (answers[0], answers[2])] == [(2, 2, 12)] * 2
    assert "not an integer" in limiter.store.run_many(calls[1:2])[0]


def test_full_memory_fails_writes_alone_and_refusals_go_on():
    """Needs a server of its own: memory is full for everybody."""
    for executable in filter(None, SERVERS.values()):
        server = start_server(executable, "--maxmemory-policy", "noeviction")
        try:
            with server.client() as client, RateLimiter(server.url, deadline=5) as limiter:
                limiter.check(FIVE, "exhausted", cost=5)
                client.config_set("maxmemory", 1)
                calls = [encode(FIVE, subject) for subject in ("new", "exhausted", "other")]
                answers = limiter.store.run_many(calls)
                assert "OOM" in answers[0]
                assert "OOM" in answers[2]
                assert (answers[1][0], answers[1][2]) == (0, 5)
                assert not is_admitted(limiter.check(FIVE, "exhausted"))
                passed = limiter.check(FIVE, "new")
                assert (passed.allowed, passed.degraded, passed.to_headers()) == (True, "oom", {})
                client.config_set("maxmemory", 0)
                assert limiter.peek(FIVE, "new").request_count == 0
        finally:
            stop_server(server)
