"""Connections to one server for threads: a few, opened when they are needed, and none while the circuit breaker is open."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ratekit.core.outages import Outage, StoreOutage
from ratekit.stores.circuit_breaker import Breaker, probe_pauses
from ratekit.stores.contract import Command
from ratekit.stores.redis.client_errors import ClientErrors, any_outage_of, errors_of, greeting_outage
from ratekit.stores.redis.connection import GREETING
from ratekit.stores.redis.deadline import read_reply
from ratekit.stores.redis.driver import sentinels_of

_FRESH_SECONDS = 0.001  # a connection that was used so recently is not checked before it is used again
_hiredis: Any = None
with suppress(ImportError):
    import hiredis as _hiredis


class NoneLeft(Exception):
    """The server accepts no more connections, but this process has some."""


class ConnectionPool:
    """The connections of a process to one server. The caller bounds how many threads use it at a time."""

    def __init__(self, make: Callable[[], Any], label: str) -> None:
        self._make = make
        self._label = label
        self.errors: ClientErrors = errors_of(make())
        self.begin()

    def begin(self) -> None:
        """Start without connections, and with locks that nobody holds: when made, and in a forked process."""
        self.breaker = Breaker(self._label)
        self._idle: list[tuple[Any, float]] = []
        self._opened = 0
        self._counting = threading.Lock()
        self._closed = threading.Event()  # for threads that use or probe the connections of before

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together, and return their replies, errors among them.

        Raises StoreOutage if there are none. Raises NoneLeft, with nothing sent, if the server accepts no more connections.
        """
        self.breaker.check()
        began = time.monotonic()
        return self._exchange(self._connected(began), commands, began)

    def forget(self) -> None:
        """Close what nobody uses: the server is not the right one any more, and the next connection may find it."""
        while self._idle:
            self._drop(self._idle.pop()[0])

    def warm(self) -> None:
        """Open a connection in the background."""
        if not self._idle and not self._opened:
            threading.Thread(target=self.probe, name="ratekit-warm", daemon=True).start()

    def close(self) -> None:
        """Close every connection, those in use when their calls have ended. A later call opens new ones."""
        self._closed.set()
        self._closed, self.breaker = threading.Event(), Breaker(self._label)
        self.forget()

    def probe(self) -> None:
        """Open a connection, and note whether that is possible."""
        try:
            connection = self._open()
        except StoreOutage as error:
            self.breaker.probed(error.outage)
            return
        self._idle.append((connection, time.monotonic()))
        if self.breaker.failures:
            self.breaker.succeeded()

    def _exchange(self, connection: Any, commands: Sequence[Command], began: float) -> list[Any]:
        closed = self._closed
        try:
            connection.send_packed_command(_packed(connection, commands), check_health=False)
            replies = [self._reply(connection) for _ in commands]
        except self.errors.every as error:
            self._drop(connection)
            raise self._failure(any_outage_of(error, self.errors), began) from error
        except BaseException:
            self._drop(connection)  # a reply may still come, and must not be taken for that to another request
            raise
        if closed.is_set():
            self._drop(connection)
        else:
            self._idle.append((connection, time.monotonic()))
        if self.breaker.failures:
            self.breaker.succeeded()
        return replies

    def _reply(self, connection: Any) -> Any:
        """Return the next reply, which may be an error."""
        try:
            return read_reply(connection, self.errors.timeout)
        except self.errors.response as error:
            return error

    def _connected(self, began: float) -> Any:
        """Return an open connection. One that the server closed while it was idle is dropped, and costs no call."""
        while self._idle:
            try:
                connection, used_at = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            if time.monotonic() - used_at < _FRESH_SECONDS or self._is_quiet(connection):
                return connection
            self._drop(connection)
        try:
            return self._open()
        except StoreOutage as error:
            if error.outage.reason == "max_clients" and self._opened > 0:
                raise NoneLeft from None
            raise self._failure(error.outage, began) from error

    def _is_quiet(self, connection: Any) -> bool:
        try:
            return not connection.can_read(timeout=0)
        except self.errors.every:
            return False

    def _open(self) -> Any:
        connection = self._make()
        try:
            connection.connect()
            connection.send_packed_command(_packed(connection, [GREETING]), check_health=False)
            greeting = self._reply(connection)
            if isinstance(greeting, Exception):
                raise greeting
        except self.errors.every as error:
            outage = greeting_outage(error, self.errors)
            if outage is not None:
                connection.disconnect()
                raise StoreOutage(outage) from error
        finally:
            for sentinel in sentinels_of(connection):
                sentinel.close()
        with self._counting:
            self._opened += 1
        return connection

    def _drop(self, connection: Any) -> None:
        with self._counting:
            self._opened -= 1
        connection.disconnect()

    def _failure(self, outage: Outage, began: float) -> StoreOutage:
        if self.breaker.failed(outage, began):
            threading.Thread(
                target=_probe, args=(weakref.ref(self), self._closed), name="ratekit-probe", daemon=True
            ).start()
        return StoreOutage(outage)


def _probe(pool: weakref.ref[ConnectionPool], closed: threading.Event) -> None:
    """Probe a server until it answers, or until nobody uses the pool any more; in a thread of its own."""
    pauses = probe_pauses()
    while not closed.wait(pauses.pop(0) if len(pauses) > 1 else pauses[0]):
        current = pool()
        if current is None or current.breaker.outage is None:
            return
        current.breaker.probing()
        current.probe()
        del current


def _packed(connection: Any, commands: Sequence[Command]) -> list[bytes]:
    """Return commands as they are sent. Where hiredis is missing, the connection packs them, more slowly."""
    if _hiredis is not None:
        return [_hiredis.pack_command(command) for command in commands]
    return [part for command in commands for part in connection.pack_command(*command)]
