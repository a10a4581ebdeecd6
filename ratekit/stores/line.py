"""Batching: the calls of an event loop to one server. Those that come while one flight is under way go out in the next.

The next one does not wait for the first to land if it is full: so the server has work while this process takes in answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from ratekit.breaker import Breaker, probe_pauses
from ratekit.outage import Outage, StoreOutage
from ratekit.protocol import Call
from ratekit.stores.asking import outage_of
from ratekit.stores.batch import Answer, Batch, Finish, Waiting, fail
from ratekit.stores.patience import Patience, Watch
from ratekit.stores.wires import Wire

MOST_KEYS = 64  # of one flight: while Redis decides it, in a fraction of a millisecond, the next one fills up
_CLOSED = Outage("closed", "the limiter was closed")
_new = tuple.__new__  # what the constructor of a named tuple does, without its detour


class Line:
    """One wire to one server, used by one event loop. Calls are decided in the order in which they came."""

    def __init__(
        self,
        wire: Wire,
        deadline: float,
        label: str,
        batches: Callable[[Sequence[Waiting]], Iterable[Batch]],
        most_flights: int = 1,
    ) -> None:
        self.breaker = Breaker(label)
        self.wire = wire
        self.redirect: Callable[[Batch], None] = self.resume
        self._deadline = deadline
        self._batches = batches
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(deadline, self._expired)
        self._most_flights = most_flights
        self._waiting: deque[Waiting] = deque()
        self._keys = 0  # of all that wait
        self._again: list[Batch] = []
        self._flights: deque[Sequence[Batch]] = deque()
        self._is_opening = self._must_reconnect = False
        self._opening: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None  # for who waits for the end of what is under way
        self._probe: asyncio.TimerHandle | None = None

    def submit(self, call: Call, finish: Finish | None = None) -> Answer:
        """Let the server decide a call. The answer may raise StoreOutage."""
        if self.breaker.outage is not None:
            self.breaker.check()
        if call.slot is not None:
            call.slot.encode()  # the only free text in it: what cannot be sent fails here, and alone
        answer: Answer = self._loop.create_future()
        self._waiting.append(_new(Waiting, (call, answer, finish)))
        self._keys += len(call.keys)
        if not self._flights or self._keys >= MOST_KEYS:
            self._depart()
        return answer

    def resume(self, batch: Batch) -> None:
        """Go on with a batch that a server has asked to be told otherwise, before all that wait."""
        self._again.append(batch)
        self._depart()

    def reconnect(self) -> None:
        """Connect anew when the flights under way have landed: the server is not the right one any more."""
        self._must_reconnect = not self._is_opening

    def warm(self) -> None:
        """Connect, if there is nothing else to do."""
        if not self._is_busy and not self.wire.is_open:
            self._open()

    @property
    def _is_busy(self) -> bool:
        return self._is_opening or bool(self._flights)

    def _depart(self) -> None:
        """Ask for all that waits, as far as it goes: in one flight, and in others that are full."""
        while not self._is_opening and self._may_depart():
            if self._must_reconnect or not self.wire.is_open:
                self._open()
            elif batches := self._next():
                if not self._flights:
                    self._watch.start()
                self._flights.append(batches)
                self.wire.send([command for batch in batches for command in batch.ask.commands], self._landed)

    def _may_depart(self) -> bool:
        if not self._flights:
            return bool(self._waiting or self._again)
        if self._must_reconnect:
            return False
        # What a server wants to be told otherwise goes first, and when the rest has landed.
        return self._keys >= MOST_KEYS and len(self._flights) < self._most_flights and not self._again

    def _next(self) -> list[Batch]:
        if self._again:
            batches, self._again = self._again, []
            return batches
        flight: list[Waiting] = []
        keys = 0
        while self._waiting and keys < MOST_KEYS:
            waiting = self._waiting.popleft()
            size = len(waiting[0].keys)
            self._keys -= size
            if not waiting[1].done():  # who was cancelled before it was sent is not charged
                flight.append(waiting)
                keys += size
        return list(self._batches(flight)) if flight else []

    def _landed(self, replies: Sequence[Any] | Exception) -> None:
        """Give out the replies to the first flight; an error is the end of them all."""
        if isinstance(replies, Exception):
            self._failed(self._end_flights(), self._outage(replies))
        else:
            if self.breaker.failures:
                self.breaker.succeeded()
            self._take(self._flights.popleft(), replies)
        self._depart()
        self._tell_idle()

    def _take(self, batches: Sequence[Batch], replies: Sequence[Any]) -> None:
        self._watch.stop()
        if self._flights:
            self._watch.start()
        at = 0
        for batch in batches:
            end = at + len(batch.ask.commands)
            if not batch.take(replies[at:end]):
                self.redirect(batch)
            at = end

    def _tell_idle(self) -> None:
        if self._idle is not None and not self._is_busy and not self._idle.done():
            self._idle.set_result(None)

    def _end_flights(self) -> list[Batch]:
        batches = [batch for flight in self._flights for batch in flight]
        self._flights.clear()
        self._watch.stop()
        return batches

    def _expired(self) -> None:
        """The server is silent: nobody else needs to find out."""
        outage = self._outage(TimeoutError())
        self.wire.close()
        self._failed(self._end_flights(), outage)
        self._fail_waiting(outage)
        self._tell_idle()

    def _failed(self, batches: Sequence[Batch], outage: Outage) -> None:
        for batch in batches:
            batch.fail(outage)
        if self.breaker.failed(outage, monotonic()):  # flights follow one another
            self._probe_after(probe_pauses())

    def _fail_waiting(self, outage: Outage) -> None:
        for batch in self._again:
            batch.fail(outage)
        self._again, self._keys = [], 0
        while self._waiting:
            fail(self._waiting.popleft(), outage)

    def _outage(self, error: Exception) -> Outage:
        if isinstance(error, StoreOutage):
            return error.outage
        if isinstance(error, TimeoutError):
            return Outage("timeout", f"no answer within {self._deadline} s")
        return outage_of(error, self.wire.errors) or Outage("error", str(error), is_fault=True)

    def _open(self) -> None:
        self._is_opening, self._must_reconnect = True, False
        self._opening = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Connect, and go on. What waits is told if that fails; none of it has been asked for."""
        outage = await self._try_to_open()
        self._is_opening = False
        if outage is not None:
            self._failed((), outage)
            self._fail_waiting(outage)
        self._depart()

    async def _try_to_open(self) -> Outage | None:
        outage: Outage | None = _CLOSED
        try:
            async with Patience(self._deadline):
                await self.wire.open()
            outage = None
        except (StoreOutage, TimeoutError, OSError, self.wire.errors.every) as error:
            outage = self._outage(error)
        finally:
            if outage is not None:
                self.wire.close()
            if outage is _CLOSED:  # the event loop has ended
                self._fail_waiting(outage)
        return outage

    def _probe_after(self, pauses: list[float]) -> None:
        self._probe = self._loop.call_later(pauses[0], self._start_probe, pauses[1:] or pauses)

    def _start_probe(self, pauses: list[float]) -> None:
        self._opening = self._loop.create_task(self._look(pauses))

    async def _look(self, pauses: list[float]) -> None:
        """See whether the server answers; if not, look again later."""
        self.breaker.probing()
        outage = await self._try_to_open()
        if outage is None:
            self.breaker.succeeded()
        else:
            self.breaker.probed(outage)
            self._probe_after(pauses)

    async def aclose(self) -> None:
        """Let what is under way end, then close the wire."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._is_busy:
            self._idle = self._loop.create_future()
            await self._idle
        if self._probe is not None:
            self._probe.cancel()
        self._watch.end()
        self.wire.close()
