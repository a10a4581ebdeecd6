from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from ratekit import ConfigurationError
from ratekit.rules.descriptors.file import UNITS, Descriptor, DescriptorFile, RateLimit
from ratekit.rules.descriptors.tree import Domain, Domains

Entries = Sequence[tuple[str, str]]


def naive_rule(descriptors: Sequence[Descriptor], entries: Entries) -> tuple[Descriptor, ...] | None:
    """The path of descriptors to the limit of a request's descriptor, by reading the list as often as it takes."""
    (key, value), *rest = entries
    exact = [one for one in descriptors if one.key == key and one.value and one.value == value]
    wildcard = [
        one for one in descriptors if one.key == key and one.value.endswith("*") and value.startswith(one.value[:-1])
    ]
    alone = [one for one in descriptors if one.key == key and not one.value]
    chosen = (exact + wildcard + alone)[:1]
    if not chosen:
        return None
    if not rest:
        return (chosen[0],) if chosen[0].rate_limit is not None else None
    inner = naive_rule(chosen[0].descriptors, rest)
    return None if inner is None else (chosen[0], *inner)


def naive_counter(path: tuple[Descriptor, ...], entries: Entries) -> tuple[object, ...]:
    """What tells one counter from another: the descriptors of the file, and the values that they leave open."""
    opens = [not one.value or (one.value.endswith("*") and not one.shares) for one in path]
    return tuple(map(id, path)), tuple(value for (_, value), is_open in zip(entries, opens, strict=True) if is_open)


KEYS = ["a", "a", "a", "b", "a,b", "a=b"]
VALUES = ["", "", "x", "xy", "x*", "*", "xy*", "x,b:y", "%2C", "ü"]


def random_descriptors(draw: random.Random, depth: int) -> tuple[Descriptor, ...]:
    made: dict[tuple[str, str], Descriptor] = {}
    for _ in range(draw.randrange(1, 7)):
        key, value = draw.choice(KEYS), draw.choice(VALUES)
        limit = RateLimit(draw.randrange(5), draw.choice([None, *UNITS])) if draw.random() < 0.7 else None
        inner = random_descriptors(draw, depth + 1) if depth < 2 and draw.random() < 0.8 else ()
        shares = value.endswith("*") and draw.random() < 0.5
        made[key, value] = Descriptor(key, value, limit, inner, draw.random() < 0.2, shares)
    return tuple(made.values())


def test_tree_finds_what_a_naive_matcher_finds():
    draw = random.Random(19)
    found = missed = 0
    for _ in range(10_000):
        file = DescriptorFile("d", random_descriptors(draw, 0))
        domain = Domain(file)
        counters: dict[tuple[object, ...], tuple[str, str]] = {}
        for _ in range(8):
            entries = [(draw.choice(KEYS), draw.choice(VALUES)) for _ in range(draw.choice([1, 1, 2, 3]))]
            path, rule = naive_rule(file.descriptors, entries), domain.find(entries)
            assert (rule is None) == (path is None)
            if rule is None or path is None:
                missed += 1
                continue
            found += 1
            limit = path[-1].rate_limit
            assert limit is not None
            assert (rule.unit, rule.replaces) == (limit.unit, limit.replaces)
            if rule.policy is not None:
                (own,) = rule.policy.limits
                assert (own.max_requests, own.shadow) == (limit.requests_per_unit, path[-1].is_shadow)
            counter = (rule.endpoint, rule.subject(entries))
            assert counters.setdefault(naive_counter(path, entries), counter) == counter
        assert len(set(counters.values())) == len(counters), "two counters have met"
    assert min(found, missed) > 10_000


def test_endpoint_and_subject_are_readable():
    limit = RateLimit(5, UNITS[1])
    inner = (Descriptor("to_number", "", limit), Descriptor("to_number", "1*", limit), Descriptor("to_number", "110", limit))
    domain = Domain(DescriptorFile("messaging", (Descriptor("type", "marketing", None, inner),)))

    def counter(number: str) -> tuple[str, str]:
        rule = domain.find([("type", "marketing"), ("to_number", number)])
        assert rule is not None
        return rule.endpoint, rule.subject([("type", "marketing"), ("to_number", number)])

    assert counter("206") == ("messaging:type=marketing,to_number", "to_number:206")
    assert counter("112") == ("messaging:type=marketing,to_number=1*", "to_number:112")
    assert counter("110") == ("messaging:type=marketing,to_number=110", "*messaging:type=marketing,to_number=110")


def test_thousands_of_wildcards_cost_what_a_few_do():
    def seconds(count: int) -> float:
        limit = RateLimit(5, UNITS[1])
        domain = Domain(DescriptorFile("d", tuple(Descriptor("path", f"/{n:05}/*", limit) for n in range(count))))
        rounds = []
        for _ in range(5):
            started = time.perf_counter()
            for _ in range(2000):
                assert domain.find([("path", f"/{count - 1:05}/x")]) is not None
            rounds.append(time.perf_counter() - started)
        return min(rounds)

    assert seconds(20_000) < 50 * seconds(10)  # one after the other, it would be two thousand times


def test_domain_in_two_files_is_refused():
    with pytest.raises(ConfigurationError, match="domain 'd' stands in two files"):
        Domains.of([DescriptorFile("d", ()), DescriptorFile("d", ())])
