"""What a line of an event loop speaks through: a connection of our own, or a client that the application has brought."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ratekit.outage import StoreOutage
from ratekit.stores.asking import ClientErrors, Command, errors_of
from ratekit.stores.locations import library, sentinels_of
from ratekit.stores.pool import GREETING, greeting_outage

Done = Callable[[Sequence[Any] | Exception], None]


class Wire(Protocol):
    """Carries commands to a server and their replies back, so many exchanges at a time, without anybody waiting."""

    errors: ClientErrors
    most_exchanges: int

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent as far as can be told."""

    async def open(self) -> None:
        """Connect, and find out whether the server answers. Raises StoreOutage, or an error of the client."""

    def send(self, commands: Sequence[Command], done: Done) -> None:
        """Send commands together; done is called once, with their replies, errors among them, or why there are none.

        Exchanges end in the order in which they began. Why there are none, only the first of them is told.
        """

    def close(self) -> None:
        """Give up what is under way, whose done is not called any more, and close what was opened."""


class ConnectionWire(asyncio.Protocol):
    """A connection that redis-py has opened, with all that its URL asks for, and that is then read here.

    Replies are taken as they arrive, in no task: nothing of it can be cancelled, and none is late because a task is.
    """

    most_exchanges = 3  # while one is decided, the next ones are on their way

    def __init__(self, make: Callable[[], Any]) -> None:
        self.errors = errors_of(make())
        self._hiredis = library("hiredis")
        self._make = make
        self._connection: Any = None
        self._transport: asyncio.Transport | None = None
        self._exchanges: deque[tuple[Done, int]] = deque()  # each with the number of its replies
        self._replies: list[Any] = []

    @property
    def is_open(self) -> bool:
        """Whether the connection is open; one that the server has closed is not."""
        return self._transport is not None

    @property
    def connection(self) -> Any:
        """The connection of redis-py, None if there is none."""
        return self._connection

    async def open(self) -> None:
        """Connect anew, and greet the server."""
        self.close()
        connection = self._connection = self._make()
        try:
            await connection.connect()
            await connection.send_command(*GREETING)
            await connection.read_response()
        except (self.errors.every, OSError) as error:
            outage = greeting_outage(error, self.errors)
            if outage is not None:
                await connection.disconnect(nowait=True)
                raise StoreOutage(outage) from error
        finally:
            for sentinel in sentinels_of(connection):
                await sentinel.aclose()
        self._take_over(connection._writer.transport)  # noqa: SLF001 - there is no public way to the transport

    def _take_over(self, transport: asyncio.Transport) -> None:
        self._reader = self._hiredis.Reader(notEnoughData=Ellipsis)
        transport.set_protocol(self)
        self._transport = transport

    def send(self, commands: Sequence[Command], done: Done) -> None:
        """Write commands; their replies come to data_received."""
        self._exchanges.append((done, len(commands)))
        if self._transport is not None:
            pack = self._hiredis.pack_command
            self._transport.write(b"".join([pack(command) for command in commands]))

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not Ellipsis:
                self._take(reply)
        except self._hiredis.ProtocolError as error:
            self._fail(self.errors.invalid(str(error)))

    def _take(self, reply: Any) -> None:
        if not self._exchanges:
            self.close()  # nobody has asked: the next reply might be taken for another's
            return
        self._replies.append(self.errors.response(str(reply)) if isinstance(reply, self._hiredis.ReplyError) else reply)
        if len(self._replies) == self._exchanges[0][1]:
            (done, _), replies, self._replies = self._exchanges.popleft(), self._replies, []
            done(replies)

    def connection_lost(self, error: Exception | None) -> None:
        """Take note that the server has closed the connection."""
        self._fail(self.errors.connection(str(error or "the server has closed the connection")))

    def _fail(self, error: Exception) -> None:
        exchanges = list(self._exchanges)
        self.close()
        if exchanges:
            exchanges[0][0](error)

    def close(self) -> None:
        """Close the connection."""
        self._exchanges.clear()
        self._replies = []
        self._transport = None
        connection, self._connection = self._connection, None
        writer = getattr(connection, "_writer", None)
        if writer is not None:
            writer.transport.set_protocol(asyncio.Protocol())  # nobody needs to know
            writer.transport.abort()
            connection._writer = connection._reader = None  # noqa: SLF001 - it was taken over: there is nothing to close


class ClientWire:
    """A client that belongs to the application: used as it is, and left open."""

    is_open = True
    most_exchanges = 1

    def __init__(self, client: Any) -> None:
        self.errors = errors_of(client)
        self._client = client
        self._exchange: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Ask for any answer."""
        await self._client.ping()

    def send(self, commands: Sequence[Command], done: Done) -> None:
        """Send commands one after the other, in a task."""
        self._exchange = asyncio.get_running_loop().create_task(self._run(commands, done))

    async def _run(self, commands: Sequence[Command], done: Done) -> None:
        replies: list[Any] = []
        try:
            for command in commands:
                try:
                    replies.append(await self._client.execute_command(*command))
                except self.errors.response as error:
                    replies.append(error)
        except (self.errors.every, OSError) as error:
            done(error)
        else:
            done(replies)

    def close(self) -> None:
        """Give up what is under way, and leave the client open."""
        if self._exchange is not None:
            self._exchange.cancel()
