"""What every store answers, in both colours, by a clock that the tests move."""

from __future__ import annotations

import pytest

from ratekit import Limit, Policy, RateLimitExceeded
from ratekit.core.protocol import encode, merge
from ratekit.testing import assert_admits

WINDOWED = ["fixed_window", "sliding_window_counter", "sliding_window_log", "token_bucket"]
pytestmark = pytest.mark.usefixtures("ratekit_clock")


def policy(*limits: Limit) -> Policy:
    return Policy("search", limits)


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_first_requests_up_to_the_maximum_pass(limiter, algorithm):
    rule = policy(Limit(5, 60, algorithm=algorithm))
    assert_admits(lambda: limiter.check(rule, "user:1"), exactly=5, of=8)
    assert limiter.check(rule, "user:2").allowed


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_result_counts_what_is_used_and_what_remains(limiter, algorithm):
    rule = policy(Limit(10, 60, algorithm=algorithm))
    result = limiter.check(rule, "user:1", cost=3)
    assert (result.request_count, result.remaining, result.max_requests) == (3, 7, 10)
    assert (result.is_over_limit, result.retry_after, result.degraded) == (False, 0.0, None)
    refused = limiter.check(rule, "user:1", cost=8)
    assert (refused.request_count, refused.remaining, refused.is_over_limit) == (3, 0, True)
    assert refused.tiers[0].remaining == 7


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_refused_request_spends_nothing_whatever_its_cost(limiter, algorithm):
    rule = policy(Limit(100, 60, algorithm=algorithm))
    for cost in (1000, 101):
        refused = limiter.check(rule, "user:1", cost=cost)
        assert (refused.is_over_limit, refused.retry_after, refused.request_count) == (True, None, 0)
    assert limiter.state_keys() == []
    assert_admits(lambda: limiter.check(rule, "user:1", cost=10), exactly=10, of=30)


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_refusals_do_not_count_so_a_raised_limit_helps_at_once(limiter, algorithm):
    rule = policy(Limit(5, 60, algorithm=algorithm))
    assert_admits(lambda: limiter.check(rule, "user:1"), exactly=5, of=50)
    limiter.override("search", "user:1", max_requests=6)
    assert_admits(lambda: limiter.check(rule, "user:1"), exactly=1, of=3)


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_cost_zero_looks_and_passes_even_when_exhausted(limiter, algorithm):
    rule = policy(Limit(2, 60, algorithm=algorithm))
    assert limiter.check(rule, "user:1", cost=0).remaining == 2
    limiter.check(rule, "user:1", cost=2)
    assert limiter.check(rule, "user:1", cost=0).allowed
    limiter.override("search", "user:1", max_requests=0)
    blocked = limiter.check(rule, "user:1", cost=0)
    assert (blocked.is_over_limit, blocked.retry_after) == (True, None)


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_peek_answers_like_check_and_spends_nothing(limiter, algorithm):
    rule = policy(Limit(2, 60, algorithm=algorithm))
    for expected in (0, 1):
        peeked = limiter.peek(rule, "user:1")
        assert (peeked.allowed, peeked.request_count) == (True, expected)
        limiter.check(rule, "user:1")
    peeked, checked = limiter.peek(rule, "user:1"), limiter.check(rule, "user:1")
    assert peeked.figures == checked.figures


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_charge_may_pass_the_maximum_and_refund_never_goes_below_zero(limiter, algorithm):
    rule = policy(Limit(5, 60, algorithm=algorithm))
    charged = limiter.charge(rule, "user:1", cost=8)
    assert (charged.request_count, charged.remaining, charged.allowed) == (8, 0, True)
    assert limiter.check(rule, "user:1").is_over_limit
    assert limiter.refund(rule, "user:1", cost=4).request_count == 4
    assert limiter.check(rule, "user:1").allowed
    assert limiter.refund(rule, "user:1", cost=100).request_count == 0
    assert limiter.peek(rule, "user:1").request_count == 0


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_retry_after_is_honest_to_the_millisecond(limiter, ratekit_clock, algorithm):
    rule = policy(Limit(7, 60, algorithm=algorithm))
    for cost in (3, 2, 2):
        limiter.check(rule, "user:1", cost=cost)
        ratekit_clock.advance(1.7)
    refused = limiter.check(rule, "user:1", cost=4)
    assert refused.is_over_limit
    ratekit_clock.advance(refused.retry_after - 0.001)
    assert limiter.peek(rule, "user:1", cost=4).is_over_limit
    ratekit_clock.advance(0.001)
    assert limiter.check(rule, "user:1", cost=4).allowed


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_reset_forgets_what_was_used_and_keeps_the_override(limiter, algorithm):
    rule = policy(Limit(2, 60, algorithm=algorithm))
    limiter.override("search", "user:1", max_requests=3)
    limiter.check(rule, "user:1", cost=3)
    assert limiter.reset(rule, "user:1").request_count == 0
    assert limiter.state_keys() == []
    assert_admits(lambda: limiter.check(rule, "user:1"), exactly=3)


@pytest.mark.parametrize("algorithm", [*WINDOWED, "concurrency"])
def test_every_key_has_a_time_to_live(limiter, algorithm):
    rule = policy(Limit(5, 60, algorithm=algorithm))
    if algorithm == "concurrency":
        limiter.acquire(rule, "user:1", "a")
    else:
        limiter.check(rule, "user:1", cost=5)
        limiter.refund(rule, "user:1", cost=2)
        limiter.charge(rule, "user:1", cost=2)
    ttls = [limiter.command("PTTL", key) for key in limiter.state_keys()]
    assert len(ttls) == 1
    assert 0 < ttls[0] <= 121_000


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_clock_set_back_locks_nobody_out_for_longer_than_a_window(limiter, ratekit_clock, algorithm):
    rule = policy(Limit(3, 60, algorithm=algorithm))
    assert_admits(lambda: limiter.check(rule, "user:1"), exactly=3)
    ratekit_clock.advance(-3600)
    assert limiter.check(rule, "user:1").is_over_limit
    ratekit_clock.advance(119)
    assert limiter.check(rule, "user:1").allowed


def test_denial_by_one_tier_spends_from_none(limiter):
    rule = policy(Limit(20, 3600, name="hour"), Limit(2, 60, name="minute"))
    answers = [limiter.check(rule, "user:1") for _ in range(25)]
    assert [answer.allowed for answer in answers] == [True] * 2 + [False] * 23
    hour, minute = answers[-1].tiers
    assert (hour.remaining, hour.allowed, minute.remaining, minute.allowed) == (18, True, 0, False)
    assert (answers[-1].limit, answers[-1].violated) == ("minute", ("minute",))


def test_figures_are_those_of_the_limit_closest_to_exhaustion(limiter):
    rule = policy(Limit(20, 1, name="second"), Limit(1000, 3600, name="hour"))
    assert limiter.check(rule, "user:1").limit == "second"
    limiter.charge(policy(Limit(1000, 3600, name="hour")), "user:1", cost=990)
    result = limiter.check(rule, "user:1")
    assert (result.limit, result.remaining, result.max_requests) == ("hour", 8, 1000)


def test_longest_wait_binds_when_several_limits_refuse(limiter):
    rule = policy(Limit(1, 1, name="second"), Limit(1, 3600, name="hour"))
    limiter.check(rule, "user:1")
    refused = limiter.check(rule, "user:1")
    assert (refused.limit, refused.retry_after, refused.violated) == ("hour", 3600.0, ("second", "hour"))


def test_fixed_window_starts_at_the_first_request(limiter, ratekit_clock):
    rule = policy(Limit(1, 60))
    ratekit_clock.set(1_800_000_059)
    assert limiter.check(rule, "user:1").reset_after == 60
    ratekit_clock.advance(2)
    assert limiter.check(rule, "user:1").retry_after == 58


def test_aligned_fixed_window_starts_on_the_clock(limiter, ratekit_clock):
    rule = policy(Limit(1, 60, aligned=True))
    ratekit_clock.set(1_800_000_059)
    result = limiter.check(rule, "user:1")
    assert (result.reset_after, result.reset_at) == (1, 1_800_000_060)
    ratekit_clock.advance(1)
    assert limiter.check(rule, "user:1").reset_after == 60


def test_token_bucket_refills_continuously_and_loses_no_fraction(limiter, ratekit_clock):
    rule = policy(Limit(45, 60, algorithm="token_bucket"))
    limiter.check(rule, "user:1", cost=45)
    admitted = 0
    for _ in range(160):
        ratekit_clock.advance(0.1)
        admitted += limiter.check(rule, "user:1").allowed
    assert admitted == 12


def test_small_fast_bucket_keeps_its_state(limiter):
    """A burst of 10 at 100 a second drains in a tenth of a second: its key must not expire at once."""
    rule = policy(Limit(100, 1, burst=10))
    assert_admits(lambda: limiter.check(rule, "user:1"), exactly=10, of=30)  # a slow machine takes its time for more


def test_large_limit_keeps_its_state(limiter):
    rule = policy(Limit(10**12, 1, burst=3))
    assert_admits(lambda: limiter.check(rule, "user:1"), exactly=3, of=10)


def test_log_counts_requests_of_one_instant_apart(limiter):
    rule = policy(Limit(5, 60, algorithm="sliding_window_log"))
    assert_admits(lambda: limiter.check(rule, "user:1"), exactly=5, of=9)


def test_log_keeps_one_entry_per_request_whatever_its_cost(limiter):
    rule = policy(Limit(1000, 60, algorithm="sliding_window_log"))
    limiter.check(rule, "user:1", cost=500)
    limiter.check(rule, "user:1", cost=400)
    assert limiter.command("ZCARD", limiter.state_keys()[0]) == 2
    assert limiter.check(rule, "user:1", cost=101).is_over_limit
    assert limiter.check(rule, "user:1", cost=100).allowed


def test_changing_the_algorithm_on_live_keys_starts_anew(limiter):
    for algorithm in [*WINDOWED, "fixed_window"]:
        result = limiter.check(policy(Limit(3, 60, algorithm=algorithm, name="minute")), "user:1")
        assert 0 <= result.remaining <= 3
        assert result.degraded is None


def test_override_replaces_numbers_of_the_first_limit(limiter, ratekit_clock):
    rule = policy(Limit(2, 60, name="minute"), Limit(100, 3600, name="hour"))
    limiter.override("search", "user:1", max_requests=4, expiry=30)
    result = limiter.check(rule, "user:1")
    assert [(tier.max_requests, tier.overridden) for tier in result.tiers] == [(4, True), (100, False)]
    assert result.tiers[0].reset_after == 30
    assert not limiter.check(rule, "user:2").tiers[0].overridden


def test_override_of_a_named_tier_leaves_the_others(limiter):
    rule = policy(Limit(2, 60, name="minute"), Limit(100, 3600, name="hour"))
    limiter.override("search", "user:1", hour__max_requests=1)
    result = limiter.check(rule, "user:1")
    assert [(tier.max_requests, tier.overridden) for tier in result.tiers] == [(2, False), (1, True)]
    assert limiter.check(rule, "user:1").limit == "hour"


def test_override_of_a_token_bucket_sets_refill_and_burst(limiter):
    rule = policy(Limit(10, 1, burst=20))
    limiter.override("search", "user:1", max_requests=100)
    assert limiter.check(rule, "user:1").max_requests == 20
    limiter.override("search", "user:1", max_requests=100, burst=50)
    assert limiter.check(rule, "user:1").max_requests == 50


def test_override_to_zero_blocks_and_unlimited_lifts(limiter):
    rule = policy(Limit(2, 60))
    limiter.override("search", "user:1", max_requests=0)
    blocked = limiter.check(rule, "user:1")
    assert (blocked.is_over_limit, blocked.retry_after, blocked.max_requests) == (True, None, 0)
    limiter.override("search", "user:1", unlimited=1)
    assert_admits(lambda: limiter.check(rule, "user:1", cost=50), exactly=9, of=9)
    result = limiter.check(rule, "user:1")
    assert (result.unlimited, result.to_headers(), limiter.state_keys()) == (True, {}, [])


def test_running_window_keeps_its_end_when_the_expiry_changes(limiter, ratekit_clock):
    rule = policy(Limit(5, 60))
    limiter.check(rule, "user:1")
    limiter.override("search", "user:1", expiry=10)
    ratekit_clock.advance(20)
    assert limiter.check(rule, "user:1").reset_after == 40
    ratekit_clock.advance(40)
    assert limiter.check(rule, "user:1").reset_after == 10


@pytest.mark.parametrize(
    "field",
    [
        {"max_requests": "many"},
        {"max_requests": "-1"},
        {"max_requests": "1e3"},
        {"max_requests": "9" * 40},
        {"max_requests": "nan"},
        {"expiry": "0"},
        {"expiry": "inf"},
        {"expiry": "0x10"},
        {"unlimited": "yes"},
        {"burst": "0"},
    ],
)
def test_unreadable_override_leaves_the_default_and_is_reported(limiter, field):
    rule = policy(Limit(2, 60))
    limiter.override("search", "user:1", **field)
    result = limiter.check(rule, "user:1")
    assert (result.max_requests, result.ttl, result.overridden, result.tiers[0].unreadable) == (2, 60, False, True)


def test_readable_field_of_a_half_unreadable_override_counts(limiter):
    limiter.override("search", "user:1", max_requests="7", expiry="soon", note="by hand")
    result = limiter.check(policy(Limit(2, 60)), "user:1")
    assert (result.max_requests, result.overridden, result.tiers[0].unreadable) == (7, True, True)


def test_override_key_of_another_type_leaves_the_default_and_is_reported(limiter):
    limiter.command("ZADD", "ratelimit_override:search:{user:1}", 1, "x")
    result = limiter.check(policy(Limit(2, 60)), "user:1")
    assert (result.allowed, result.max_requests, result.tiers[0].unreadable) == (True, 2, True)


def test_overrides_are_not_read_when_they_are_switched_off(limiter):
    limiter.override("search", "user:1", max_requests=0)
    assert limiter.check(policy(Limit(2, 60)), "user:1", overrides=False).allowed


def test_shadow_limit_counts_and_never_refuses(limiter):
    rule = policy(Limit(5, 60), Limit(2, 60, shadow=True))
    answers = [limiter.check(rule, "user:1") for _ in range(7)]
    assert [answer.allowed for answer in answers] == [True] * 5 + [False] * 2
    assert [answer.tiers[1].allowed for answer in answers[:5]] == [True, True, False, False, False]
    assert all(answer.limit == "60s" for answer in answers)
    assert answers[-1].violated == ("60s",)
    assert answers[-1].tiers[1].used == 2


def test_refusal_by_an_enforced_limit_spends_nothing_from_a_shadow(limiter):
    rule = policy(Limit(1, 60), Limit(5, 60, shadow=True))
    for _ in range(4):
        limiter.check(rule, "user:1")
    assert limiter.peek(rule, "user:1").tiers[1].used == 1


def test_slots_are_held_until_they_are_released(limiter):
    rule = policy(Limit(2, 60, algorithm="concurrency"))
    assert limiter.acquire(rule, "user:1", "a").remaining == 1
    assert limiter.acquire(rule, "user:1", "b").remaining == 0
    refused = limiter.acquire(rule, "user:1", "c")
    assert (refused.is_over_limit, refused.retry_after) == (True, 60)
    assert limiter.release(rule, "user:1", "a").request_count == 1
    assert limiter.acquire(rule, "user:1", "c").allowed


def test_slot_taken_twice_by_one_id_counts_once(limiter):
    rule = policy(Limit(2, 60, algorithm="concurrency", name="slots"), Limit(5, 60, name="minute"))
    for _ in range(9):
        result = limiter.acquire(rule, "user:1", "a")
        assert [(tier.used, tier.allowed) for tier in result.tiers] == [(1, True), (1, True)]
    limiter.release(rule, "user:1", "a")
    assert [tier.used for tier in limiter.peek(rule, "user:1").tiers] == [0, 1]


def test_slot_repeated_after_the_other_limit_is_exhausted_is_still_admitted(limiter):
    rule = policy(Limit(2, 60, algorithm="concurrency", name="slots"), Limit(1, 60, name="minute"))
    assert limiter.acquire(rule, "user:1", "a").allowed
    assert limiter.acquire(rule, "user:1", "a").allowed
    assert limiter.acquire(rule, "user:1", "b").is_over_limit
    assert limiter.peek(rule, "user:1").tiers[0].used == 1


def test_forgotten_slot_is_free_after_its_window_unless_renewed(limiter, ratekit_clock):
    rule = policy(Limit(1, 60, algorithm="concurrency"))
    limiter.acquire(rule, "user:1", "a")
    ratekit_clock.advance(50)
    assert limiter.renew(rule, "user:1", "a").allowed
    ratekit_clock.advance(59)
    assert limiter.acquire(rule, "user:1", "b").retry_after == 1
    ratekit_clock.advance(1)
    assert limiter.acquire(rule, "user:1", "b").allowed
    assert limiter.renew(rule, "user:1", "a").is_over_limit
    assert limiter.release(rule, "user:1", "a").request_count == 1


def test_slot_ahead_of_a_clock_set_back_is_free_after_one_window(limiter, ratekit_clock):
    rule = policy(Limit(1, 60, algorithm="concurrency"))
    limiter.acquire(rule, "user:1", "a")
    ratekit_clock.advance(-3600)
    assert limiter.acquire(rule, "user:1", "b").retry_after == 60
    ratekit_clock.advance(60)
    assert limiter.acquire(rule, "user:1", "b").allowed


def test_soft_band_refuses_with_growing_probability(limiter):
    rule = policy(Limit(200, 3600, soft=0.5))
    admitted = 0
    refused = []
    for _ in range(3000):
        result = limiter.check(rule, "user:1")
        admitted += result.allowed
        refused += [] if result.allowed else [result]
    assert 190 < admitted <= 200
    assert refused[0].tiers[0].softly
    assert refused[0].request_count >= 100
    assert refused[0].retry_after == 3600


def test_request_that_is_limited_twice_in_one_counter_is_charged_once(limiter):
    one, other = Limit(5, 60, name="minute"), Limit(3, 60, name="minute")
    merged = merge([encode(Policy("search", [limit]), "user:1", overrides=False) for limit in (one, other)])
    assert merged.keys == (b"ratelimit:search:{user:1}:minute",) * 2
    answers = [limiter.decide(merged) for _ in range(5)]
    assert [answer.allowed for answer in answers] == [True, True, True, False, False]
    assert [tier.used for tier in answers[2].tiers] == [3, 3]


def test_slot_as_a_context_manager_is_released_even_after_an_error(limiter, colour):
    rule = policy(Limit(1, 60, algorithm="concurrency"))

    async def hold_async():
        async with limiter.limiter.slot(rule, "user:1") as result:
            assert result.remaining == 0
            with pytest.raises(RateLimitExceeded, match="over limit"):
                async with limiter.limiter.slot(rule, "user:1"):
                    raise AssertionError
            raise KeyError

    def hold():
        with limiter.limiter.slot(rule, "user:1") as result:
            assert result.remaining == 0
            with pytest.raises(RateLimitExceeded, match="over limit"), limiter.limiter.slot(rule, "user:1"):
                raise AssertionError
            raise KeyError

    with pytest.raises(KeyError):
        limiter._loop.run_until_complete(hold_async()) if colour == "async" else hold()
    assert limiter.peek(rule, "user:1").request_count == 0


def test_shadow_that_cannot_be_read_does_not_fail_the_others(limiter):
    rule = policy(Limit(2, 60), Limit(5, 60, name="try", algorithm="sliding_window_log", shadow=True))
    limiter.command("HSET", "ratelimit:search:{user:1}:try@sliding_window_log@shadow", "x", "1")
    answers = [limiter.check(rule, "user:1") for _ in range(3)]
    assert [(answer.allowed, answer.degraded) for answer in answers] == [(True, None), (True, None), (False, None)]
    assert answers[0].tiers[1].unreadable
    assert not limiter.check(rule, "user:2").tiers[1].unreadable


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "token_bucket"])
@pytest.mark.parametrize("garbage", ["1.5", "nan", "inf", "-7", "many"])
def test_state_that_someone_else_has_damaged_starts_anew_and_spends_from_all_or_none(limiter, algorithm, garbage):
    rule = policy(Limit(9, 60, algorithm=algorithm, name="first"), Limit(9, 60, name="second"))
    limiter.check(rule, "user:1")
    key = next(key for key in limiter.state_keys() if "first" in key)
    for field in {"fixed_window": "n", "sliding_window_counter": "c", "token_bucket": "u"}[algorithm]:
        limiter.command("HSET", key, field, garbage)
    result = limiter.check(rule, "user:1")
    assert (result.allowed, result.degraded) == (True, None)
    assert result.tiers[1].used == 2
    assert -10 < result.tiers[0].used <= 3


def test_debt_that_takes_ages_to_drain_is_told_in_whole_numbers(limiter):
    rule = policy(Limit(100, 86400, burst=5))
    charged = limiter.charge(rule, "user:1", cost=10**12)
    refused = limiter.check(rule, "user:1")
    assert charged.reset_after == refused.retry_after == 3_155_760_000.0
    assert all(isinstance(figure, int) for figure in refused.figures)


def test_log_goes_on_when_its_running_total_starts_again(limiter, ratekit_clock):
    rule = policy(Limit(10**12, 3600, algorithm="sliding_window_log"))
    limiter.check(rule, "user:1")
    key = limiter.state_keys()[0]
    limiter.command("DEL", key)
    limiter.command("ZADD", key, 1_800_000_000_000_000, f"00{2**52 - 5:016d}:3")
    for expected in (7, 11, 15):
        ratekit_clock.advance(1)
        assert limiter.check(rule, "user:1", cost=4).request_count == expected
    refused = limiter.check(rule, "user:1", cost=10**12)
    assert (refused.is_over_limit, refused.retry_after, refused.request_count) == (True, 3600, 15)
    assert limiter.refund(rule, "user:1", cost=9).request_count == 6


def test_renewing_a_lost_slot_says_that_waiting_does_not_help(limiter):
    result = limiter.renew(policy(Limit(1, 60, algorithm="concurrency")), "user:1", "never")
    assert (result.is_over_limit, result.retry_after) == (True, None)


@pytest.mark.parametrize("algorithm", WINDOWED)
def test_figures_are_whole_numbers_on_every_store(limiter, ratekit_clock, algorithm):
    rule = policy(Limit(7, 60, algorithm=algorithm))
    for _ in range(9):
        assert all(type(figure) is int for figure in limiter.check(rule, "user:1").figures)
        ratekit_clock.advance(13.7)
