"""Header lines in every style, and the body of a refusal."""

from __future__ import annotations

from datetime import UTC, datetime

import http_sf
import pytest

from ratekit import Calendar, ConfigurationError, Limit, Policy, RateLimiter
from ratekit.core import headers
from ratekit.stores.memory import MemoryStore

pytestmark = pytest.mark.usefixtures("ratekit_clock")
MINUTE = Policy("search", Limit(100, 60, name="minute"))


@pytest.fixture
def limiter() -> RateLimiter:
    return RateLimiter(MemoryStore())


def exhausted(limiter, policy=MINUTE, cost=1):
    limiter.charge(policy, "u", cost=100)
    return limiter.check(policy, "u", cost=cost)


def test_default_style_has_three_fields_in_delta_seconds(limiter, ratekit_clock):
    limiter.check(MINUTE, "u")
    ratekit_clock.advance(52.5)
    assert limiter.check(MINUTE, "u").to_headers() == {
        "RateLimit-Limit": "100",
        "RateLimit-Remaining": "98",
        "RateLimit-Reset": "8",
    }


def test_retry_after_is_on_refusals_only_and_whole_seconds_rounded_up(limiter, ratekit_clock):
    assert "Retry-After" not in limiter.check(MINUTE, "u").to_headers()
    ratekit_clock.advance(52.5)
    refused = exhausted(limiter)
    assert refused.to_headers() == {
        "RateLimit-Limit": "100",
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": "8",
        "Retry-After": "8",
    }


def test_retry_after_is_at_least_one_second(limiter):
    policy = Policy("fast", Limit(10, 0.01))
    limiter.check(policy, "u", cost=10)
    assert limiter.check(policy, "u").to_headers()["Retry-After"] == "1"


def test_retry_after_is_absent_where_the_cost_can_never_fit(limiter):
    refused = limiter.check(MINUTE, "u", cost=101)
    assert "Retry-After" not in refused.to_headers()
    assert refused.to_headers()["RateLimit-Remaining"] == "0"


def test_x_ratelimit_style_has_an_epoch_reset(limiter, ratekit_clock):
    assert limiter.check(MINUTE, "u").to_headers("x-ratelimit") == {
        "X-RateLimit-Limit": "100",
        "X-RateLimit-Remaining": "99",
        "X-RateLimit-Reset": str(int(ratekit_clock.now) + 60),
    }


def test_draft_11_is_structured_fields_of_the_enforced_limits(limiter):
    policy = Policy("search", [Limit(20, 1, name="second"), Limit(1000, 3600, name="hour"), Limit(5, 60, shadow=True)])
    lines = limiter.check(policy, "u").to_headers("draft-11")
    assert lines == {
        "RateLimit-Policy": '"second";q=20;w=1, "hour";q=1000;w=3600',
        "RateLimit": '"second";r=19;t=1',
    }
    policies = http_sf.parse(lines["RateLimit-Policy"].encode(), tltype="list")
    assert [(name, params) for name, params in policies] == [("second", {"q": 20, "w": 1}), ("hour", {"q": 1000, "w": 3600})]
    assert http_sf.parse(lines["RateLimit"].encode(), tltype="list") == [("second", {"r": 19, "t": 1})]


def test_draft_11_retry_after_is_not_before_the_effective_window_ends(limiter, ratekit_clock):
    limiter.check(MINUTE, "u")
    ratekit_clock.advance(52.5)
    lines = exhausted(limiter).to_headers("draft-11")
    assert lines == {
        "RateLimit-Policy": '"minute";q=100;w=60',
        "RateLimit": '"minute";r=0;t=8',
        "Retry-After": "8",
    }


def test_draft_11_names_the_unit_of_slots_and_rounds_short_windows_up(limiter):
    policy = Policy("jobs", [Limit(2, 60, algorithm="concurrency", name="slots"), Limit(5, 0.5)])
    lines = limiter.acquire(policy, "u", "a").to_headers("draft-11")
    assert lines["RateLimit-Policy"] == '"slots";q=2;qu="concurrent-requests", "500 milliseconds";q=5;w=1'
    assert http_sf.parse(lines["RateLimit-Policy"].encode(), tltype="list")


def test_draft_11_window_of_a_bucket_is_what_it_takes_to_fill_it(limiter):
    lines = limiter.check(Policy("p", Limit(100, 1, burst=200, name="burst")), "u").to_headers("draft-11")
    assert lines["RateLimit-Policy"] == '"burst";q=200;w=2'


def test_draft_11_names_no_window_that_an_override_may_have_changed(limiter):
    limiter.store.execute("HSET", "ratelimit_override:search:{u}", "expiry", "5", "max_requests", "7")
    assert limiter.check(MINUTE, "u").to_headers("draft-11")["RateLimit-Policy"] == '"minute";q=7'


def test_style_none_is_silent_and_an_unknown_style_is_refused(limiter):
    assert exhausted(limiter).to_headers("none") == {}
    with pytest.raises(ConfigurationError, match="style 'ietf'.*draft-11"):
        limiter.check(MINUTE, "u").to_headers("ietf")
    with pytest.raises(ConfigurationError, match="style"):
        headers.check_style("")


def test_several_results_give_one_set_of_the_most_restrictive(limiter):
    wide, narrow = Policy("wide", "1000/h"), Policy("narrow", "10/s")
    results = [limiter.check(wide, "u"), limiter.check(narrow, "u")]
    assert headers.render_many(results)["RateLimit-Limit"] == "10"
    refused = [limiter.check(wide, "u", cost=2000), limiter.check(narrow, "u")]
    both = headers.render_many(refused, ["ratelimit", "x-ratelimit"])
    assert (both["RateLimit-Limit"], both["X-RateLimit-Remaining"]) == ("1000", "0")
    assert headers.render_many([]) == {}


def test_longer_wait_is_the_more_restrictive_of_two_refusals(limiter):
    results = []
    for policy in (Policy("short", "1/s"), Policy("long", "1/h")):
        limiter.check(policy, "u")
        results.append(limiter.check(policy, "u"))
    assert headers.render_many(results)["Retry-After"] == "3600"


def test_problem_names_the_violated_policies(limiter):
    body = headers.problem(exhausted(limiter))
    assert body["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert (body["status"], body["violated-policies"]) == (429, ["minute"])
    assert "over limit 'minute'" in body["detail"]


def test_unavailable_problem_is_a_503():
    body = headers.unavailable_problem("timeout")
    assert body["type"].endswith("#temporary-reduced-capacity")
    assert (body["status"], body["detail"]) == (503, "The rate limit cannot be checked now: timeout")


def test_every_unit_is_shown_with_its_name(ratekit_clock):
    """The binding limit comes first, then the scarcest of every other unit."""
    policy = Policy("llm", ["60/min", Limit(900, 60, unit="tokens", name="tokens"), Limit(9000, 3600, unit="tokens")])
    result = RateLimiter(MemoryStore()).check(policy, "u", cost={"tokens": 800})
    lines = result.to_headers("draft-11")
    assert lines["RateLimit-Policy"] == (
        '"minute";q=60;w=60, "tokens";q=900;qu="tokens";w=60, "tokens hour";q=9000;qu="tokens";w=3600'
    )
    assert lines["RateLimit"] == '"tokens";r=100;t=60, "minute";r=59;t=60'


def test_window_of_a_calendar_is_the_period_that_runs(ratekit_clock):
    ratekit_clock.set(datetime(2027, 2, 3, tzinfo=UTC).timestamp())
    result = RateLimiter(MemoryStore()).check(Policy("quota", Limit(9, Calendar("month", tz="UTC"))), "u")
    assert result.to_headers("draft-11") == {
        "RateLimit-Policy": f'"month";q=9;w={28 * 86400}',
        "RateLimit": f'"month";r=8;t={26 * 86400}',
    }
