"""Why a request would pass or be refused now; and what a store has counted, found by its keys."""

from __future__ import annotations

import json

import pytest

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.counters import delete_counters, list_counters
from ratekit.explanations import explain
from ratekit.fleet import set_fleet_mode
from ratekit.overrides import set_rate_limit_override
from ratekit.stores.memory import MemoryStore
from support.servers import free_port

POLICY = Policy("/search", [Limit(3, 60), Limit(100, 3600, name="hour"), Limit(1, 60, name="try", shadow=True)])


def test_explanation_says_what_decides_and_spends_nothing(limiter, ratekit_clock):
    for _ in range(2):
        limiter.check(POLICY, "u")
    explanation = limiter.finish(explain(limiter.limiter, POLICY, "u", rule="/search*"))
    assert explanation == limiter.finish(explain(limiter.limiter, POLICY, "u", rule="/search*"))
    assert [(tier.name, tier.used, tier.remaining) for tier in explanation.result.tiers] == [
        ("60s", 2, 1), ("hour", 2, 98), ("try", 1, 0)
    ]  # fmt: skip
    assert (explanation.is_refused, explanation.override, explanation.mode) == (False, None, "on")
    assert explanation.outcome == "passes: within limit '60s': 2 of 3 used"
    text = str(explanation)
    assert text.splitlines()[1] == "rule      /search*"
    assert "try (1/60s fixed_window shadow): 1 of 1 used, 0 left, resets in 60 s, would refuse" in text
    limiter.check(POLICY, "u")
    refused = limiter.finish(explain(limiter.limiter, POLICY, "u"))
    assert refused.is_refused
    assert refused.outcome == "is refused: over limit '60s': 3 of 3 used, retry after 60.000 s"


def test_explanation_has_the_override_and_json_has_everything(limiter, ratekit_clock):
    limiter.finish(
        set_rate_limit_override(limiter.limiter, endpoint="/search", subject="u", max_requests=0, note="abuse", set_by="ada")
    )
    explanation = limiter.finish(explain(limiter.limiter, POLICY, "u", cost=2))
    assert explanation.is_refused
    assert "override  max_requests 0, note 'abuse', by ada" in str(explanation)
    assert "by override used, 0 left, refuses" in str(explanation)
    told = json.loads(json.dumps(explanation.as_dict()))
    assert (told["override"]["max_requests"], told["override"]["note"], told["cost"]) == (0, "abuse", 2)
    assert [(limit["name"], limit["allowed"], limit["overridden"]) for limit in told["limits"]] == [
        ("60s", False, True), ("hour", True, False), ("try", False, False)
    ]  # fmt: skip
    assert told["limits"][0]["own"] == {"max_requests": 3, "window": 60.0, "burst": None}


def test_explanation_names_the_source_of_the_mode(limiter, monkeypatch, ratekit_clock):
    limiter.finish(set_fleet_mode(limiter.limiter, "monitor"))
    limiter.charge(POLICY, "u", cost=5)
    explanation = limiter.finish(explain(limiter.limiter, POLICY, "u"))
    assert (explanation.mode, explanation.mode_source, explanation.is_refused) == ("monitor", "fleet mode", False)
    assert explanation.outcome.startswith("passes, as the mode is monitor; on would refuse it: over limit '60s'")
    own = limiter.finish(explain(limiter.limiter, POLICY, "u", mode="off"))
    assert (own.mode, own.mode_source) == ("off", "the limiter's own mode")
    assert own.outcome == "passes, and is not counted: the mode is off"
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert limiter.finish(explain(limiter.limiter, POLICY, "u")).mode_source == "RATE_LIMIT_MODE"


def test_what_cannot_be_printed_is_escaped_for_people(ratekit_clock):
    limiter = RateLimiter(MemoryStore())
    assert "\x1b" not in str(explain(limiter, Limit(1, 60), "u\x1b[31m", endpoint="/x"))


async def test_store_that_is_away_is_told():
    url = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(RateLimitUnavailable, match="connection"):
        explain(RateLimiter(url), POLICY, "u")
    async with AsyncRateLimiter(url) as limiter:
        with pytest.raises(RateLimitUnavailable, match="connection"):
            await explain(limiter, POLICY, "u")


@pytest.mark.parametrize("options", [{"mode": "audit"}, {"cost": -1}, {"endpoint": ""}])
def test_bad_question_is_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        explain(RateLimiter(MemoryStore()), POLICY, "u", **options)


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
