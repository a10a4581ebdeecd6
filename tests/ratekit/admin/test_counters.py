"""Counters are found by their keys, and measured by the script, with no policy at hand."""

from __future__ import annotations

import pytest

from ratekit import Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.admin.counters import delete_counters, list_counters, measure_counters
from ratekit.admin.doctor import acl_rule

POLICY = Policy("/search", [Limit(3, 60), Limit(100, 3600, name="hour"), Limit(1, 60, name="try", shadow=True)])


def test_counters_are_found_by_their_keys(limiter):
    policy = Policy("/a*[b]", [*POLICY.limits, Limit(9, 60, burst=9, name="bucket", shadow=True)])
    limiter.check(policy, "u:1")
    limiter.check(policy, "u:2")
    limiter.check(Policy("/axb", "5/s"), "u:1")
    limiter.override("/a*[b]", "u:1", max_requests=7)
    found = limiter.finish(list_counters(limiter.limiter, endpoint="/a*[b]", subject="u:1"))
    assert [(counter.limit, counter.algorithm, counter.shadow) for counter in found] == [
        ("60s", "fixed_window", False),
        ("bucket", "token_bucket", True),
        ("hour", "fixed_window", False),
        ("try", "fixed_window", True),
    ]
    assert all(counter.expires_in > 0 for counter in found)
    assert limiter.finish(delete_counters(limiter.limiter, endpoint="/a*[b]", subject="u:1")) == 4
    assert limiter.finish(delete_counters(limiter.limiter, endpoint="/a*[b]", subject="u:1")) == 0
    assert limiter.peek(policy, "u:1").request_count == 0
    assert limiter.peek(policy, "u:1").max_requests == 7
    assert len(limiter.state_keys()) == 5


EVERY_ALGORITHM = Policy(
    "/x",
    "90/min; day=90/d; counter=90/min@sliding_window_counter; 30s=90/30s@sliding_window_log; log=90/h@sliding_window_log;"
    "bucket=90/min burst 90; would=90/min shadow",
)


@pytest.mark.parametrize("colour", ["sync"], indirect=True)
def test_counters_are_measured_without_knowing_their_limits(limiter, ratekit_clock):
    limiter.check(EVERY_ALGORITHM, "u", cost=7)
    ratekit_clock.advance(5)
    limiter.check(EVERY_ALGORITHM, "u", cost=3)
    for _ in range(2):  # nothing is spent
        found = measure_counters(limiter.limiter, endpoint="/x", subject="u")
        assert {counter.limit: (counter.used, counter.is_exact, counter.resets_in) for counter in found} == {
            "60s": (10, True, 55),
            "day": (10, True, 86395),
            "counter": (10, True, 55),
            "30s": (10, True, 25),
            "log": (10, False, None),
            "bucket": (3, False, None),  # the first seven have drained
            "would": (10, True, 55),
        }


@pytest.mark.parametrize("colour", ["sync"], indirect=True)
def test_what_is_gone_is_not_counted(limiter, ratekit_clock):
    limiter.check(EVERY_ALGORITHM, "u", cost=7)
    ratekit_clock.advance(61)
    used = {counter.limit: counter.used for counter in measure_counters(limiter.limiter, endpoint="/x", subject="u")}
    windows = {name: used[name] for name in ("60s", "30s", "would") if name in used}
    assert set(windows.values()) <= {0}
    assert used["day"] == 7


@pytest.mark.parametrize("colour", ["sync"], indirect=True)
def test_slots_are_measured(limiter):
    slots = Policy("/x", Limit(2, 60, algorithm="concurrency"))
    limiter.acquire(slots, "u", "one")
    (counter,) = measure_counters(limiter.limiter, endpoint="/x", subject="u")
    assert (counter.algorithm, counter.used, counter.is_exact) == ("concurrency", 1, True)


@pytest.mark.parametrize("colour", ["sync"], indirect=True)
def test_key_that_is_no_counter_is_listed_and_not_measured(limiter):
    limiter.command("HSET", "ratelimit:/x:{u}:{id}", "estimate", "5")
    limiter.command("ZADD", "ratelimit:/x:{u}:60s", "1", "not a window")
    found = list_counters(limiter.limiter, endpoint="/x", subject="u")
    assert [(counter.limit, counter.window) for counter in found] == [("60s", 60), ("{id}", None)]
    limiter.command("DEL", "ratelimit:/x:{u}:60s")
    (other,) = measure_counters(limiter.limiter, endpoint="/x", subject="u")
    assert (other.limit, other.used) == ("{id}", None)


def test_counter_that_the_store_does_not_measure_is_an_error(redis_server):
    rights = acl_rule("ratelimit", administration=True).replace("+evalsha +eval ", "")
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "reset", "on", ">secret", *rights.split())
    with RateLimiter(redis_server.url, deadline=5) as limiter:
        limiter.check(POLICY, "u")
    with RateLimiter(redis_server.url.replace("//", "//reader:secret@"), deadline=5) as limiter:
        assert len(list_counters(limiter, endpoint="/search", subject="u")) == 3
        with pytest.raises(RateLimitUnavailable, match="noperm"):
            measure_counters(limiter, endpoint="/search", subject="u")
