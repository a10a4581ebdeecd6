"""Connections of the server: a client that sends headers without end, or none at all, holds neither memory nor a connection.

uvicorn bounds neither. The bodies of requests are bounded by `checks.bodies`.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 65_536  # of the line and the headers of a request, about
_FRAMING = 8  # bytes that a chunked body may have for each byte of it: "1\r\nx\r\n" has 6
_TOO_LARGE = "The headers of the request are too large."


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose requests have so many seconds for their headers, and so many bytes for a body."""

    def __init__(self, *, head_seconds: float, body_bytes: int, **server: Any) -> None:
        super().__init__(**server)
        self._head_seconds = head_seconds
        self._most = HEAD_BYTES + _FRAMING * body_bytes
        self._counted: Any = None  # the request whose bytes are counted
        self._received = 0
        self._is_in_head = False
        self._ending: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin. A client that sends nothing is let go as after a request."""
        super().connection_made(transport)
        self._end_in(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what has come. Headers that are not whole have a time and a size."""
        HttpToolsProtocol.data_received(self, data)
        scope = self.scope
        if scope is not self._counted:  # a request has begun
            self._counted, self._received = scope, 0
            if self._ending is None and "method" in scope:  # with all of its headers
                return
        self._bound(scope, len(data))

    def _bound(self, scope: Any, size: int) -> None:
        self._received += size
        if scope is None or "method" not in scope:
            self._await_head()
        elif self._ending is not None:
            self._stop_waiting()
        if self._received > self._most:  # a body with trailers without end
            self.transport.close()

    def _await_head(self) -> None:
        if not self._is_in_head:
            self._end_in(self._head_seconds)
            self._is_in_head = True
        if self._received > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_TOO_LARGE)

    def _end_in(self, seconds: float) -> None:
        self._stop_waiting()
        self._ending = self.loop.call_later(seconds, self._end)

    def _end(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:  # the request before this one is still being answered
            self._end_in(self._head_seconds)

    def _stop_waiting(self) -> None:
        self._is_in_head = False
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
