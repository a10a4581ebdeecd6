"""Why a request would pass or be refused now."""

from __future__ import annotations

import json

import pytest

from ratekit import AsyncRateLimiter, ConfigurationError, Limit, Policy, RateLimiter, RateLimitUnavailable
from ratekit.admin.explain import explain
from ratekit.admin.fleet_mode import set_fleet_mode
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
    assert explanation.outcome == "passes: within limit 'minute': 2 of 3 used"
    text = str(explanation)
    assert text.splitlines()[1] == "rule      /search*"
    assert "try (1/min shadow): 1 of 1 used, 0 left, resets in 60 s, would refuse" in text
    limiter.check(POLICY, "u")
    refused = limiter.finish(explain(limiter.limiter, POLICY, "u"))
    assert refused.is_refused
    assert refused.outcome == "is refused: over limit 'minute': 3 of 3 used, retry after 60.000 s"


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
    own = {"max_requests": 3, "window": 60.0, "burst": None, "unit": "requests", "calendar": None}
    assert told["limits"][0]["own"] == own


def test_explanation_has_the_override_for_all_endpoints_beside_that_of_the_endpoint(limiter, ratekit_clock):
    """A ban everywhere refuses, whatever the endpoint's own override says."""
    ratekit_clock.set(1_800_000_000)
    change = limiter.limiter
    limiter.finish(set_rate_limit_override(change, endpoint="*", subject="u", until=1_800_000_060, set_by="ada"))
    alone = limiter.finish(explain(change, POLICY, "u"))
    limiter.finish(set_rate_limit_override(change, endpoint="/search", subject="u", max_requests=9, set_by="eve"))
    both = limiter.finish(explain(change, POLICY, "u"))
    told = [[line.partition(", ends in")[0] for line in str(one).splitlines()] for one in (alone, both)]
    lines = [[line for line in some if line.startswith("override")] for some in told]
    ban = "override  on all endpoints: refused until 2027-01-15T08:01:00+00:00, by ada"
    assert lines == [[ban], ["override  max_requests 9, by eve", ban]]
    assert (both.is_refused, both.result.retry_after) == (True, 60)
    values = json.loads(json.dumps(both.as_dict()))
    assert (values["override"]["max_requests"], values["wide_override"]["until"]) == (9, 1_800_000_060)


def test_explanation_with_units_and_calendars_says_both(limiter, ratekit_clock):
    ratekit_clock.set(1_800_000_000)
    llm = Policy("/chat", ["60/min", "1000 tokens/min", "3000 tokens/month Europe/Berlin"])
    limiter.check(llm, "u", cost={"tokens": 800})
    text = str(limiter.finish(explain(limiter.limiter, llm, "u", cost={"tokens": 300})))
    assert text.startswith("u on /chat: a request that costs 300 tokens is refused: over limit 'tokens minute'")
    assert "tokens-60s (1000 tokens/min): 800 of 1000 tokens used, 200 left, resets in 60 s, refuses" in text
    assert "tokens-month (3000 tokens/month Europe/Berlin): 800 of 3000 tokens used, 2200 left, resets in 1436400 s" in text


def test_ban_is_told_with_its_end_and_not_as_a_limit_that_is_used_up(limiter, ratekit_clock):
    until = ratekit_clock.now + 86_400  # from 2027-01-15T08:00:00Z
    limiter.finish(set_rate_limit_override(limiter.limiter, endpoint="/search", subject="u", until=until))
    explanation = limiter.finish(explain(limiter.limiter, POLICY, "u"))
    said = "an override refuses everything until 2027-01-16T08:00:00Z, limit 'minute': retry after 86400.000 s"
    assert explanation.outcome == f"is refused: {said}"
    assert "limit     60s (3/min): an override refuses everything for 86400 s, 0 used" in str(explanation)
    assert explanation.as_dict()["limits"][0]["banned"]
    assert limiter.check(POLICY, "u").describe() == said


def test_explanation_names_the_source_of_the_mode(limiter, monkeypatch, ratekit_clock):
    limiter.finish(set_fleet_mode(limiter.limiter, "monitor"))
    limiter.charge(POLICY, "u", cost=5)
    explanation = limiter.finish(explain(limiter.limiter, POLICY, "u"))
    assert (explanation.mode, explanation.mode_source, explanation.is_refused) == ("monitor", "fleet mode", False)
    assert explanation.outcome.startswith("passes, as the mode is monitor; on would refuse it: over limit 'minute'")
    own = limiter.finish(explain(limiter.limiter, POLICY, "u", mode="off"))
    assert (own.mode, own.mode_source) == ("off", "the limiter's own mode")
    assert own.outcome == "passes, and is not counted: the mode is off"
    monkeypatch.setenv("RATE_LIMIT_MODE", "off")
    assert limiter.finish(explain(limiter.limiter, POLICY, "u")).mode_source == "RATE_LIMIT_MODE"


def test_explanation_has_only_sources_that_give_a_mode(monkeypatch):
    limiter = RateLimiter(MemoryStore())
    assert explain(limiter, POLICY, "u").modes == {}
    assert "mode      on (neither this process nor the store sets one)" in str(explain(limiter, POLICY, "u"))
    monkeypatch.setenv("RATE_LIMIT_MODE", "on")
    assert explain(limiter, POLICY, "u").modes == {"RATE_LIMIT_MODE": "on"}


def test_soft_limit_says_that_it_refuses_at_random(ratekit_clock):
    limiter, soft = RateLimiter(MemoryStore()), Policy("/x", Limit(100, 60, soft=0.01))
    limiter.charge(soft, "u", cost=99)
    assert "refuses at random, as it is soft" in str(explain(limiter, soft, "u"))


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
