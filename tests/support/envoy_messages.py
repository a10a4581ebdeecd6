"""Envoy's messages by protobuf, for tests that compare ratekit's own reader and writer with it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message_factory import GetMessageClass

from ratekit_service.envoy.reflected import descriptor_pool

_POOL = descriptor_pool()
Request: Any = GetMessageClass(_POOL.FindMessageTypeByName("envoy.service.ratelimit.v3.RateLimitRequest"))
Response: Any = GetMessageClass(_POOL.FindMessageTypeByName("envoy.service.ratelimit.v3.RateLimitResponse"))
OK, OVER_LIMIT = 1, 2
Entries = list[tuple[str, str]]


def request(domain: str, *descriptors: Entries, hits: int = 0) -> Any:
    """Make a request of descriptors."""
    made = Request(domain=domain, hits_addend=hits)
    for entries in descriptors:
        added = made.descriptors.add()
        for key, value in entries:
            added.entries.add(key=key, value=value)
    return made


def headers_of(response: Any) -> dict[str, str]:
    """Return the headers that Envoy is to add."""
    return {line.key: line.value for line in response.response_headers_to_add}
