"""Limits and policies refuse nonsense when they are built, with a sentence that names the field and the value."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest

from ratekit import Algorithm, AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter
from ratekit.protocol import encode


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        ("20/s", Limit(20, 1)),
        ("100/min", Limit(100, 60)),
        ("100 / minute", Limit(100, 60)),
        ("5000/15min", Limit(5000, 900)),
        ("10/2 hours", Limit(10, 7200)),
        ("1/d", Limit(1, 86400)),
        ("100/s burst 200", Limit(100, 1, burst=200)),
        ("60/min shadow", Limit(60, 60, shadow=True)),
        ("60/s burst 90 shadow", Limit(60, 1, burst=90, shadow=True)),
    ],
)
def test_rate_is_parsed(rate, limit):
    assert Limit.parse(rate) == limit


@pytest.mark.parametrize(
    "rate",
    ["5/week", "5/ms", "5", "5/", "/s", "5/s,10/m", "5/s ", " 5/s", "5/S", "5.5/s", "-5/s", "0/s", "5/0s", "five/s", "",
     "5/ss", "5/s burst", "5/s burst 0", "٣/s", "1e3/s", "9999999999999999999/s", None, 7],
)  # fmt: skip
def test_rate_that_is_not_one_is_refused(rate):
    with pytest.raises(ConfigurationError, match="rate|max_requests|window|burst"):
        Limit.parse(rate)


@pytest.mark.parametrize(
    ("arguments", "options", "names"),
    [
        ((0, 60), {}, ["max_requests", "0"]),
        ((-1, 60), {}, ["max_requests", "-1"]),
        ((1.5, 60), {}, ["max_requests", "1.5"]),
        (("10", 60), {}, ["max_requests", "'10'"]),
        ((True, 60), {}, ["max_requests", "True"]),
        ((10**13, 60), {}, ["max_requests", str(10**13)]),
        ((1, 0), {}, ["window", "0"]),
        ((1, -60), {}, ["window", "-60"]),
        ((1, math.inf), {}, ["window", "inf"]),
        ((1, math.nan), {}, ["window", "nan"]),
        ((1, 1e12), {}, ["window"]),
        ((1, "60"), {}, ["window", "'60'"]),
        ((1, 60), {"algorithm": "leaky"}, ["algorithm", "'leaky'", "token_bucket"]),
        ((1, 60), {"burst": 0}, ["burst", "0"]),
        ((1, 60), {"burst": 5, "algorithm": "sliding_window_log"}, ["burst", "5", "sliding_window_log"]),
        ((1, 60), {"aligned": True, "algorithm": "token_bucket"}, ["aligned", "token_bucket"]),
        ((1, 60), {"soft": 1.0}, ["soft", "1.0"]),
        ((1, 60), {"soft": 0}, ["soft", "0"]),
        ((1, 60), {"soft": "0.5"}, ["soft", "'0.5'"]),
        ((1, 60), {"shadow": "no"}, ["shadow", "'no'"]),
        ((1, 60), {"shadow": 2}, ["shadow", "2"]),
        ((1, 60), {"aligned": None}, ["aligned", "None"]),
        ((1, 60), {"name": "Per Minute"}, ["name", "'Per Minute'"]),
        ((1, 60), {"name": "a:b"}, ["name", "'a:b'"]),
    ],
)
def test_limit_that_makes_no_sense_is_refused(arguments, options, names):
    with pytest.raises(ConfigurationError) as caught:
        Limit(*arguments, **options)
    assert all(name in str(caught.value) for name in names)
    assert isinstance(caught.value, ValueError)


def test_burst_makes_a_token_bucket():
    limit = Limit(100, 1, burst=200)
    assert (limit.algorithm, limit.capacity) == (Algorithm.TOKEN_BUCKET, 200)


def test_values_are_frozen_and_travel():
    limit = Limit(100, 60, name="minute")
    policy = Policy("search", [limit, "5/s"])
    encode(policy, "user:1")
    with pytest.raises(dataclasses.FrozenInstanceError):
        limit.max_requests = 5
    assert pickle.loads(pickle.dumps(limit)) == limit
    assert Policy("search", [limit, Limit(5, 1)]) == policy
    assert {policy: 1}[Policy("search", [limit, "5/s"])] == 1


@pytest.mark.parametrize(
    ("name", "limits", "words"),
    [
        ("", ["5/s"], ["name", "''"]),
        (None, ["5/s"], ["name", "None"]),
        ("p", [], ["limits", "'p'"]),
        ("p", None, ["limits None", "'p'"]),
        ("p", [Limit(1, number) for number in range(1, 52)], ["51 limits", "'p'"]),
        ("p", ["5/s", "9/s"], ["'1s'", "twice", "'p'"]),
        ("p", [Limit(1, 60, name="a"), Limit(2, 90, name="a")], ["'a'", "twice"]),
        ("p", ["5/week"], ["rate", "'5/week'"]),
    ],
)
def test_policy_that_makes_no_sense_is_refused(name, limits, words):
    with pytest.raises(ConfigurationError) as caught:
        Policy(name, limits)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("cost", [-1, 1.0, "1", True, None, 10**13])
def test_cost_that_is_no_whole_number_is_refused(cost):
    with pytest.raises(ConfigurationError, match="cost"):
        RateLimiter("memory://").check(Policy("p", "5/s"), "u", cost=cost)


def test_single_limit_needs_an_endpoint():
    limiter = RateLimiter("memory://single")
    with pytest.raises(ConfigurationError, match="endpoint"):
        limiter.check(Limit(5, 60), "u")
    assert limiter.check(Limit(5, 60), "u", endpoint="here").allowed
    with pytest.raises(ConfigurationError, match="endpoint"):
        limiter.check(Policy("p", "5/s"), "u", endpoint="")


@pytest.mark.parametrize("endpoint", [["a"], 5, b"e"])
def test_endpoint_that_is_no_text_is_refused(endpoint):
    with pytest.raises(ConfigurationError, match="endpoint"):
        RateLimiter("memory://").check(Policy("p", "5/s"), "u", endpoint=endpoint)


def test_policy_that_is_neither_is_refused():
    with pytest.raises(ConfigurationError, match="'5/s'"):
        RateLimiter("memory://").check("5/s", "u", endpoint="e")


def test_check_of_a_concurrency_limit_is_refused_and_so_is_a_slot_of_another():
    limiter = RateLimiter("memory://")
    slots, windows = Policy("p", Limit(1, 60, algorithm="concurrency")), Policy("p", "5/s")
    with pytest.raises(ConfigurationError, match=r"slot\(\)"):
        limiter.check(slots, "u")
    with pytest.raises(ConfigurationError, match=r"check\(\)"):
        limiter.acquire(windows, "u", "id")
    for slot in ("", "\ud800", 5):
        with pytest.raises(ConfigurationError, match="slot"):
            limiter.acquire(slots, "u", slot)


@pytest.mark.parametrize("kind", [RateLimiter, AsyncRateLimiter])
@pytest.mark.parametrize(
    ("store", "options", "words"),
    [
        ("mongodb://x", {}, ["'mongodb://x'", "memory://", "redis://"]),
        ("redis//x", {}, ["'redis//x'"]),
        ("memory://a/b", {}, ["'memory://a/b'"]),
        ("ftp://user:secret@host", {}, ["ftp://…@host"]),
        ("redis://localhost:port", {}, ["redis://localhost:port"]),
        ("redis://[::1", {}, ["redis://[::1"]),
        ("redis://localhost/0?foo=1", {}, ["redis://localhost/0", "options"]),
        ("redis://user:secret/ret@localhost", {}, ["redis://…@localhost"]),
        ("rediss://localhost:port?password=secret", {}, ["rediss://localhost:port"]),
        (b"redis://user:secret@localhost", {}, ["store", "bytes"]),
        (object(), {}, ["store", "object"]),
        ("memory://", {"on_outage": "shut"}, ["on_outage", "'shut'"]),
        ("memory://", {"deadline": 0}, ["deadline", "0"]),
        ("memory://", {"deadline": math.nan}, ["deadline", "nan"]),
        ("memory://", {"on_outage": "local", "instances": 0}, ["instances", "0"]),
        ("memory://", {"prefix": "a b"}, ["prefix", "'a b'"]),
    ],
)
def test_limiter_that_makes_no_sense_is_refused(kind, store, options, words):
    with pytest.raises(ConfigurationError) as caught:
        kind(store, **options)
    assert all(word in str(caught.value) for word in words)
    assert "secret" not in str(caught.value)


def test_client_of_the_other_colour_is_refused():
    import redis

    with pytest.raises(ConfigurationError, match="RateLimiter"):
        RateLimiter(redis.asyncio.Redis())
    with pytest.raises(ConfigurationError, match="AsyncRateLimiter"):
        AsyncRateLimiter(redis.Redis())
