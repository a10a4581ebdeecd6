"""Batching: the calls of an event loop to one server. Those that come while one flight is under way go out in the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ratekit.breaker import Breaker, probe_pauses
from ratekit.outage import Outage, StoreOutage
from ratekit.protocol import Call
from ratekit.stores.asking import Ask, ClientErrors, Conversation, figures_in, outage_of
from ratekit.stores.patience import Patience
from ratekit.stores.wires import Wire

MOST_KEYS = 128  # of one flight: Redis decides them in about a millisecond, and serves nobody else meanwhile
_ENDED = Outage("closed", "the event loop has ended")
Answer = asyncio.Future[Sequence[int]]
Waiting = tuple[Call, Answer]


class Batch:
    """Calls that are asked for together, and those who wait for them."""

    __slots__ = ("_answers", "_conversation", "_errors", "ask")

    def __init__(self, conversation: Conversation, answers: Sequence[Answer], errors: ClientErrors) -> None:
        self._conversation = conversation
        self._errors = errors
        self._answers = answers
        self.ask: Ask = next(conversation)

    def take(self, replies: Sequence[Any]) -> bool:
        """Go on with the replies to what was asked; whether that was the end. Who does not wait any more is left out."""
        try:
            self.ask = self._conversation.send(replies)
        except StopIteration as end:
            for answer, figures in zip(self._answers, end.value, strict=True):
                _resolve(answer, figures)
            return True
        except StoreOutage as error:
            self.fail(error.outage)
            return True
        except self._errors.every as bug:
            for answer in self._answers:
                if not answer.done():
                    answer.set_exception(bug)
            return True
        return False

    def fail(self, outage: Outage) -> None:
        """Tell all who wait that there will be no answer."""
        for answer in self._answers:
            _fail(answer, outage)


def _resolve(answer: Answer, figures: Sequence[int] | str) -> None:
    if answer.done():
        return
    try:
        answer.set_result(figures_in(figures))
    except StoreOutage as error:
        answer.set_exception(error)


def _fail(answer: Answer, outage: Outage) -> None:
    if not answer.done():
        answer.set_exception(StoreOutage(outage))


class Line:
    """One wire to one server, used by one event loop. Calls are decided in the order in which they came."""

    def __init__(
        self, wire: Wire, deadline: float, label: str, batches: Callable[[Sequence[Waiting]], Iterable[Batch]]
    ) -> None:
        self.breaker = Breaker(label)
        self.wire = wire
        self._deadline = deadline
        self._batches = batches
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Waiting] = deque()
        self._again: list[Batch] = []
        self._is_stale = False
        self._pump: asyncio.Task[None] | None = None
        self._probe: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self.redirect: Callable[[Batch], None] = self.resume

    def submit(self, call: Call) -> Answer:
        """Let the server decide a call. The answer may raise StoreOutage."""
        self.breaker.check()
        answer: Answer = self._loop.create_future()
        self._waiting.append((call, answer))
        self._start()
        return answer

    def resume(self, batch: Batch) -> None:
        """Go on with a batch that another server, or this one, has asked to be told otherwise; before all others."""
        self._again.append(batch)
        self._start()

    def _start(self) -> None:
        if self._pump is None:
            self._pump = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting or self._again:
                await self._fly(self._next())
        finally:
            self._pump = None
            self._fail_waiting(_ENDED)

    def _next(self) -> list[Batch]:
        if self._again:
            batches, self._again = self._again, []
            return batches
        flight: list[Waiting] = []
        keys = 0
        while self._waiting and keys < MOST_KEYS:
            call, answer = self._waiting.popleft()
            if not answer.done():  # who was cancelled before it was sent is not charged
                flight.append((call, answer))
                keys += len(call.keys)
        return list(self._batches(flight))

    async def _fly(self, batches: Sequence[Batch]) -> None:
        """Ask for some batches at once. None of them is left without an answer, whatever happens."""
        is_ready, outage = False, _ENDED
        try:
            async with Patience(self._deadline):
                await (self.wire.greet() if self._is_stale else self.wire.ready())
                is_ready, self._is_stale = True, False
                replies = await self.wire.exchange([command for batch in batches for command in batch.ask.commands])
        except (StoreOutage, TimeoutError, OSError, self.wire.errors.every) as error:
            outage = self._outage(error)
            await self.wire.close()
            self._failed(outage)
            if outage.reason == "timeout" or not is_ready:
                self._fail_waiting(outage)  # the server is silent, or away: nobody else needs to find out
        else:
            self._land(batches, replies)
            batches = ()
        finally:
            for batch in batches:
                batch.fail(outage)

    def _land(self, batches: Sequence[Batch], replies: Sequence[Any]) -> None:
        if self.breaker.failures:
            self.breaker.succeeded()
        at = 0
        for batch in batches:
            end = at + len(batch.ask.commands)
            if not batch.take(replies[at:end]):
                self.redirect(batch)
            at = end

    def _outage(self, error: Exception) -> Outage:
        if isinstance(error, StoreOutage):
            return error.outage
        if isinstance(error, TimeoutError):
            return Outage("timeout", f"no answer within {self._deadline} s")
        return outage_of(error, self.wire.errors) or Outage("error", str(error), is_fault=True)

    def _fail_waiting(self, outage: Outage) -> None:
        for batch in self._again:
            batch.fail(outage)
        self._again = []
        while self._waiting:
            _fail(self._waiting.popleft()[1], outage)

    def _failed(self, outage: Outage) -> None:
        if self.breaker.failed(outage):
            self._probe_after(probe_pauses())

    def _probe_after(self, pauses: list[float]) -> None:
        self._probe = self._loop.call_later(pauses[0], self._start_probe, pauses[1:] or pauses)

    def _start_probe(self, pauses: list[float]) -> None:
        self._probe = self._loop.create_task(self._look(pauses))

    async def _look(self, pauses: list[float]) -> None:
        """See whether the server answers; if not, look again later."""
        self.breaker.probing()
        try:
            async with Patience(self._deadline):
                await self.wire.greet()
        except (StoreOutage, TimeoutError, OSError, self.wire.errors.every) as error:
            await self.wire.close()
            self.breaker.probed(self._outage(error))
            self._probe_after(pauses)
        else:
            self.breaker.succeeded()

    def reconnect(self) -> None:
        """Connect anew before the next flight: the server is not the right one any more."""
        self._is_stale = True

    def warm(self) -> None:
        """Connect, if there is nothing else to do."""
        if self._pump is None and self.breaker.outage is None:
            self._pump = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._fly([])
        finally:
            self._pump = None
            if self._waiting or self._again:
                self._start()

    async def aclose(self) -> None:
        """Let what is under way end, then close the wire."""
        if self._pump is not None:
            await asyncio.wait([self._pump])
        if self._probe is not None:
            self._probe.cancel()
        await self.wire.close()
