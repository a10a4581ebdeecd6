"""What encode and pack make is what the script's header documents, item by item."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from ratekit import Calendar, Limit, Policy
from ratekit.core.compiled import compiled
from ratekit.core.errors import ConfigurationError
from ratekit.core.protocol import Call, Extra, Operation, decode, encode, merge, only, pack, pack_one, part_of, parts, unpack
from ratekit.stores import script

HEADER = script.read("ratekit").decode().split("]]")[0]
RICH = Policy(
    "rich",
    [
        Limit(100, 60, name="minute", soft=0.8),
        Limit(50, 1, burst=200, name="burst"),
        Limit(9, 60, name="try", shadow=True, aligned=True),
        Limit(3, 30, algorithm="concurrency", name="slots"),
    ],
)

UNITS = Policy("llm", ["60/min", Limit(90_000, 60, unit="tokens")])


def documented(section: str) -> list[str]:
    """The items of one section of the header, in order."""
    start = HEADER.index(f"\n{section}")
    block = re.split(r"\n\n", HEADER[start + 1 :])[0]
    names = re.findall(r"^ +([a-z_]+) {2,}\S", block, re.MULTILINE)
    return [name for name in names if name != "for"]


def test_documented_items_of_argv_are_what_pack_makes():
    assert documented("ARGV") == [
        "version",
        "operation", "cost", "id", "hold_ms", "fingerprint", "known", "age_us", "resets",
        "flags", "max_requests", "window_us", "algorithm", "burst", "soft", "position", "boundaries",
    ]  # fmt: skip
    call = Call(compiled(RICH, overrides=True), (b"o", b"w", b"a", b"b", b"c", b"d"), Operation.ACQUIRE, 1, 0.25, "id")
    _, items = pack([call])
    first = [1 + 2 + 8 + 256, 100, 60_000_000, 0.8]
    second = [1 + 4 + 8 + 64 + 128, 50, 1_000_000, "token_bucket", 200]
    third = [1 + 4 + 8 + 16 + 32, 9, 60_000_000]
    fourth = [4 + 8 + 64, 3, 30_000_000, "concurrency"]
    limits = [str(item).encode() for item in (*first, *second, *third, *fourth)]
    assert items == [b"2", "acquire@d0.25", 1, "id", *limits]


def test_reservation_brings_its_record_first_and_what_the_script_needs_of_it():
    extra = Extra(share=0.5, clamps=True, hold_ms=900)
    reserve = encode(UNITS, "u", operation="reserve", cost={"tokens": 800}, slot="id", extra=extra, overrides=False)
    states = [b"ratelimit:llm:{u}:60s", b"ratelimit:llm:{u}:tokens-60s"]
    limits = [b"513", b"60", b"60000000", b"1", b"512", b"90000", b"60000000", b"2"]
    assert pack([reserve]) == (
        [b"ratelimit:llm:{u}:~id", *states],
        [b"2", "reserve@s0.5@c", b"1,800", "id", 900, b"92b69a05", *limits],
    )
    settle = reserve._replace(operation=Operation.SETTLE, cost=(1, 500), extra=Extra(hold_ms=900, known=(1, 800)))
    keys, items = pack([settle])
    assert (keys[0], items[:7]) == (b"ratelimit:llm:{u}:~id", [b"2", "settle", b"1,500", "id", 900, b"92b69a05", b"1,800"])
    assert pack_one(settle) == (tuple(keys), tuple(items))


def test_calendar_brings_four_boundaries_after_everything_else(ratekit_clock):
    ratekit_clock.set(datetime(2027, 2, 3, tzinfo=UTC).timestamp())
    call = encode(Policy("p", Limit(5, Calendar("month", tz="UTC"))), "u", overrides=False)
    months = [int(datetime(2027, month, 1, tzinfo=UTC).timestamp()) * 1_000_000 for month in (2, 3, 4, 5)]
    assert pack([call])[1][3:] == [b"1024", b"5", b"%d" % (32 * 86_400_000_000), *(b"%d" % month for month in months)]


@pytest.mark.parametrize("operation", ["take", "reserve"])
def test_reply_has_what_was_taken_after_the_figures(operation):
    slot, extra = (None, None) if operation == "take" else ("id", Extra(clamps=True, hold_ms=9))
    call = encode(UNITS, "u", operation=operation, cost={"tokens": 800}, slot=slot, extra=extra)
    assert (call.size, encode(UNITS, "u", cost={"tokens": 800}).size) == (14, 12)
    assert unpack([call, encode(Policy("p", "9/min"), "u")], [*range(14), *range(6)]) == [[*range(14)], [*range(6)]]


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (1, "cost 1 says no unit, and the limits count requests, tokens: cost={'tokens': …}"),
        (
            {"tokens": 1, "bytes": 2},
            "unit 'bytes' of cost {'tokens': 1, 'bytes': 2} is unknown: the limits count",
        ),
        ({"requests": 1}, "cost {'requests': 1} does not say how many tokens, which a limit counts"),
        ({"tokens": -1}, "cost {'tokens': -1} is not a whole number between 0"),
        ({"tokens": 1.5}, "cost {'tokens': 1.5} is not a whole number between 0"),
        ({"tokens": True}, "cost {'tokens': True} is not a whole number between 0"),
    ],
)
def test_cost_by_units_that_makes_no_sense_is_refused(cost, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        encode(UNITS, "u", cost=cost)


def test_requests_cost_one_unless_it_is_said():
    assert encode(UNITS, "u", cost={"tokens": 800}).costs == (1, 800)
    assert encode(UNITS, "u", cost={"tokens": 800, "requests": 0}).costs == (0, 800)
    assert encode(Policy("p", Limit(9, 60, unit="tokens")), "u", cost={"tokens": 8}).cost == 8
    assert encode(Policy("p", "9/min"), "u", cost={"requests": 3}).cost == 3


@pytest.mark.parametrize(
    ("limits", "is_plain"),
    [
        ([Limit(5, 60)], True),
        ([Limit(5, 60), Limit(9, 3600, aligned=True)], True),
        ([Limit(5, 60), Limit(9, 3600, shadow=True)], False),
        ([Limit(5, 60), Limit(9, 3600, soft=0.5)], False),
        ([Limit(5, 60), Limit(9, 3600, algorithm="sliding_window_log")], False),
    ],
)
def test_policy_is_plain_if_all_its_limits_are_enforced_fixed_windows(limits, is_plain):
    assert [flags & 8 for flags in flags_of(encode(Policy("p", limits), "u"))] == [0 if is_plain else 8] * len(limits)


def flags_of(call: Call) -> list[int]:
    """The flags of each limit of a call."""
    flags, at = [], 0
    for _ in call.compiled.limits:
        flags.append(int(call.compiled.items[at]))
        at += 3 + sum(flags[-1] & bit != 0 for bit in (64, 128, 256, 512))
    return flags


@pytest.mark.parametrize("costs", [(1, 1), (1, 800)])
def test_merged_calls_are_plain_unless_two_limits_meet_in_one_counter(costs):
    limit = Limit(5, 60)
    by_user, by_address = (encode(Policy("p", limit), who, cost=cost) for who, cost in zip(("u", "ip"), costs, strict=True))
    again = encode(Policy("q", limit), "u", endpoint="p", cost=costs[1])
    position = 512 if costs[0] != costs[1] else 0
    assert flags_of(merge([by_user, by_address])) == [1 + 2 + position, 2 + position]
    assert flags_of(merge([by_user, again])) == [1 + 2 + 8 + position, 2 + 8 + position]


def test_merged_calls_of_different_costs_have_one_position_each():
    """Positions count the calls, so that other costs of the same policies need no other limits in ARGV."""
    tiers = encode(Policy("requests", ["60/min", "900/h"]), "u", overrides=False)
    tokens = encode(Policy("tokens", Limit(90_000, 60, name="tokens")), "u", cost=800, overrides=False)
    call = merge([tiers, tokens])
    assert (call.cost, call.costs, call.operation, call.slot) == ((1, 800), (1, 1, 800), "check", None)
    limits = [[1 + 512, 60, 60_000_000, 1], [1 + 512, 900, 3_600_000_000, 1], [512, 90_000, 60_000_000, 2]]
    items = [str(item).encode() for limit in limits for item in limit]
    assert pack([call]) == ([*tiers.keys, *tokens.keys], [b"2", "check", b"1,800", *items])
    assert merge([tiers, tokens._replace(cost=9)]).compiled is call.compiled


def test_merge_of_merged_calls_keeps_their_costs():
    calls = [encode(Policy(f"p{cost}", "9/min"), "u", cost=cost) for cost in (1, 2, 3)]
    assert merge([merge(calls[:2]), calls[2]]).costs == (1, 2, 3)


def test_limits_that_meet_in_one_counter_cost_the_larger():
    small, large = (encode(Policy(f"p{cost}", "9/min"), "u", endpoint="e", cost=cost) for cost in (1, 3))
    other = encode(Policy("other", "9/min"), "u", cost=2)
    assert merge([small, large, other]).costs == merge([large, small, other]).costs == (3, 3, 2)


def test_merged_call_is_an_acquire_when_one_of_them_is():
    """All slots of a request share one id, and a concurrency limit is asked for one slot whatever the costs."""
    slots = encode(Policy("slots", Limit(3, 30, algorithm="concurrency")), "u", operation="acquire", cost=7, slot="id")
    call = merge([encode(Policy("tokens", "9/min"), "u", cost=800), slots])
    assert (call.operation, call.slot, call.costs) == ("acquire", "id", (800, 1))


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"operation": "charge"}, {}, "operations charge, check cannot be decided in one call"),
        ({"operation": "acquire", "slot": "a"}, {"operation": "acquire", "slot": "b"}, "slots a, b of one request differ"),
    ],
)
def test_merge_refuses_calls_that_differ_in_what_cannot_be_merged(one, other, message):
    with pytest.raises(ConfigurationError, match=message):
        merge([encode(Policy("p", "9/min"), "u", **fields) for fields in (one, other)])


def test_merged_call_is_told_apart_by_its_parts():
    one, two = encode(Policy("one", ["5/s", "9/min"]), "u"), encode(Policy("two", "7/min"), "v")
    call = merge([one, two])
    result = decode(call, [1, 5, 1, 4, 0, 9, 1, 9, 1, 8, 0, 9, 0, 7, 7, 0, 9, 9])
    assert call.compiled.policies == ("one", "one", "two")
    assert [part_of(result, part).limits for part in parts(call)] == [one.compiled.limits, two.compiled.limits]
    assert [part_of(result, part).allowed for part in parts(call)] == [True, False]
    assert parts(one) == (slice(0, 2),)


def test_only_takes_limits_with_their_costs_and_overrides():
    """A limit whose policy's first is not taken brings the override itself, and only its own fields apply to it."""
    one, two = encode(Policy("one", ["5/s", "9/min", "99/h"]), "u", cost=3), encode(Policy("two", "7/min"), "v", cost=4)
    call = only(merge([one, two]), [1, 2, 3], Operation.REFUND)
    assert call.keys == (*one.keys[:2], *one.keys[3:], *two.keys)
    assert flags_of(call) == [1 + 2 + 4 + 512, 1 + 4 + 512, 2 + 512]
    assert (call.operation, call.costs, call.compiled.policies) == ("refund", (3, 3, 4), ("one", "one", "two"))
    assert parts(only(call, [2], Operation.REFUND)) == (slice(0, 0), slice(0, 1))


@pytest.mark.parametrize(("operation", "slot"), [(Operation.RELEASE, "id"), (Operation.REFUND, None)])
def test_only_brings_a_slot_where_the_operation_is_about_one(operation, slot):
    policy = Policy("p", [Limit(9, 60, name="minute"), Limit(3, 30, algorithm="concurrency", name="slots")])
    call = encode(policy, "u", operation="acquire", slot="id", overrides=False)
    assert only(call, [1], operation).slot == slot


def test_documented_keys_are_what_encode_makes():
    assert documented("KEYS") == ["record", "override", "wide", "state"]
    call = encode(RICH, "u", "e")
    assert call.keys == (
        b"ratelimit_override:e:{u}",
        b"ratelimit_override:*:{u}",
        b"ratelimit:e:{u}:minute",
        b"ratelimit:e:{u}:burst@token_bucket",
        b"ratelimit:e:{u}:try@shadow",
        b"ratelimit:e:{u}:slots@concurrency",
    )
    assert encode(RICH, "u", "e", overrides=False).keys == call.keys[2:]


def test_documented_figures_are_those_of_a_tier():
    figures = ["flags", "max_requests", "used", "remaining", "retry_us", "reset_us"]
    assert documented("Reply") == ["message", *figures, "taken"]
    call = encode(Policy("p", "10/min"), "u")
    tier = decode(call, [1 + 2 + 16, 10, 4, 6, 0, 30_000_000]).tiers[0]
    assert (tier.allowed, tier.overridden, tier.softly, tier.unlimited, tier.unreadable) == (True, True, False, False, True)
    assert (tier.max_requests, tier.used, tier.remaining, tier.retry_after, tier.reset_after) == (10, 4, 6, 0.0, 30.0)


def test_documented_flags_are_powers_of_two():
    flags = re.findall(r"^ +flags {2,}((?:.|\n)*?)\n +[a-z_]+ {2,}", HEADER, re.MULTILINE)
    limit, answer = ([int(bit) for bit in re.findall(r"(\d+) [a-z]", text)] for text in flags)
    assert (limit, answer) == ([2**bit for bit in range(11)], [2**bit for bit in range(8)])


def test_operations_are_the_documented_ones():
    line = re.search(r"operation +(.*); perhaps", HEADER)[1]
    assert set(re.findall(r"[a-z]+", line)) - {"or"} == set(Operation)


def test_batch_shares_the_limits_of_a_policy():
    one, other = Policy("one", "5/s"), Policy("other", ["9/min", "99/h"])
    calls = [encode(one, "a", overrides=False), encode(other, "a", overrides=False), encode(one, "b", overrides=False)]
    keys, items = pack(calls, clock_us=77)
    assert len(keys) == 4
    first, second = (call.compiled.items for call in calls[:2])
    assert items == [b"2@77", "check", 1, *first, "check", 1, *second, "check", 1, -4]
    assert items[4 - 1] == first[0]


@pytest.mark.parametrize("policy", [RICH, Policy("plain", ["5/s", "9/min"])], ids=["rich", "plain"])
@pytest.mark.parametrize("clock_us", [0, 5])
def test_batch_of_one_is_packed_alike_by_the_fast_way(policy, clock_us):
    call = encode(policy, "u")
    ways = [pack_one(call, clock_us), pack([call], clock_us)]
    texts = [[item if isinstance(item, bytes) else str(item).encode() for part in way for item in part] for way in ways]
    assert texts[0] == texts[1]


def test_unpack_gives_each_call_its_figures_or_its_fault():
    calls = [encode(Policy("p", rates), "u") for rates in (["5/s"], ["5/s", "9/min"], ["5/s"])]
    reply = [1, 5, 1, 4, 0, 9, b"WRONGTYPE oh", 0, 5, 5, 0, 9, 9]
    assert unpack(calls, reply) == [reply[:6], "WRONGTYPE oh", reply[7:]]


@pytest.mark.parametrize("soft", [None, 0.5])
def test_random_draw_is_made_only_for_soft_limits(soft):
    draws = {encode(Policy("p", Limit(5, 1, soft=soft)), "u").draw for _ in range(5)}
    assert draws == {0} if soft is None else len(draws) == 5
