"""Batches the calls of one event loop to one server.

A call that finds no request in flight is sent at once. Calls that come while a request is in flight are sent together in the
next one. A second and a third request follow before the first is answered only if they are full: so the server has work
while this process reads replies, and half-empty requests do not cost both sides time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NamedTuple

from ratekit.core.outages import Outage, StoreOutage
from ratekit.core.protocol import Call
from ratekit.stores.circuit_breaker import Breaker, probe_pauses
from ratekit.stores.contract import Figures, Finish
from ratekit.stores.redis.batch import Batch
from ratekit.stores.redis.client_errors import any_outage_of
from ratekit.stores.redis.cluster import SlotMap, by_slot
from ratekit.stores.redis.connection import Connection
from ratekit.stores.redis.deadline import Deadline, LoopDeadline
from ratekit.stores.redis.evalsha import MOST_KEYS, check_sendable
from ratekit.stores.redis.url import Address

_CLOSED = Outage("closed", "the limiter was closed")
_new = tuple.__new__  # makes a named tuple in half the time of its constructor


class PendingCall(NamedTuple):
    """A call that waits for its answer.

    `finish` runs where the answer arrives, for all calls of a batch in a row: that is faster than in each task later. The
    result of the future is what `finish` returns, or the figures where there is no `finish`.
    """

    call: Call
    future: asyncio.Future[Any]
    finish: Finish | None = None

    def resolve(self, answer: Figures | StoreOutage) -> None:
        """Resolve the future, unless the caller was cancelled."""
        _, future, finish = self
        if future.done():
            return
        try:
            if finish is not None:
                future.set_result(finish(answer))
            elif isinstance(answer, StoreOutage):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        except Exception as error:  # noqa: BLE001 - what `finish` raises is for its caller, and not for others of the batch
            future.set_exception(error)

    def crash(self, bug: Exception) -> None:
        """Let the caller raise an exception that is not an outage."""
        if not self.future.done():
            self.future.set_exception(bug)


class Batcher:
    """Decides the calls of one event loop by one connection to one server, in the order in which they were submitted.

    In a Cluster (`by_slot`), calls of one batch share a slot, and one request is in flight at a time, since a slot may move
    between two. `slots` is the map of a Cluster whose nodes ratekit connects to itself; `batcher_at` then finds the batcher
    of the node that a redirection names.
    """

    def __init__(
        self,
        connection: Connection,
        deadline: float,
        label: str,
        slots: SlotMap | None = None,
        batcher_at: Callable[[Address | None], Batcher] | None = None,
        *,
        by_slot: bool = False,
    ) -> None:
        self.breaker = Breaker(label)
        self._connection = connection
        self._seconds = deadline
        self._slots = slots
        self._batcher_at = batcher_at
        self._by_slot = by_slot
        self._most_in_flight = 1 if by_slot else connection.most_in_flight
        self._loop = asyncio.get_running_loop()
        self._deadline = LoopDeadline(deadline, self._expired)
        self._waiting: deque[PendingCall] = deque()
        self._keys = 0  # of all calls that wait
        self._redirected: list[Batch[PendingCall]] = []
        self._in_flight: deque[Sequence[Batch[PendingCall]]] = deque()  # the batches of each request
        self._is_opening = self._must_reconnect = False
        self._opening: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None  # for `aclose`, which waits for the requests in flight
        self._probe: asyncio.TimerHandle | None = None

    def submit(self, call: Call, finish: Finish | None = None) -> asyncio.Future[Any]:
        """Decide a call. The future has the figures, or raises StoreOutage; with `finish`, that gets them instead."""
        future = self.enqueue(call, finish)
        self.flush()
        return future

    def enqueue(self, call: Call, finish: Finish | None = None) -> asyncio.Future[Any]:
        """Let a call wait for `flush`, so that several go out in one request. The future is that of `submit`."""
        check_sendable(call)
        future: asyncio.Future[Any] = self._loop.create_future()
        pending = _new(PendingCall, (call, future, finish))
        if self.breaker.outage is not None:
            self._suspect(self.breaker.outage)
            pending.resolve(StoreOutage(self.breaker.outage))
            return future
        self._waiting.append(pending)
        self._keys += len(call.keys)
        return future

    def flush(self) -> None:
        """Send the calls that wait, unless they have to wait for the replies to others."""
        if not self._in_flight or self._keys >= MOST_KEYS:
            self._send()

    def resume(self, batch: Batch[PendingCall]) -> None:
        """Send the next request of a batch, before all calls that wait."""
        self._redirected.append(batch)
        self._send()

    def reconnect(self) -> None:
        """Connect anew once the requests in flight are answered: the server is not the right one any more."""
        self._must_reconnect = not self._is_opening

    def warm(self) -> None:
        """Connect, if there is nothing else to do."""
        if not self._is_busy and not self._connection.is_open:
            self._open()

    @property
    def _is_busy(self) -> bool:
        return self._is_opening or bool(self._in_flight)

    def _send(self) -> None:
        """Send what waits: one request, and others that are full."""
        while not self._is_opening and self._may_send():
            if self._must_reconnect or not self._connection.is_open:
                self._open()
            elif batches := self._next_batches():
                if not self._in_flight:
                    self._deadline.start()
                self._in_flight.append(batches)
                self._connection.send([command for batch in batches for command in batch.request.commands], self._received)

    def _may_send(self) -> bool:
        if not self._in_flight:
            return bool(self._waiting or self._redirected)
        if self._must_reconnect:
            return False
        # A batch that was redirected goes first, once all requests in flight are answered.
        return self._keys >= MOST_KEYS and len(self._in_flight) < self._most_in_flight and not self._redirected

    def _next_batches(self) -> list[Batch[PendingCall]]:
        if self._redirected:
            batches, self._redirected = self._redirected, []
            return batches
        pending = self._next_calls()
        groups = by_slot(pending) if self._by_slot else [pending] if pending else []
        return [Batch(group, self._connection.errors, self._slots) for group in groups]

    def _next_calls(self) -> list[PendingCall]:
        """Take the calls of the next request. One whose caller was cancelled is left out, and not charged."""
        pending: list[PendingCall] = []
        keys = 0
        while self._waiting and keys < MOST_KEYS:
            one = self._waiting.popleft()
            size = len(one[0].keys)
            self._keys -= size
            if not one[1].done():
                pending.append(one)
                keys += size
        return pending

    def _received(self, replies: Sequence[Any] | Exception) -> None:
        """Take the replies to the oldest request in flight; an error ends all requests in flight."""
        if isinstance(replies, Exception):
            self._failed(self._end_all(), self._outage(replies))
        else:
            if self.breaker.failures:
                self.breaker.succeeded()
            self._take(self._in_flight.popleft(), replies)
        self._send()
        self._set_idle()

    def _take(self, batches: Sequence[Batch[PendingCall]], replies: Sequence[Any]) -> None:
        self._deadline.stop()
        if self._in_flight:
            self._deadline.start()
        at = 0
        for batch in batches:
            end = at + len(batch.request.commands)
            if not batch.receive(replies[at:end]):
                self._batcher_of(batch).resume(batch)
            elif batch.outage is not None:
                self._suspect(batch.outage)
            at = end

    def _batcher_of(self, batch: Batch[PendingCall]) -> Batcher:
        return self if self._batcher_at is None else self._batcher_at(batch.request.address)

    def _suspect(self, outage: Outage) -> None:
        """Look for a successor of the server: it may be away, or not the primary any more."""
        if outage.reason == "readonly":
            self.reconnect()
        if self._slots is not None and not outage.is_fault:
            self._slots.is_stale = True

    def _set_idle(self) -> None:
        if self._idle is not None and not self._is_busy and not self._idle.done():
            self._idle.set_result(None)

    def _end_all(self) -> list[Batch[PendingCall]]:
        batches = [batch for request in self._in_flight for batch in request]
        self._in_flight.clear()
        self._deadline.stop()
        return batches

    def _expired(self) -> None:
        """Fail the calls that wait as well: the server is silent, and each of them would find out by itself."""
        outage = self._outage(TimeoutError())
        self._connection.close()
        self._failed(self._end_all(), outage)
        self._fail_waiting(outage)
        self._set_idle()

    def _failed(self, batches: Sequence[Batch[PendingCall]], outage: Outage) -> None:
        for batch in batches:
            batch.fail(outage)
        self._suspect(outage)
        if self.breaker.failed(outage, monotonic()):  # now: the requests of one connection fail one after the other
            self._probe_after(probe_pauses())

    def _fail_waiting(self, outage: Outage) -> None:
        outage = outage._replace(is_in_doubt=False)  # nothing of it was sent, or it was redirected
        for batch in self._redirected:
            batch.fail(outage)
        self._redirected, self._keys = [], 0
        while self._waiting:
            self._waiting.popleft().resolve(StoreOutage(outage))

    def _outage(self, error: Exception) -> Outage:
        if isinstance(error, StoreOutage):
            return error.outage
        if isinstance(error, TimeoutError):
            return Outage("timeout", f"no answer within {self._seconds} s", is_in_doubt=True)
        return any_outage_of(error, self._connection.errors)

    def _open(self) -> None:
        self._is_opening, self._must_reconnect = True, False
        self._opening = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Connect, and send what waits. If that fails, so do the calls that wait; none of them was sent."""
        outage = await self._try_to_open()
        self._is_opening = False
        if outage is not None:
            self._failed((), outage)
            self._fail_waiting(outage)
        self._send()

    async def _try_to_open(self) -> Outage | None:
        outage: Outage | None = _CLOSED
        try:
            async with Deadline(self._seconds):
                await self._connection.open()
            outage = None
        except StoreOutage as error:
            outage = error.outage
        except self._connection.errors.every as error:
            outage = self._outage(error)
        finally:
            if outage is not None:
                self._connection.close()
            if outage is _CLOSED:  # the event loop has cancelled its tasks
                self._fail_waiting(outage)
        return outage

    def _probe_after(self, pauses: list[float]) -> None:
        self._probe = self._loop.call_later(pauses[0], self._start_probe, pauses[1:] or pauses)

    def _start_probe(self, pauses: list[float]) -> None:
        self._opening = self._loop.create_task(self._run_probe(pauses))

    async def _run_probe(self, pauses: list[float]) -> None:
        """Find out whether the server answers again; if not, probe again later."""
        self.breaker.probing()
        outage = await self._try_to_open()
        if outage is None:
            self.breaker.succeeded()
        else:
            self.breaker.probed(outage)
            self._probe_after(pauses)

    async def aclose(self) -> None:
        """Wait for the requests in flight, then close the connection."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._is_busy:
            self._idle = self._loop.create_future()
            await self._idle
        if self._probe is not None:
            self._probe.cancel()
        self._deadline.close()
        self._connection.close()

    def abandon(self) -> None:
        """Close the socket, after the event loop was closed without `aclose`."""
        self._connection.abandon()
