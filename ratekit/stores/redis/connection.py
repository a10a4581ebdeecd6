"""Connections of an event loop to a server: one that ratekit opens, or the client that the application brings.

This is the only module that uses private attributes of redis-py (`_writer`, `_reader`, `_available_connections`). A test
checks that the oldest and the newest supported release have them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ratekit.core.outages import StoreOutage
from ratekit.stores.contract import Command
from ratekit.stores.redis.client import send_once_async
from ratekit.stores.redis.client_errors import ClientErrors, errors_of, greeting_outage
from ratekit.stores.redis.driver import library, sentinels_of

GREETING: Command = ("PING",)
Received = Callable[[Sequence[Any] | Exception], None]


class Connection(Protocol):
    """Sends requests to a server and passes on their replies, without a task that waits for them."""

    errors: ClientErrors
    most_in_flight: int  # requests that may be sent before the first of them is answered

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent, as far as is known."""

    async def open(self) -> None:
        """Connect, and find out whether the server answers. Raises StoreOutage, or an error of the client."""

    def send(self, commands: Sequence[Command], received: Received) -> None:
        """Send commands together, and call `received` once with their replies, in the order of the requests.

        If the connection fails, `received` of the oldest request in flight gets the error; those of the others are dropped.
        """

    def close(self) -> None:
        """Close what was opened, and drop the requests in flight: `received` is not called any more."""

    def abandon(self) -> None:
        """Close the socket of a connection whose event loop is closed already."""


class ServerConnection(asyncio.Protocol):
    """A connection that redis-py opens, with all options of the URL, and that is then read here.

    Replies are read as they arrive, without a task: nothing can be cancelled, and no reply is late because a task is.
    """

    most_in_flight = 3  # while the server works on one request, the next ones are on their way

    def __init__(self, make: Callable[[], Any]) -> None:
        self.errors = errors_of(make())
        self._hiredis = library("hiredis")
        self._make = make
        self._connection: Any = None
        self._transport: asyncio.Transport | None = None
        self._in_flight: deque[tuple[Received, int]] = deque()  # each with the number of its replies
        self._replies: list[Any] = []

    @property
    def is_open(self) -> bool:
        """Whether the connection is open; one that the server has closed is not."""
        return self._transport is not None

    async def open(self) -> None:
        """Connect anew, and send the greeting."""
        self.close()
        connection = self._connection = self._make()
        try:
            await connection.connect()
            await connection.send_command(*GREETING)
            await connection.read_response()
        except self.errors.every as error:
            outage = greeting_outage(error, self.errors)
            if outage is not None:
                await connection.disconnect(nowait=True)
                raise StoreOutage(outage) from error
        finally:
            for sentinel in sentinels_of(connection):
                await sentinel.aclose()
        self._take_over(connection._writer.transport)  # noqa: SLF001 - redis-py has no public way to the transport

    def _take_over(self, transport: asyncio.Transport) -> None:
        self._reader = self._hiredis.Reader(notEnoughData=Ellipsis)
        transport.set_protocol(self)
        self._transport = transport

    def send(self, commands: Sequence[Command], received: Received) -> None:
        """Write commands; their replies come to data_received."""
        self._in_flight.append((received, len(commands)))
        if self._transport is not None:
            pack = self._hiredis.pack_command
            self._transport.write(b"".join([pack(command) for command in commands]))

    def data_received(self, data: bytes) -> None:
        """Parse the replies that have arrived."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not Ellipsis:
                self._add(reply)
        except self._hiredis.ProtocolError as error:
            self._fail(self.errors.invalid(str(error)))

    def _add(self, reply: Any) -> None:
        if not self._in_flight:
            self.close()  # a reply to no request: the next one could be taken for the reply to another
            return
        self._replies.append(self.errors.response(str(reply)) if isinstance(reply, self._hiredis.ReplyError) else reply)
        if len(self._replies) == self._in_flight[0][1]:
            (received, _), replies, self._replies = self._in_flight.popleft(), self._replies, []
            received(replies)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the requests in flight: the server has closed the connection."""
        self._fail(self.errors.connection(str(error or "the server has closed the connection")))

    def _fail(self, error: Exception) -> None:
        in_flight = list(self._in_flight)
        self.close()
        if in_flight:
            in_flight[0][0](error)

    def close(self) -> None:
        """Close the connection, and drop the requests in flight."""
        self._in_flight.clear()
        self._replies = []
        self._transport = None
        connection, self._connection = self._connection, None
        writer = getattr(connection, "_writer", None)
        if writer is not None:
            writer.transport.set_protocol(asyncio.Protocol())  # which ignores what still arrives
            writer.transport.abort()
            connection._writer = connection._reader = None  # noqa: SLF001 - redis-py must not close what was taken over

    def abandon(self) -> None:
        """Close the socket of a connection whose event loop is closed already."""
        _abandon(self._connection)


class ClientConnection:
    """The client that the application brings: used on its own pool, without its retries, and left open."""

    is_open = True
    most_in_flight = 1

    def __init__(self, client: Any) -> None:
        self.errors = errors_of(client)
        self._failures: tuple[type[Exception], ...] = (*self.errors.every, StoreOutage)
        self._client = client
        self._request: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Find out whether the server answers."""
        await self._client.ping()

    def send(self, commands: Sequence[Command], received: Received) -> None:
        """Send commands one after the other, in a task."""
        self._request = asyncio.get_running_loop().create_task(self._send(commands, received))

    async def _send(self, commands: Sequence[Command], received: Received) -> None:
        replies: list[Any] = []
        try:
            for command in commands:
                try:
                    replies.append(await send_once_async(self._client, command))
                except self.errors.response as error:
                    replies.append(error)
        except self._failures as error:
            received(error)
        else:
            received(replies)

    def close(self) -> None:
        """Cancel the request in flight, and leave the client open."""
        if self._request is not None:
            self._request.cancel()

    def abandon(self) -> None:
        """Leave the client to the application."""


def abandon_client(client: Any) -> None:
    """Close the sockets of a client of redis.asyncio whose event loop is closed already."""
    for connection in getattr(getattr(client, "connection_pool", None), "_available_connections", ()):
        _abandon(connection)


def _abandon(connection: Any) -> None:
    transport: Any = getattr(getattr(connection, "_writer", None), "transport", None)
    sock = getattr(transport, "_sock", None)
    if sock is not None:
        sock.close()
        vars(transport).update(_sock=None, _closing=True)
        connection._writer = connection._reader = None  # noqa: SLF001 - there is no public way without an event loop
