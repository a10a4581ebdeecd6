"""Envoy's messages as gRPC's reflection shows them: with Envoy's names, in a pool of our own.

In a pool of our own these names meet no other package's. Nothing is read or written with these descriptors:
`ratekit_service.envoy.wire` does that.
"""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

_PACKAGE = "envoy.service.ratelimit.v3"
_DESCRIPTORS = "envoy.extensions.common.ratelimit.v3"
_STRING, _UINT32, _UINT64, _INT64, _BOOL, _ENUM, _MESSAGE = (
    FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_UINT32, FieldDescriptorProto.TYPE_UINT64,
    FieldDescriptorProto.TYPE_INT64, FieldDescriptorProto.TYPE_BOOL, FieldDescriptorProto.TYPE_ENUM,
    FieldDescriptorProto.TYPE_MESSAGE,
)  # fmt: skip
_Fields = dict[str, "tuple[int, FieldDescriptorProto.Type.ValueType, str, bool]"]
_UNITS = {"UNKNOWN": 0, "SECOND": 1, "MINUTE": 2, "HOUR": 3, "DAY": 4, "MONTH": 5, "YEAR": 6, "WEEK": 7}


def descriptor_pool() -> DescriptorPool:
    """Return a pool with the descriptors of the services that the gRPC server has."""
    pool = DescriptorPool()
    for file in (_common(), _service()):
        pool.Add(file)
    for module in (health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    return pool


def _field(number: int, kind: FieldDescriptorProto.Type.ValueType, of: str = "", *, many: bool = False) -> tuple[
    int, FieldDescriptorProto.Type.ValueType, str, bool
]:  # fmt: skip
    return number, kind, of, many


def _message(message: DescriptorProto, fields: _Fields) -> None:
    for name, (number, kind, of, many) in fields.items():
        label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label, type_name=f".{of}" if of else None)


def _common() -> FileDescriptorProto:
    name = f"{_DESCRIPTORS}.RateLimitDescriptor"
    file = FileDescriptorProto(name="ratekit/envoy_descriptors.proto", package=_DESCRIPTORS, syntax="proto3")
    outer = file.message_type.add(name="RateLimitDescriptor")
    _message(outer.nested_type.add(name="Entry"), {"key": _field(1, _STRING), "value": _field(2, _STRING)})
    override = outer.nested_type.add(name="RateLimitOverride")
    _message(override, {"requests_per_unit": _field(1, _UINT32), "unit": _field(2, _ENUM, f"{name}.Unit")})
    hits = outer.nested_type.add(name="HitsAddend")
    _message(hits, {"value": _field(1, _UINT64)})
    units = outer.enum_type.add(name="Unit")
    for unit, number in _UNITS.items():
        units.value.add(name=unit, number=number)
    fields: _Fields = {
        "entries": _field(1, _MESSAGE, f"{name}.Entry", many=True),
        "limit": _field(2, _MESSAGE, f"{name}.RateLimitOverride"),
        "hits_addend": _field(3, _MESSAGE, f"{name}.HitsAddend"),
        "is_negative_hits": _field(4, _BOOL),
    }
    _message(outer, fields)
    return file


def _service() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="ratekit/envoy_rls.proto", package=_PACKAGE, syntax="proto3", dependency=["ratekit/envoy_descriptors.proto"]
    )
    request: _Fields = {
        "domain": _field(1, _STRING),
        "descriptors": _field(2, _MESSAGE, f"{_DESCRIPTORS}.RateLimitDescriptor", many=True),
        "hits_addend": _field(3, _UINT32),
    }
    _message(file.message_type.add(name="RateLimitRequest"), request)
    _response(file.message_type.add(name="RateLimitResponse"))
    file.service.add(name="RateLimitService").method.add(
        name="ShouldRateLimit",
        input_type=f".{_PACKAGE}.RateLimitRequest",
        output_type=f".{_PACKAGE}.RateLimitResponse",
    )
    return file


def _response(message: DescriptorProto) -> None:
    name = f"{_PACKAGE}.RateLimitResponse"
    codes = message.enum_type.add(name="Code")
    for number, code in enumerate(("UNKNOWN", "OK", "OVER_LIMIT")):
        codes.value.add(name=code, number=number)
    limit: _Fields = {
        "requests_per_unit": _field(1, _UINT32),
        "unit": _field(2, _ENUM, f"{_DESCRIPTORS}.RateLimitDescriptor.Unit"),
        "name": _field(3, _STRING),
    }
    _message(message.nested_type.add(name="RateLimit"), limit)
    _message(message.nested_type.add(name="Duration"), {"seconds": _field(1, _INT64)})
    status: _Fields = {
        "code": _field(1, _ENUM, f"{name}.Code"),
        "current_limit": _field(2, _MESSAGE, f"{name}.RateLimit"),
        "limit_remaining": _field(3, _UINT32),
        "duration_until_reset": _field(4, _MESSAGE, f"{name}.Duration"),
    }
    _message(message.nested_type.add(name="DescriptorStatus"), status)
    _message(message.nested_type.add(name="HeaderValue"), {"key": _field(1, _STRING), "value": _field(2, _STRING)})
    fields: _Fields = {
        "overall_code": _field(1, _ENUM, f"{name}.Code"),
        "statuses": _field(2, _MESSAGE, f"{name}.DescriptorStatus", many=True),
        "response_headers_to_add": _field(3, _MESSAGE, f"{name}.HeaderValue", many=True),
    }
    _message(message, fields)
