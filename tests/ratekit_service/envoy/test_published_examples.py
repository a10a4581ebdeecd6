"""The examples of envoyproxy/ratelimit's README, as a table: the same decisions. docs/gateways.md names differences."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ratekit import AsyncRateLimiter
from ratekit.rules.descriptors.file import DescriptorFile
from ratekit.rules.descriptors.tree import Domains
from ratekit.stores.memory import MemoryStore
from ratekit_service.envoy.service import RateLimitService
from support.envoy_messages import OVER_LIMIT, Entries, Response, request

FILES = {
    "1 by value": """
        domain: mongo_cps
        descriptors:
          - {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
          - {key: database, value: default, rate_limit: {unit: second, requests_per_unit: 500}}
    """,
    "2 nested": """
        domain: messaging
        descriptors:
          - key: message_type
            value: marketing
            descriptors:
              - {key: to_number, rate_limit: {unit: day, requests_per_unit: 5}}
          - {key: to_number, rate_limit: {unit: day, requests_per_unit: 100}}
    """,
    "3 matching order": """
        domain: edge_proxy_per_ip
        descriptors:
          - {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}
          - {key: remote_address, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}
    """,
    "4 depth": """
        domain: example4
        descriptors:
          - key: key
            value: value
            rate_limit: {requests_per_unit: 300, unit: second}
            descriptors:
              - {key: subkey, value: deep, rate_limit: {requests_per_unit: 2, unit: second}}
    """,
    "5 unlimited": """
        domain: internal
        descriptors:
          - {key: ldap, rate_limit: {unlimited: true}}
          - {key: azure, rate_limit: {unit: minute, requests_per_unit: 100}}
    """,
    "6 shadow": """
        domain: example6
        descriptors:
          - key: service
            descriptors:
              - {key: user, value: user-a, rate_limit: {requests_per_unit: 10, unit: second}, shadow_mode: true}
              - {key: user, value: user-b, rate_limit: {requests_per_unit: 20, unit: second}}
    """,
    "7 replaces": """
        domain: example7
        descriptors:
          - key: key_1
            value: value_1
            descriptors:
              - {key: user, value: bkthomps, rate_limit: {name: specific_limit, requests_per_unit: 5, unit: second}}
          - key: key_2
            value: value_2
            descriptors:
              - key: user
                value: bkthomps
                rate_limit: {replaces: [{name: specific_limit}], requests_per_unit: 10, unit: second}
    """,
    "8 detailed metric": """
        domain: example8
        descriptors:
          - {key: key1, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 10}}
          - {key: key1, value: value1, rate_limit: {unit: minute, requests_per_unit: 20}}
    """,
    "9 wildcard": """
        domain: example9
        descriptors:
          - {key: key1, value: value*, rate_limit: {unit: minute, requests_per_unit: 20}}
    """,
    "share_threshold": """
        domain: files
        descriptors:
          - {key: path, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 10}}
    """,
    "its example configuration": """
        domain: rl
        descriptors:
          - key: foo
            rate_limit: {unit: minute, requests_per_unit: 2}
            descriptors:
              - {key: bar, rate_limit: {unit: minute, requests_per_unit: 3}}
              - {key: bar, value: banned, rate_limit: {unit: minute, requests_per_unit: 0}}
              - {key: baz, rate_limit: {unit: second, requests_per_unit: 1}}
              - {key: baz, value: shady, rate_limit: {unit: minute, requests_per_unit: 1}, shadow_mode: true}
              - {key: bay, rate_limit: {unlimited: true}}
    """,
}


class Sent(NamedTuple):
    """Requests of the same descriptors, and how many of them pass."""

    file: str
    times: int
    pass_: int
    descriptors: list[Entries]
    before: tuple[int, list[Entries]] = (0, [])  # requests that come before, and pass


MARKETING = [("message_type", "marketing"), ("to_number", "2061111111")]
FIRST, SECOND = [("key_1", "value_1"), ("user", "bkthomps")], [("key_2", "value_2"), ("user", "bkthomps")]
CASES = [
    Sent("1 by value", 501, 500, [[("database", "users")]]),
    Sent("1 by value", 501, 501, [[("database", "other")]]),
    Sent("2 nested", 6, 5, [MARKETING]),
    Sent("2 nested", 101, 100, [[("to_number", "2061111111")]]),
    Sent("2 nested", 6, 5, [MARKETING, [("to_number", "2061111111")]]),
    Sent("2 nested", 6, 5, [[("message_type", "marketing"), ("to_number", "2062222222")]], (5, [MARKETING])),
    Sent("2 nested", 6, 0, [MARKETING, [("to_number", "2061111111")]], (100, [[("to_number", "2061111111")]])),
    Sent("3 matching order", 11, 10, [[("remote_address", "50.0.0.1")]]),
    Sent("3 matching order", 1, 0, [[("remote_address", "50.0.0.5")]]),
    Sent("4 depth", 301, 301, [[("key", "value"), ("subkey", "subvalue")]]),
    Sent("4 depth", 3, 2, [[("key", "value"), ("subkey", "deep")]]),
    Sent("4 depth", 301, 300, [[("key", "value")]]),
    Sent("5 unlimited", 200, 200, [[("ldap", "x")]]),
    Sent("5 unlimited", 101, 100, [[("azure", "x")]]),
    Sent("6 shadow", 50, 50, [[("service", "auth-service"), ("user", "user-a")]]),
    Sent("6 shadow", 21, 20, [[("service", "auth-service"), ("user", "user-b")]]),
    Sent("7 replaces", 6, 5, [FIRST]),
    Sent("7 replaces", 11, 10, [SECOND]),
    Sent("7 replaces", 11, 10, [FIRST, SECOND]),
    Sent("7 replaces", 6, 5, [FIRST], (8, [FIRST, SECOND])),
    Sent("8 detailed metric", 11, 10, [[("key1", "unspecified_value")]]),
    Sent("8 detailed metric", 21, 20, [[("key1", "value1")]]),
    Sent("9 wildcard", 21, 20, [[("key1", "value_1")]]),
    Sent("9 wildcard", 21, 20, [[("key1", "value_2")]], (20, [[("key1", "value_1")]])),
    Sent("9 wildcard", 21, 21, [[("key1", "other")]]),
    Sent("share_threshold", 6, 4, [[("path", "files/b.csv")]], (6, [[("path", "files/a.pdf")]])),
    Sent("its example configuration", 3, 2, [[("foo", "foo")]]),
    Sent("its example configuration", 4, 3, [[("foo", "foo"), ("bar", "bar")]]),
    Sent("its example configuration", 1, 0, [[("foo", "foo"), ("bar", "banned")]]),
    Sent("its example configuration", 2, 1, [[("foo", "foo"), ("baz", "not-so-shady")]]),
    Sent("its example configuration", 5, 5, [[("foo", "foo"), ("baz", "shady")]]),
    Sent("its example configuration", 5, 5, [[("foo", "foo"), ("bay", "x")]]),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.file}" for number, case in enumerate(CASES)])
async def test_published_example_is_decided_as_published(case, ratekit_clock):
    file = DescriptorFile.parse(FILES[case.file])
    service = RateLimitService(AsyncRateLimiter(MemoryStore()), Domains.of([file]))

    async def is_admitted(descriptors: list[Entries]) -> bool:
        message = request(file.domain, *descriptors).SerializeToString()
        return Response.FromString(await service.should_rate_limit(message)).overall_code != OVER_LIMIT

    times, earlier = case.before
    assert all([await is_admitted(earlier) for _ in range(times)])
    answers = [await is_admitted(case.descriptors) for _ in range(case.times)]
    assert answers == [index < case.pass_ for index in range(case.times)]
