"""The two messages of ShouldRateLimit as protobuf writes them, read and written without protobuf.

The published packages of Envoy's messages overwrite each other's modules, and generated code asks for one version of the
protobuf runtime. These few fields need neither, and are read in three quarters of the time that protobuf's C parser and the
access to its fields take. `tests/ratekit_service/envoy/test_wire.py` compares both on generated messages.

    RateLimitRequest   domain 1, descriptors 2, hits_addend 3
    descriptor         entries 1 {key 1, value 2}, limit 2 {requests_per_unit 1, unit 2}, hits_addend 3 {value 1},
                       is_negative_hits 4
    RateLimitResponse  overall_code 1, statuses 2, response_headers_to_add 3 {key 1, value 2}
    status             code 1, current_limit 2 {requests_per_unit 1, unit 2, name 3}, limit_remaining 3,
                       duration_until_reset 4 {seconds 1}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

UNKNOWN, OK, OVER_LIMIT = 0, 1, 2  # codes of a status
MOST_UINT32 = 2**32 - 1
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types; 3 and 4 are groups, which proto3 does not have
_LONGEST_VARINT = 10


class MalformedMessageError(ValueError):
    """The bytes are not a message."""


class Override(NamedTuple):
    """The limit that a descriptor brings with it."""

    requests_per_unit: int
    unit: int


class RequestedDescriptor(NamedTuple):
    """A descriptor of a request. hits None: as many as the request has."""

    entries: tuple[tuple[str, str], ...]
    limit: Override | None
    hits: int | None
    is_negative: bool = False


class RateLimitRequest(NamedTuple):
    """A request. hits 0: not given, which counts as one."""

    domain: str
    descriptors: tuple[RequestedDescriptor, ...]
    hits: int


class Status(NamedTuple):
    """The status of a descriptor. limit None: there is no limit, or the store has not decided."""

    code: int
    limit: tuple[int, int, str] | None = None  # requests per unit, the number of the unit, name
    remaining: int = 0
    reset: int | None = None  # seconds


def read_request(message: bytes) -> RateLimitRequest:
    """Read a request. Raises MalformedMessageError."""
    domain, hits, descriptors = "", 0, []
    for number, start, end in _fields(message, 0, len(message)):
        if number == 1:
            domain = _text(message, start, end)
        elif number == 2:
            descriptors.append(_descriptor(message, *_span(start, end)))
        elif number == 3:
            hits = _number(start, end) & MOST_UINT32
    return RateLimitRequest(domain, tuple(descriptors), hits)


def _descriptor(message: bytes, start: int, end: int) -> RequestedDescriptor:
    entries: list[tuple[str, str]] = []
    limit: Override | None = None
    hits: int | None = None
    is_negative = False
    for number, at, stop in _fields(message, start, end):
        if number == 1:
            entries.append(_entry(message, *_span(at, stop)))
        elif number == 2:
            limit = _override(message, limit or Override(0, 0), *_span(at, stop))
        elif number == 3:
            hits = _wrapped(message, hits or 0, *_span(at, stop))
        elif number == 4:
            is_negative = _number(at, stop) != 0
    return RequestedDescriptor(tuple(entries), limit, hits, is_negative)


def _entry(message: bytes, start: int, end: int) -> tuple[str, str]:
    key = value = ""
    for number, at, stop in _fields(message, start, end):
        if number == 1:
            key = _text(message, at, stop)
        elif number == 2:
            value = _text(message, at, stop)
    return key, value


def _override(message: bytes, limit: Override, start: int, end: int) -> Override:
    requests, unit = limit
    for number, at, stop in _fields(message, start, end):
        if number == 1:
            requests = _number(at, stop) & MOST_UINT32
        elif number == 2:
            unit = _number(at, stop) & MOST_UINT32
    return Override(requests, unit)


def _wrapped(message: bytes, value: int, start: int, end: int) -> int:
    for number, at, stop in _fields(message, start, end):
        if number == 1:
            value = _number(at, stop)
    return value


def _fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field with where its bytes start and end; a varint with its value, and -1 for the end.

    Fields of fixed length, of which these messages have none, are skipped.
    """
    while at < end:
        tag = message[at]
        at += 1
        if tag > 127:
            tag, at = _varint(message, at - 1, end)
        kind = tag & 7
        if not 8 <= tag <= MOST_UINT32:
            raise MalformedMessageError(f"the tag {tag} before byte {at} is no field's")
        if kind == _BYTES:
            size, at = _varint(message, at, end)
            if at + size > end:
                raise MalformedMessageError(f"a field of {size} bytes at byte {at} is cut off at byte {end}")
            yield tag >> 3, at, at + size
            at += size
        elif kind == _VARINT:
            value, at = _varint(message, at, end)
            yield tag >> 3, value, -1
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise MalformedMessageError(f"the wire type {kind} before byte {at} is none of proto3")
    if at > end:
        raise MalformedMessageError(f"a field is cut off at byte {end}")


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number, and where the bytes after it start."""
    value = 0
    for place in range(_LONGEST_VARINT):
        if at >= end:
            raise MalformedMessageError(f"a number is cut off at byte {end}")
        byte = message[at]
        at += 1
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise MalformedMessageError(f"a number before byte {at} has more than {_LONGEST_VARINT} bytes")


def _text(message: bytes, start: int, end: int) -> str:
    start, end = _span(start, end)
    try:
        return message[start:end].decode()
    except UnicodeDecodeError:
        raise MalformedMessageError(f"the text at byte {start} is not UTF-8") from None


def _span(start: int, end: int) -> tuple[int, int]:
    if end < 0:
        raise MalformedMessageError(f"a field has the number {start} where bytes belong")
    return start, end


def _number(value: int, end: int) -> int:
    if end >= 0:
        raise MalformedMessageError(f"a field at byte {value} has bytes where a number belongs")
    return value


def write_response(code: int, statuses: Iterable[Status], headers: Iterable[bytes]) -> bytes:
    """Write a response. headers are those of `header`."""
    return b"".join([b"\x08", _written(code), *map(_status, statuses), *headers])


@lru_cache(maxsize=4096)
def header(name: bytes, value: bytes) -> bytes:
    """Write a header to add to the response. Limits, rules and small numbers come again and again."""
    return _field(b"\x1a", _field(b"\x0a", name) + _field(b"\x12", value))


def _status(status: Status) -> bytes:
    code, limit, remaining, reset = status
    parts = [b"\x08", _written(code)]
    if limit is not None:
        requests, unit, name = limit
        parts.append(_limit(requests, unit, name))
    parts += (b"\x18", _written(remaining))
    if reset is not None:
        parts.append(_field(b"\x22", b"\x08" + _written(reset)))
    return _field(b"\x12", b"".join(parts))


@lru_cache(maxsize=4096)
def _limit(requests: int, unit: int, name: str) -> bytes:
    inner = (b"\x08", _written(requests), b"\x10", _written(unit), _field(b"\x1a", name.encode()))
    return _field(b"\x12", b"".join(inner))


def _field(tag: bytes, value: bytes) -> bytes:
    return b"".join((tag, _written(len(value)), value))


_SMALL = [bytes((number,)) for number in range(128)]


def _written(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)
