"""Bodies of requests: read whole, within a size and a time."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import Any, TypeVar

from ratekit_service.problems import Problem

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Value = TypeVar("Value")
_MOST_DIGITS = 18  # of a length that is read; Python refuses to read 5000
_CLOSE = ((b"connection", b"close"),)  # the rest of the body is not waited for


class ClientGone(Exception):
    """The client has closed the connection before its request was whole."""


class BodyReader:
    """Reads bodies of at most so many bytes, each within so many seconds."""

    def __init__(self, most_bytes: int, seconds: float) -> None:
        self._bytes = most_bytes
        self._seconds = seconds

    async def read(self, length: bytes | None, receive: Receive) -> bytes:
        """Return a whole body, whose `content-length` is given if it has one. Raises Problem, or ClientGone."""
        if length is not None and length.isdigit() and (len(length) > _MOST_DIGITS or int(length) > self._bytes):
            raise self._too_large()
        try:
            return await within(self._seconds, self._read(receive))
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {self._seconds:g} s", headers=_CLOSE) from None

    async def _read(self, receive: Receive) -> bytes:
        message = await receive()
        body: bytes = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._bytes:
                raise self._too_large()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if len(body) > self._bytes:
            raise self._too_large()
        return body

    def _too_large(self) -> Problem:
        return Problem(413, f"the body is larger than {self._bytes} bytes", headers=_CLOSE)


async def within(seconds: float, work: Coroutine[Any, Any, Value]) -> Value:
    """Await a coroutine for at most so many seconds; one that has nothing to wait for needs no timer, and gets none."""
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    async with asyncio.timeout(seconds):
        return await _resumed(work, waits_for)


@types.coroutine
def _resumed(work: Coroutine[Any, Any, Value], waits_for: Any) -> Generator[Any, Any, Value]:
    """Go on with a coroutine that was run up to where it first waits."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the coroutine has to know, a cancellation above all
                waits_for = work.throw(error)
            else:
                waits_for = work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
