"""Limits and policies refuse nonsense when they are built, with a sentence that names the field and the value."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekit import Algorithm, AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter
from ratekit.core.protocol import encode
from support.servers import free_port

# Texts that are nearly limits: words of the grammar in any order, with anything between them.
words = st.sampled_from(
    ["5", "100", "0", "1.5", "/", " per ", "s", "MIN", "hr", "week", "ms", "month", "=", "@", "hour=", "burst", "burst 9",
     "soft .5", "aligned", "shadow", "@token_bucket", "@concurrency", "@leaky", " ", "\t", ";", "-", "٣", "\u017f"]
)  # fmt: skip
rates = (
    st.text(max_size=20)
    | st.lists(words | st.text(max_size=2), max_size=8).map("".join)
    | st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["", " ", "day=", "a.b-c_9 = "]),
        st.integers(0, 10**13),
        st.sampled_from(["/", " / ", " per ", " PER 3 ", "/0.000001", "/1.5 "]),
        st.sampled_from(["s", "ms", "Min", "hr", "d", "weeks"]),
        st.lists(st.sampled_from([" burst 9", " soft .25", " aligned", " shadow", "@token_bucket"]), max_size=2).map(
            "".join
        ),
    )
)


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        ("20/s", Limit(20, 1)),
        ("100/min", Limit(100, 60)),
        ("100 / minute", Limit(100, 60)),
        ("5000/15min", Limit(5000, 900)),
        ("10/2 hours", Limit(10, 7200)),
        ("1/d", Limit(1, 86400)),
        ("10 per hour", Limit(10, 3600)),
        ("10 PER 2 Hours", Limit(10, 7200)),
        ("100/hr", Limit(100, 3600)),
        ("10/week", Limit(10, 604800)),
        ("5/S", Limit(5, 1)),
        (" 5/s\n", Limit(5, 1)),
        ("5/100ms", Limit(5, 0.1)),
        ("5/9 milliseconds", Limit(5, 0.009)),
        ("5/1.5h", Limit(5, 5400)),
        ("hour=5/h", Limit(5, 3600, name="hour")),
        ("100/min@sliding_window_log", Limit(100, 60, algorithm="sliding_window_log")),
        ("100/min shadow @SLIDING_WINDOW_COUNTER", Limit(100, 60, algorithm="sliding_window_counter", shadow=True)),
        ("5/min@concurrency", Limit(5, 60, algorithm="concurrency")),
        ("5/min aligned soft .8", Limit(5, 60, aligned=True, soft=0.8)),
        ("100/s burst 200", Limit(100, 1, burst=200)),
        ("60/min shadow", Limit(60, 60, shadow=True)),
        ("60/s burst 90 shadow", Limit(60, 1, burst=90, shadow=True)),
    ],
)
def test_rate_is_parsed(rate, limit):
    assert Limit.parse(rate) == limit


@pytest.mark.parametrize(
    "rate",
    ["5/us", "5", "5/", "/s", "5/s,10/m", "5/s;", "5.5/s", "-5/s", "5/0s", "five/s", "", "5per hour", "5 per",
     "5/ss", "5/s burst", "5/s burst 0", "0/s burst 5", "٣/s", "1e3/s", "9999999999999999999/s", "5/1.1234567s", "5/\u017f",
     "5/s shadow shadow", "5/s shadowy", "5/s@leaky", "5/s burst 9@concurrency", "5/s soft 1", "Hour=5/h", "=5/h", None, 7,
     "5 gpus/min@concurrency"],
)  # fmt: skip
def test_rate_that_is_not_one_is_refused_by_name(rate):
    with pytest.raises(ConfigurationError) as caught:
        Limit.parse(rate)
    assert str(caught.value).startswith(f"rate {rate!r} is not a limit: ")


@given(rates)
def test_text_is_a_limit_whose_printed_form_is_the_same_limit_or_is_refused_by_name(text):
    try:
        limit = Limit.parse(text)
    except ConfigurationError as error:
        assert repr(text) in str(error)
    else:
        assert Limit.parse(str(limit)) == limit
        assert Policy("p", text).limits == (limit,)


@given(
    max_requests=st.integers(1, 10**12),
    window=st.integers(1, 315_576_000_000_000).map(lambda us: us / 1_000_000),
    options=st.fixed_dictionaries(
        {},
        optional={
            "name": st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True),
            "shadow": st.booleans(),
            "soft": st.floats(0, 1, exclude_min=True, exclude_max=True),
        },
    ),
    kind=st.sampled_from([*({"algorithm": one} for one in Algorithm), {"burst": 7}, {"aligned": True}]),
)
def test_every_limit_is_printed_as_a_text_that_is_the_same_limit(max_requests, window, options, kind):
    limit = Limit(max_requests, window, **options, **kind)
    assert Limit.parse(str(limit)) == limit


@pytest.mark.parametrize("text", ["20/s; 1000 per hour", "20/s, 1000/h", " 20/s ;1000/h "])
def test_several_limits_are_one_text_where_several_are_taken(text):
    limits = (Limit(20, 1), Limit(1000, 3600))
    assert Policy("p", text).limits == limits
    assert Policy("p", [text, "day=5/d"]).limits == (*limits, Limit(5, 86400, name="day"))


@pytest.mark.parametrize("text", ["10,000/h", "20/s;", "20/s; many", ";"])
def test_several_limits_of_which_one_is_none_are_refused_by_name(text):
    with pytest.raises(ConfigurationError, match=re.escape(f"limits {text!r}: rate ")):
        Policy("p", text)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window_log", "token_bucket"])
def test_zero_in_a_text_blocks_everybody(limiter, algorithm):
    result = limiter.check(Policy("p", f"0/min@{algorithm}"), "u")
    assert (result.allowed, result.retry_after, result.max_requests) == (False, None, 0)
    assert result.to_headers("draft-11")["RateLimit-Policy"] == '"minute";q=0;w=60'
    assert limiter.peek(Policy("p", f"0/min@{algorithm}"), "u", cost=0).is_over_limit


def test_zero_in_a_text_blocks_while_the_store_is_away():
    limiter = RateLimiter(f"redis://127.0.0.1:{free_port()}", on_outage="local", instances=2)
    assert [limiter.check(Policy("p", "0/min"), "u").allowed for _ in range(2)] == [False, False]


@pytest.mark.parametrize(
    ("limit", "title"),
    [
        (Limit(1, 1), "second"),
        (Limit(1, 60), "minute"),
        (Limit(1, 86400), "day"),
        (Limit(1, 604800), "week"),
        (Limit(1, 900), "15 minutes"),
        (Limit(1, 1.5), "1.5 seconds"),
        (Limit(1, 0.1), "100 milliseconds"),
        (Limit(1, 60, name="burst-guard"), "burst-guard"),
        (Limit(1, 60, name="160s"), "160s"),
        (Limit(1, 60, name="post-60s"), "post minute"),
        (Limit(1, 60, shadow=True), "minute shadow"),
        (dataclasses.replace(Limit(1, 60), window=3600, name=""), "hour"),
        (Limit(1, 60).with_title("elements"), "elements"),
        (dataclasses.replace(Limit(1, 60).with_title("elements"), max_requests=5), "elements"),
    ],
)
def test_title_is_what_people_say(limit, title):
    assert limit.title == title


def test_title_changes_no_key():
    limit = Limit(1, 60)
    titled = limit.with_title("elements")
    assert (titled.name, encode(titled, "u", "e").keys) == ("60s", encode(limit, "u", "e").keys)


@pytest.mark.parametrize("title", ["", 'a"b', "a\\b", "é", "a\n", None, "x" * 101])
def test_title_that_does_not_fit_a_header_is_refused(title):
    with pytest.raises(ConfigurationError, match="title"):
        Limit(1, 60).with_title(title)


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
        ("p", ["5/fortnight"], ["rate", "'5/fortnight'"]),
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
        ("ftp://user:secret@host", {}, ["ftp://host"]),
        ("redis://localhost:port", {}, ["redis://localhost:port"]),
        ("redis://[::1", {}, ["redis://[::1"]),
        ("redis://localhost/0?foo=1", {}, ["redis://localhost/0", "options"]),
        ("redis://user:secret/ret@localhost", {}, ["redis://…", "%2F"]),
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
