"""Errors of a gRPC call, with the numbers of their statuses."""

from __future__ import annotations

from enum import IntEnum


class StatusCode(IntEnum):
    """The statuses of gRPC that ratekit answers with."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """A call that is answered with a status and a sentence instead of a message."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
