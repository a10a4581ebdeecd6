"""The EVALSHA exchange without a server: what is sent, and what follows each reply."""

from __future__ import annotations

import pytest
import redis

from ratekit import Limit, Policy
from ratekit.core.protocol import encode, keeping_overrides, merge, without_overrides
from ratekit.stores.redis.client_errors import errors_of
from ratekit.stores.redis.evalsha import Exchange

NODE = ("127.0.0.1", 7000)
ONE, TWO = Policy("one", [Limit(5, 60), Limit(50, 3600)]), Policy("two", Limit(7, 60))


class OneNode:
    """A Cluster of one server, which has all slots."""

    def address_of(self, calls):
        return NODE

    def moved(self, calls, address):
        raise AssertionError("the slot has not moved")


def decide_while_the_slot_moves(call, existing):
    """Answer TRYAGAIN to the first request, then by the override keys that exist. Returns the keys of the last EVALSHA."""
    exchange = Exchange([call], errors_of(redis.Redis()), OneNode())
    replies = [redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot")]
    while exchange.receive(replies) is None:
        name, *rest = command = exchange.request.commands[-1]
        if name == "EXISTS":
            replies = [int(rest[0] in existing)]
        else:
            replies = [[1, 5, 1, 4, 0, 60] * len(call.compiled.limits)]
    return command[3 : 3 + command[2]]


@pytest.mark.parametrize("existing", [(), (0,), (1,), (0, 1)])
def test_every_override_that_exists_decides_while_a_slot_moves(existing):
    """A merged call brings an override key for each of its policies; those that exist stay, the others go."""
    parts = [encode(policy, f"user:{number}") for number, policy in enumerate((ONE, TWO))]
    overrides = {key for number in existing for key in parts[number].keys[:2]}
    expected = merge([part if at in existing else without_overrides(part) for at, part in enumerate(parts)])
    assert decide_while_the_slot_moves(merge(parts), overrides) == expected.keys


def test_limits_without_their_override_are_those_of_the_policy_while_a_slot_moves():
    """The script is asked as it would be for a merged call of which only one part has overrides."""
    one, two = (encode(policy, "user:1") for policy in (ONE, TWO))
    kept, expected = keeping_overrides(merge([one, two]), [4, 5]), merge([without_overrides(one), two])
    assert (kept.keys, kept.compiled.items) == (expected.keys, expected.compiled.items)


@pytest.mark.parametrize("at", [0, 1])
def test_one_of_two_overrides_stands_for_both_while_a_slot_moves(at):
    """A server that lacks one of the keys would not run the script, so it gets the other key twice."""
    call = encode(ONE, "user:1")
    kept = keeping_overrides(call, [at])
    assert (kept.keys, kept.compiled.items) == ((call.keys[at],) * 2 + call.keys[2:], call.compiled.items)
