"""What encode and pack make is what the script's header documents, item by item."""

from __future__ import annotations

import re

import pytest

from ratekit import Limit, Policy
from ratekit.protocol import Call, Operation, compiled, decode, encode, pack, pack_one, unpack
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
        "version", "requests_at",
        "algorithm", "max_requests", "window_us", "flags", "burst", "soft",
        "operation", "policy_at", "cost", "draw", "slot",
    ]  # fmt: skip
    call = Call(compiled(RICH, overrides=True), (b"o", b"a", b"b", b"c", b"d"), Operation.ACQUIRE, 1, 0.25, "id")
    _, items = pack([call])
    first = ["fixed_window", 100, 60_000_000, 4 + 32 + 64, 0.8]
    second = ["token_bucket", 50, 1_000_000, 8 + 16 + 64, 200]
    third = ["fixed_window", 9, 60_000_000, 1 + 2 + 8 + 64]
    fourth = ["concurrency", 3, 30_000_000, 8]
    limits = [str(item).encode() for item in (*first, *second, *third, *fourth)]
    assert items == [b"1", 3 + len(limits), *limits, "acquire", 3, 1, 0.25, "id"]
    assert items[int(items[1]) - 1] == "acquire"


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
    assert (limit, answer) == ([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16])


def test_operations_are_the_documented_ones():
    line = re.search(r"operation +(.*)", HEADER)[1]
    assert set(re.findall(r"[a-z]+", line)) - {"or"} == set(Operation)


def test_batch_shares_the_limits_of_a_policy():
    one, other = Policy("one", "5/s"), Policy("other", ["9/min", "99/h"])
    calls = [encode(one, "a", overrides=False), encode(other, "a", overrides=False), encode(one, "b", overrides=False)]
    keys, items = pack(calls, clock_us=77)
    assert len(keys) == 4
    assert items[:2] == [b"1@77", 3 + 4 + 8]
    assert items[14:] == ["check", 3, 1, "check", 7, 1, "check", 3, 1]


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
