from __future__ import annotations

import random
from typing import Any

import httpx2
import pytest

from ratekit import RateLimiter
from ratekit.asgi import RuleMiddleware
from ratekit.core.protocol import merge
from ratekit.rules.descriptors.convert import convert
from ratekit.rules.descriptors.file import UNITS, Descriptor, DescriptorFile, RateLimit
from ratekit.rules.descriptors.tree import Domain
from ratekit.rules.document import Document
from ratekit.stores.memory import MemoryStore
from ratekit.web.checks import Check

PER_MINUTE = {"unit": "minute", "requests_per_unit": 5}


def converted(*descriptors: Any, **headers: str) -> tuple[list[Any], tuple[str, ...]]:
    made = convert(DescriptorFile.of({"domain": "shop", "descriptors": list(descriptors)}), headers)
    Document.parse(made.values)  # it is a document
    return made.values["rules"], made.notes


def test_keys_name_who_is_counted_and_values_are_custom_limits():
    inner = {"key": "to_number", "rate_limit": {"unit": "day", "requests_per_unit": 5}}
    rules, notes = converted(
        {"key": "type", "value": "marketing", "descriptors": [inner]},
        {"key": "to_number", "rate_limit": {"unit": "day", "requests_per_unit": 100}, "shadow_mode": True},
        type="x-type",
        to_number="x-to",
    )
    assert [(rule["by"], rule.get("limits"), rule.get("custom")) for rule in rules] == [
        ({"type": "header:x-type", "to_number": "header:x-to"}, None, {"type:marketing:to_number:*": "5/d aligned"}),
        ({"to_number": "header:x-to"}, "100/d aligned shadow", None),
    ]
    assert notes == ()


def test_address_path_and_unlimited_are_carried_over():
    rules, notes = converted(
        {"key": "remote_address", "rate_limit": PER_MINUTE},
        {"key": "remote_address", "value": "50.0.0.5", "rate_limit": {"unit": "minute", "requests_per_unit": 0}},
        {"key": "remote_address", "value": "10.*", "rate_limit": {"unlimited": True}},
        {"key": "path", "value": "/login", "rate_limit": PER_MINUTE},
    )
    address, path = rules
    assert (address["by"], address["limits"]) == ({"remote_address": "ip"}, "5/min aligned")
    assert address["custom"] == {"remote_address:ip%3A50.0.0.5": "0/min aligned", "remote_address:ip%3A10.*": "unlimited"}
    assert (path["match"], path["by"], path["limits"]) == ({"path": "/login"}, "everyone", "5/min aligned")
    assert notes == ("path=/login: a document compares the path without its query, which the file compares with it",)


def test_names_of_limits_are_kept_where_a_rule_has_one():
    rules, notes = converted(
        {"key": "a", "rate_limit": PER_MINUTE | {"name": "per_a"}},
        {"key": "b", "value": "x", "rate_limit": PER_MINUTE | {"name": "of_x"}},
        {"key": "b", "value": "y", "rate_limit": PER_MINUTE | {"name": "of_y"}},
        {"key": "c", "rate_limit": PER_MINUTE},
        {"key": "d", "rate_limit": PER_MINUTE | {"name": "per_a"}},
        a="a", b="b", c="c", d="d",
    )  # fmt: skip
    assert [(rule["name"], rule["counter"]) for rule in rules] == [
        ("per_a", "shop:a"), ("shop:b", "shop:b"), ("shop:c", "shop:c"), ("shop:d", "shop:d"),
    ]  # fmt: skip
    assert notes == (
        "b=x: the name 'of_x' is lost: answers name the rule, 'shop:b'",
        "b=x: the name 'of_y' is lost: answers name the rule, 'shop:b'",
        "d: the name 'per_a' is lost: answers name the rule, 'shop:d'",
    )


@pytest.mark.parametrize(("one", "other"), [("/api/v2*", "/api/*"), ("/api/x", "/api/*")])
def test_patterns_of_paths_that_overlap_are_named(one, other):
    _, notes = converted(*({"key": "path", "value": value, "rate_limit": PER_MINUTE} for value in (other, one)))
    assert f"path={one}: in a document it has the limit of path={other} on path too" in notes


async def test_path_with_a_query_has_a_limit_in_the_document_only(ratekit_clock):
    limit = {"unit": "hour", "requests_per_unit": 1}
    file = DescriptorFile.of({"domain": "shop", "descriptors": [{"key": "path", "value": "/login", "rate_limit": limit}]})
    assert [Domain(file).find([("path", path)]) is None for path in ("/login", "/login?x=1")] == [False, True]
    made = convert(file)
    middleware = RuleMiddleware(empty, rules=made.values, store=MemoryStore())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(middleware), base_url="http://shop") as client:
        assert [(await client.get(path)).status_code for path in ("/login", "/login?x=1", "/x")] == [200, 429, 200]
    assert len(made.notes) == 1  # which says so


@pytest.mark.parametrize(
    ("descriptor", "sentence"),
    [
        ({"key": "path", "rate_limit": PER_MINUTE}, "path: is left out: a document cannot count by each value of 'path'"),
        ({"key": "path", "value": "/a*", "rate_limit": PER_MINUTE}, "path=/a*: a document counts all paths"),
        ({"key": "k", "value": "a*", "share_threshold": True, "rate_limit": PER_MINUTE}, "k=a*: a document counts each"),
        ({"key": "k", "rate_limit": PER_MINUTE | {"replaces": [{"name": "x"}]}}, "k: replaces 'x', which a document"),
        ({"key": "k", "rate_limit": PER_MINUTE}, "key 'k' is taken for the header of that name: say with --header k=NAME"),
        ({"key": "k", "detailed_metric": True, "rate_limit": PER_MINUTE}, "descriptors[0].detailed_metric: names"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_over_is_named(descriptor, sentence):
    _, notes = converted(descriptor)
    assert any(note.startswith(sentence) for note in notes), notes


def test_value_that_stops_the_search_in_the_file_is_named():
    inner = {"key": "b", "rate_limit": PER_MINUTE}
    _, notes = converted(
        {"key": "a", "descriptors": [inner]}, {"key": "a", "value": "x", "rate_limit": PER_MINUTE}, a="a", b="b"
    )
    assert notes == ("a=x: in a document it has the limit of a on a, b too",)


def random_file(draw: random.Random) -> DescriptorFile:
    def level(depth: int) -> tuple[Descriptor, ...]:
        made: dict[tuple[str, str], Descriptor] = {}
        for _ in range(draw.randrange(1, 4)):
            key, value = f"k{depth}", draw.choice(["", "", "x", "y:1", "z*", "%"])
            limit = RateLimit(draw.randrange(4), draw.choice([None, UNITS[1], UNITS[2]])) if draw.random() < 0.8 else None
            inner = level(depth + 1) if depth < 1 and draw.random() < 0.6 else ()
            made[key, value] = Descriptor(key, value, limit, inner, draw.random() < 0.2)
        return tuple(made.values())

    return DescriptorFile("shop", level(0))


async def empty(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_document_decides_as_the_file_does(ratekit_clock):
    """Requests with the headers of a file's keys, decided by the file and by the document that was made of it."""
    draw = random.Random(5)
    compared = refused = 0
    for _ in range(300):
        file = random_file(draw)
        made = convert(file, {"k0": "k0", "k1": "k1"})
        if made.notes:
            continue  # it decides otherwise, and says so
        domain, limiter = Domain(file), RateLimiter(MemoryStore())
        middleware = RuleMiddleware(empty, rules=made.values, store=MemoryStore())
        paths = [["k0"], ["k0", "k1"]]
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(middleware), base_url="http://shop") as client:
            for _ in range(12):
                headers = {"k0": draw.choice(["x", "y:1", "zz", "%", "other"]), "k1": draw.choice(["x", "zz", "other"])}
                calls = []
                for path in paths:
                    entries = [(key, headers[key]) for key in path]
                    rule = domain.find(entries)
                    if rule is not None and rule.policy is not None:
                        calls.append(Check.of(rule.policy, rule.subject(entries), rule.endpoint, "ratelimit").call)
                allowed = not calls or limiter.decide(merge(calls)).allowed
                assert (await client.get("/", headers=headers)).status_code == (200 if allowed else 429), (
                    made.values,
                    headers,
                )
                compared, refused = compared + 1, refused + (not allowed)
    assert compared > 500
    assert refused > 100
