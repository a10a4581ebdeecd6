"""What a line of an event loop speaks through: a connection of our own, or a client that the application has brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ratekit.outage import StoreOutage
from ratekit.stores.asking import ClientErrors, Command, errors_of
from ratekit.stores.pool import GREETING, greeting_outage, packed


class Wire(Protocol):
    """Carries commands to a server, one exchange at a time."""

    errors: ClientErrors

    async def ready(self) -> None:
        """Connect, if need be. Raises StoreOutage, or an error of the client."""

    async def greet(self) -> None:
        """Find out whether the server answers."""

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together, and return their replies, errors among them."""

    async def close(self) -> None:
        """Close what was opened."""


class ConnectionWire:
    """One connection, opened when it is needed, and again when it was closed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.errors = errors_of(make())
        self._make = make
        self._connection: Any = None

    @property
    def connection(self) -> Any:
        """The connection, None if there is none."""
        return self._connection

    async def ready(self) -> None:
        """Connect, unless the connection is open and quiet: what was closed while nobody used it costs nobody a call."""
        connection = self._connection
        if connection is not None and connection.is_connected and not await connection.can_read():
            return
        await self.close()
        await self._open()

    async def greet(self) -> None:
        """Connect anew."""
        await self.close()
        await self._open()

    async def _open(self) -> None:
        connection = self._connection = self._make()
        try:
            await connection.connect()
            await connection.send_packed_command(packed(connection, [GREETING]), check_health=False)
            await connection.read_response(disable_decoding=True)
        except (self.errors.every, OSError) as error:
            outage = greeting_outage(error, self.errors)
            if outage is not None:
                await self.close()
                raise StoreOutage(outage) from error

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together, and return their replies, errors among them."""
        connection, replies = self._connection, []
        await connection.send_packed_command(packed(connection, commands), check_health=False)
        for _ in commands:
            try:
                replies.append(await connection.read_response(disable_decoding=True))
            except self.errors.response as error:
                replies.append(error)
        return replies

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


class ClientWire:
    """A client that belongs to the application: used as it is, and left open."""

    def __init__(self, client: Any) -> None:
        self.errors = errors_of(client)
        self._client = client

    async def ready(self) -> None:
        """Leave it to the client."""

    async def greet(self) -> None:
        """Ask for any answer."""
        await self._client.ping()

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands one after the other, and return their replies, errors among them."""
        replies: list[Any] = []
        for command in commands:
            try:
                replies.append(await self._client.execute_command(*command))
            except self.errors.response as error:
                replies.append(error)
        return replies

    async def close(self) -> None:
        """Leave it open."""
