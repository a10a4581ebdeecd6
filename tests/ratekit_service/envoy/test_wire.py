from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratekit_service.envoy.wire import (
    MalformedMessageError,
    Override,
    RateLimitRequest,
    RequestedDescriptor,
    Status,
    header,
    read_request,
    write_response,
)  # fmt: skip
from support.envoy_messages import Request, Response

TEXTS = st.text(max_size=300)
UINT32 = st.integers(0, 2**32 - 1)
DESCRIPTORS = st.builds(
    RequestedDescriptor,
    st.lists(st.tuples(TEXTS, TEXTS), max_size=4).map(tuple),
    st.none() | st.builds(Override, UINT32, st.integers(0, 7)),
    st.none() | st.integers(0, 2**64 - 1),
    st.booleans(),
)
REQUESTS = st.builds(RateLimitRequest, TEXTS, st.lists(DESCRIPTORS, max_size=4).map(tuple), UINT32)


def written(request: RateLimitRequest) -> bytes:
    made = Request(domain=request.domain, hits_addend=request.hits)
    for descriptor in request.descriptors:
        added = made.descriptors.add(is_negative_hits=descriptor.is_negative)
        for key, value in descriptor.entries:
            added.entries.add(key=key, value=value)
        if descriptor.limit is not None:
            added.limit.requests_per_unit, added.limit.unit = descriptor.limit
            added.limit.SetInParent()
        if descriptor.hits is not None:
            added.hits_addend.value = descriptor.hits
            added.hits_addend.SetInParent()
    return bytes(made.SerializeToString())


def by_protobuf(message: bytes) -> RateLimitRequest:
    made: Any = Request.FromString(message)
    descriptors = [
        RequestedDescriptor(
            tuple((entry.key, entry.value) for entry in one.entries),
            Override(one.limit.requests_per_unit, one.limit.unit & 0xFFFF_FFFF) if one.HasField("limit") else None,
            one.hits_addend.value if one.HasField("hits_addend") else None,
            one.is_negative_hits,
        )
        for one in made.descriptors
    ]
    return RateLimitRequest(made.domain, tuple(descriptors), made.hits_addend)


@given(REQUESTS)
@settings(max_examples=300)
def test_request_is_read_as_protobuf_wrote_it(request):
    assert read_request(written(request)) == request


@given(REQUESTS, st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=6)), max_size=4), st.integers(0, 10_000))
@settings(max_examples=2000)
@example(RateLimitRequest("d", (), 0), [(0, b"\x0b")], 10_000)
def test_bytes_that_were_damaged_are_read_as_protobuf_does_or_refused(request, damages, length):
    message = bytearray(written(request))
    for at, put in damages:
        at %= len(message) + 1
        message[at : at + len(put)] = put
    damaged = bytes(message[:length])
    try:
        read = read_request(damaged)
    except MalformedMessageError:
        return
    assert read == by_protobuf(damaged)  # which raises DecodeError if only we have read it


@given(st.binary(max_size=200))
@settings(max_examples=2000)
def test_random_bytes_are_read_as_protobuf_does_or_refused(message):
    try:
        read = read_request(message)
    except MalformedMessageError:
        return
    assert read == by_protobuf(message)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (b"\x0a\x05ab", "a field of 5 bytes at byte 2 is cut off at byte 4"),
        (b"\x0a\x02\xff\xfe", "the text at byte 2 is not UTF-8"),
        (b"\x18" + b"\xff" * 11, "a number before byte 11 has more than 10 bytes"),
        (b"\x18\xff", "a number is cut off at byte 2"),
        (b"\x00\x01", "the tag 0 before byte 1 is no field's"),
        (b"\x0b", "the wire type 3 before byte 1 is none of proto3"),
        (b"\x08\x01", "a field has the number 1 where bytes belong"),
        (b"\x1a\x00", "a field at byte 2 has bytes where a number belongs"),
        (b"\x2d\x00", "a field is cut off at byte 2"),
    ],
)
def test_fault_in_a_message_is_named(message, sentence):
    with pytest.raises(MalformedMessageError, match=sentence):
        read_request(message)


def test_unknown_fields_are_skipped():
    unknown = b"\x48\x07" + b"\x51" + bytes(8) + b"\x5d" + bytes(4) + b"\x7a\x02hi" + b"\x82\x7d\x01x"
    assert read_request(unknown + b"\x0a\x04shop" + unknown).domain == "shop"


@given(
    st.integers(0, 2), st.lists(st.tuples(st.integers(0, 2), UINT32, st.integers(0, 7), TEXTS, UINT32, UINT32), max_size=4)
)
def test_response_is_read_by_protobuf_as_it_was_written(code, rows):
    statuses = [Status(one, (most, unit, name), left, reset) for one, most, unit, name, left, reset in rows]
    response = Response.FromString(write_response(code, [*statuses, Status(1)], [header(b"x-a", "ü".encode())]))
    assert response.overall_code == code
    assert [
        (one.code, one.current_limit.requests_per_unit, one.current_limit.unit, one.current_limit.name, one.limit_remaining,
         one.duration_until_reset.seconds) for one in response.statuses
    ] == [*rows, (1, 0, 0, "", 0, 0)]  # fmt: skip
    assert not response.statuses[-1].HasField("current_limit")
    assert [(line.key, line.value) for line in response.response_headers_to_add] == [("x-a", "ü")]


def test_protobuf_refuses_what_we_refuse():
    for message in (b"\x0a\x05ab", b"\x0a\x02\xff\xfe", b"\x00\x01", b"\x18\xff"):
        with pytest.raises(DecodeError):
            Request.FromString(message)
