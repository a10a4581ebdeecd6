"""What encode and pack make is what the script's header documents, item by item."""

from __future__ import annotations

import re

import pytest

from ratekit import Limit, Policy
from ratekit.plans import compiled
from ratekit.protocol import Call, Operation, decode, encode, merge, pack, pack_one, unpack
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


def documented(section: str) -> list[str]:
    """The items of one section of the header, in order."""
    start = HEADER.index(f"\n{section}")
    block = re.split(r"\n\n", HEADER[start + 1 :])[0]
    names = re.findall(r"^ +([a-z_]+) {2,}\S", block, re.MULTILINE)
    return [name for name in names if name != "for"]


def test_documented_items_of_argv_are_what_pack_makes():
    assert documented("ARGV") == [
        "version",
        "operation", "cost", "slot",
        "flags", "max_requests", "window_us", "algorithm", "burst", "soft",
    ]  # fmt: skip
    call = Call(compiled(RICH, overrides=True), (b"o", b"a", b"b", b"c", b"d"), Operation.ACQUIRE, 1, 0.25, "id")
    _, items = pack([call])
    first = [1 + 2 + 8 + 256, 100, 60_000_000, 0.8]
    second = [1 + 4 + 8 + 64 + 128, 50, 1_000_000, "token_bucket", 200]
    third = [1 + 4 + 8 + 16 + 32, 9, 60_000_000]
    fourth = [4 + 8 + 64, 3, 30_000_000, "concurrency"]
    limits = [str(item).encode() for item in (*first, *second, *third, *fourth)]
    assert items == [b"1", "acquire@0.25", 1, "id", *limits]


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
        at += 3 + sum(flags[-1] & bit != 0 for bit in (64, 128, 256))
    return flags


def test_merged_calls_are_plain_unless_two_limits_may_meet_in_one_counter():
    calls = [encode(Policy(f"p{number}", Limit(5, 60, name=name)), "u") for number, name in enumerate(["a", "b", "a"])]
    assert flags_of(merge(calls[:2])) == [1 + 2, 2]
    assert flags_of(merge(calls)) == [1 + 2 + 8, 1 + 2 + 8, 2 + 8]


def test_documented_keys_are_what_encode_makes():
    assert documented("KEYS") == ["override", "state"]
    call = encode(RICH, "u", "e")
    assert call.keys == (
        b"ratelimit_override:e:{u}",
        b"ratelimit:e:{u}:minute",
        b"ratelimit:e:{u}:burst@token_bucket",
        b"ratelimit:e:{u}:try@shadow",
        b"ratelimit:e:{u}:slots@concurrency",
    )
    assert encode(RICH, "u", "e", overrides=False).keys == call.keys[1:]


def test_documented_figures_are_those_of_a_tier():
    assert documented("Reply") == ["message", "flags", "max_requests", "used", "remaining", "retry_us", "reset_us"]
    call = encode(Policy("p", "10/min"), "u")
    tier = decode(call, [1 + 2 + 16, 10, 4, 6, 0, 30_000_000]).tiers[0]
    assert (tier.allowed, tier.overridden, tier.softly, tier.unlimited, tier.unreadable) == (True, True, False, False, True)
    assert (tier.max_requests, tier.used, tier.remaining, tier.retry_after, tier.reset_after) == (10, 4, 6, 0.0, 30.0)


def test_documented_flags_are_powers_of_two():
    flags = re.findall(r"^ +flags {2,}((?:.|\n)*?)\n +[a-z_]+ {2,}", HEADER, re.MULTILINE)
    limit, answer = ([int(bit) for bit in re.findall(r"(\d+) [a-z]", text)] for text in flags)
    assert (limit, answer) == ([2**bit for bit in range(9)], [1, 2, 4, 8, 16])


def test_operations_are_the_documented_ones():
    line = re.search(r"operation +(.*);", HEADER)[1]
    assert set(re.findall(r"[a-z]+", line)) - {"or"} == set(Operation)


def test_batch_shares_the_limits_of_a_policy():
    one, other = Policy("one", "5/s"), Policy("other", ["9/min", "99/h"])
    calls = [encode(one, "a", overrides=False), encode(other, "a", overrides=False), encode(one, "b", overrides=False)]
    keys, items = pack(calls, clock_us=77)
    assert len(keys) == 4
    first, second = (call.compiled.items for call in calls[:2])
    assert items == [b"1@77", "check", 1, *first, "check", 1, *second, "check", 1, -4]
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
