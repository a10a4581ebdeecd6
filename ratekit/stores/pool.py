"""Connections to one server for code that waits: a few, shared by all threads, and left alone while the server is."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ratekit.breaker import Breaker, probe_pauses
from ratekit.outage import Outage, StoreOutage, classify_reply
from ratekit.stores.asking import ClientErrors, Command, errors_of, outage_of
from ratekit.stores.locations import sentinels_of
from ratekit.stores.turns import Turns

_QUEUE_SECONDS = 5.0  # how long a call waits for one of our own connections: that is no fault of the store
_FRESH_SECONDS = 0.001  # a connection that was used so lately is not looked at before it is used again
_MOST_TURNS = 5  # for a reply
_LATE = 0.1  # of the deadline
_PARKED_SECONDS = 1.0  # how long fewer connections are used after the server had none left to give
GREETING: Command = ("PING",)
_hiredis: Any = None
with suppress(ImportError):
    import hiredis as _hiredis


class Pool:
    """At most so many connections to one server, opened when they are needed."""

    def __init__(self, make: Callable[[], Any], most: int, label: str) -> None:
        self._make = make
        self._most = most
        self._label = label
        self._errors: ClientErrors = errors_of(make())
        self.begin()
        _pools.add(self)

    def begin(self) -> None:
        """Start from nothing: no connection, no lock that somebody holds."""
        self.breaker = Breaker(self._label)
        self._idle: list[tuple[Any, float]] = []
        self._turns = Turns(self._most)
        self._parked: list[float] = []
        self._opened = 0
        self._counting = threading.Lock()
        self._closed = threading.Event()  # for those who use or probe what was open until then

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together, and return their replies, errors among them. Raises StoreOutage if there are none."""
        if self.breaker.outage is not None:
            self.breaker.check()
        while True:
            self._take_turn()
            parked, began = False, time.monotonic()
            try:
                return self._exchange(self._connected(began), commands, began)
            except _NoneLeft:
                parked = True
                self._parked.append(time.monotonic() + _PARKED_SECONDS)
            finally:
                if not parked:
                    self._turns.give_back()

    def forget(self) -> None:
        """Close what nobody uses: the server is not the right one any more, and the next connection may find it."""
        while self._idle:
            self._drop(self._idle.pop()[0])

    def warm(self) -> None:
        """Open a connection in the background."""
        if not self._idle and not self._opened:
            threading.Thread(target=self.look, name="ratekit-warm", daemon=True).start()

    def close(self) -> None:
        """Close every connection, those in use when their calls have ended. A later call opens new ones."""
        self._closed.set()
        self._closed, self.breaker = threading.Event(), Breaker(self._label)
        self.forget()

    def _take_turn(self) -> None:
        if self._parked and time.monotonic() > self._parked[0]:
            self._parked.pop(0)
            self._turns.give_back()
        if not self._turns.take(_QUEUE_SECONDS):
            raise StoreOutage(Outage("queue", f"no connection was free for {_QUEUE_SECONDS} s"))

    def _exchange(self, connection: Any, commands: Sequence[Command], began: float) -> list[Any]:
        closed = self._closed
        try:
            connection.send_packed_command(packed(connection, commands), check_health=False)
            replies = [self._reply(connection) for _ in commands]
        except (self._errors.every, OSError) as error:
            self._drop(connection)
            outage = outage_of(error, self._errors) or Outage("error", str(error), is_fault=True)
            raise self._failure(outage, began) from error
        except BaseException:
            self._drop(connection)  # a reply may still come: nobody may take it for his own
            raise
        if closed.is_set():
            self._drop(connection)
        else:
            self._idle.append((connection, time.monotonic()))
        if self.breaker.failures:
            self.breaker.succeeded()
        return replies

    def _reply(self, connection: Any, turns: int = _MOST_TURNS) -> Any:
        """Return the next reply. A time-out that itself comes late, as processors are short, is no fault of the store."""
        started = time.monotonic()
        try:
            return connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except self._errors.response as error:
            return error
        except self._errors.timeout:
            late = time.monotonic() - started - connection.socket_timeout
            if late < _LATE * connection.socket_timeout or turns == 1:
                raise
        return self._reply(connection, turns - 1)

    def _connected(self, began: float) -> Any:
        """Return a connection that is open as far as can be told: what was closed while it was idle costs nobody a call."""
        self.breaker.check()
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
                raise _NoneLeft from None
            raise self._failure(error.outage, began) from error

    def _is_quiet(self, connection: Any) -> bool:
        try:
            return not connection.can_read(timeout=0)
        except (self._errors.every, OSError):
            return False

    def _open(self) -> Any:
        connection = self._make()
        try:
            connection.connect()
            connection.send_packed_command(packed(connection, [GREETING]), check_health=False)
            greeting = self._reply(connection)
            if isinstance(greeting, Exception):
                raise greeting
        except (self._errors.every, OSError) as error:
            outage = greeting_outage(error, self._errors)
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

    def look(self) -> None:
        """Open a connection, and take note whether that is possible."""
        try:
            connection = self._open()
        except StoreOutage as error:
            self.breaker.probed(error.outage)
            return
        self._idle.append((connection, time.monotonic()))
        if self.breaker.failures:
            self.breaker.succeeded()


def _probe(pool: weakref.ref[Pool], closed: threading.Event) -> None:
    """Look at a server until it answers, or until nobody uses the pool any more; in a thread of its own."""
    pauses = probe_pauses()
    while not closed.wait(pauses.pop(0) if len(pauses) > 1 else pauses[0]):
        current = pool()
        if current is None or current.breaker.outage is None:
            return
        current.breaker.probing()
        current.look()
        del current


class _NoneLeft(Exception):
    """The server gives out no more connections, but we have some."""


def greeting_outage(error: Exception, errors: ClientErrors) -> Outage | None:
    """Return why a server that was greeted cannot be used. One that forbids the greeting can."""
    outage = outage_of(error, errors) or classify_reply(str(error)) or Outage("error", str(error), is_fault=True)
    return None if outage.reason == "noperm" else outage


def packed(connection: Any, commands: Sequence[Command]) -> list[bytes]:
    """Return commands as a connection sends them. The connection packs as well, if more slowly, where hiredis is missing."""
    if _hiredis is not None:
        return [_hiredis.pack_command(command) for command in commands]
    return [part for command in commands for part in connection.pack_command(*command)]


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _begin_anew() -> None:
    """In a forked process: the connections are the parent's, and so are the locks and the threads."""
    for pool in list(_pools):
        pool.begin()


os.register_at_fork(after_in_child=_begin_anew)
