"""The limiters: two thin edges, waiting and awaiting, around encode and decode."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from ratekit import stores
from ratekit.core.errors import RateLimitExceeded, RateLimitUnavailable
from ratekit.core.events import decisions, notify_decision
from ratekit.core.lazy_log import Logger
from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import CHECK, Call, Operation, decode
from ratekit.core.results import RateLimitResult
from ratekit.limiter.operations import Operations, new_slot
from ratekit.limiter.refusal_cache import forget_given_back
from ratekit.limiter.renewal import LoopRenewal, Renewal, slots_held, still_held
from ratekit.limiter.renewal import thread as renewal_thread
from ratekit.stores.contract import Answer as StoreAnswer
from ratekit.stores.contract import AsyncStore, AsyncStoreGiven, Store, StoreGiven

_log = Logger("ratekit.limiter")
_tasks: set[Any] = set()  # keeps background tasks alive: an event loop itself does not


class RateLimiter(Operations[RateLimitResult, Store, StoreGiven]):
    """Decides requests, waiting for the store.

    store is a URL, a client of redis-py or valkey-py, or a store; RATE_LIMIT_STORE_URL by default, else memory://.
    on_outage says what happens when the store cannot tell: "open" lets pass, "closed" raises RateLimitUnavailable, and
    "local" counts in this process, a share of each limit: its maximum divided by instances (RATE_LIMIT_INSTANCES).
    deadline is how many seconds the store has for an answer. refusal_cache answers who is over the limit without the store,
    until the wait is over, for a second at most.
    """

    @contextmanager
    def slot(
        self, policy: Policy | Limit, subject: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> Iterator[RateLimitResult]:
        """Hold a slot for a block, however long it takes: the slot is renewed meanwhile.

        Raises RateLimitExceeded if there is none: a block cannot be skipped otherwise.
        """
        slot, refused, renewal = new_slot(), False, None
        try:
            result = self.acquire(policy, subject, slot, endpoint=endpoint, overrides=overrides)
            refused = result.is_over_limit
            renewal = self.hold(self._encode(Operation.ACQUIRE, policy, subject, 1, endpoint, overrides, slot), result)
            yield _admitted(result)
        finally:
            if renewal is not None:
                renewal.stop()
            if not refused:
                with _unreleased():
                    self.release(policy, subject, slot, endpoint=endpoint, overrides=overrides)

    def hold(self, call: Call, result: RateLimitResult) -> Renewal | None:
        """Renew the slots that a call has taken, until they are stopped; None if it has taken none."""
        slots = slots_held(call, result) if result.allowed else None
        return None if slots is None else renewal_thread.hold(slots, self._renew)

    def _renew(self, calls: Sequence[Call]) -> Sequence[Call]:
        try:
            return still_held(calls, self._store.run_many(calls))
        except StoreOutage:
            return calls

    def warm(self) -> None:
        """Open a connection in the background, so that the first check does not have to wait for it."""
        self._store.warm()

    def close(self) -> None:
        """Close the connections that this limiter has opened."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self, store: StoreGiven) -> Store:
        opened: Store = stores.open_store(store, self.deadline)
        return opened

    def decide(self, call: Call, mode: RateLimitMode = RateLimitMode.ON) -> RateLimitResult:
        """Let the store decide a call that core.protocol has made, and notify listeners."""
        started = perf_counter() if decisions.listeners else 0.0
        try:
            figures = self._refusals.find(call) if self._refusals is not None else None
            if figures is None:
                figures = self._store.run(call)
                if call.operation is not CHECK:
                    forget_given_back(call)
                if self._learns and self._learn(call, figures):
                    threading.Thread(target=self._settle, name="ratekit-settle", daemon=True).start()
            result = decode(call, figures)
        except StoreOutage as error:
            result = self.without_store(call, error.outage, mode, started)
        if started:
            notify_decision(call, result, mode, started, self.prefix)
        return result

    def decide_in(self, batch: Sequence[Call], at: int, mode: RateLimitMode = RateLimitMode.ON) -> RateLimitResult:
        """Let the store run several calls in one atomic go, and return the result of the one at a position."""
        if len(batch) == 1:
            return self.decide(batch[0], mode)
        started = perf_counter() if decisions.listeners else 0.0
        try:
            result = self._result_in(batch, at, self._store.run_many(batch))
        except StoreOutage as error:
            result = self._batch_without_store(batch, at, error.outage, mode, started)
        if started:
            notify_decision(batch[at], result, mode, started, self.prefix)
        return result

    def decide_many(
        self, calls: Sequence[Call], mode: RateLimitMode = RateLimitMode.ON
    ) -> list[RateLimitResult | RateLimitUnavailable]:
        """Let the store decide independent calls in order, in as few round trips as possible.

        Each has a result of its own, or the error if the store could not tell and on_outage is "closed".
        """
        started = perf_counter() if decisions.listeners else 0.0
        answers: Sequence[StoreAnswer | StoreOutage]
        try:
            answers = self._store.run_many(calls)
        except StoreOutage as error:
            answers = [error] * len(calls)
        if self._learns and self._learn_many(calls, answers):
            threading.Thread(target=self._settle, name="ratekit-settle", daemon=True).start()
        return [self._result_or_error(call, answer, mode, started) for call, answer in zip(calls, answers, strict=True)]

    def give_back(self, batch: Sequence[Call]) -> None:
        """Run refunds, releases or charges whose answers nobody needs. A failure is logged."""
        try:
            self._learn_batch(batch, self._store.run_many(batch))
        except StoreOutage as error:
            self._give_back_without_store(batch, error.outage)

    def _settle(self) -> None:
        try:
            for debts in self._fallback.debts():
                self._store.run_many(debts)
        except StoreOutage as error:
            self._fallback.lose(error.outage)


class AsyncRateLimiter(Operations[Coroutine[Any, Any, RateLimitResult], AsyncStore, AsyncStoreGiven]):
    """Decides requests, awaiting the store. Takes what RateLimiter takes; clients are those of redis.asyncio."""

    @asynccontextmanager
    async def slot(
        self, policy: Policy | Limit, subject: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> AsyncIterator[RateLimitResult]:
        """Hold a slot for a block, however long it takes: the slot is renewed meanwhile.

        Raises RateLimitExceeded if there is none: a block cannot be skipped otherwise.
        """
        slot, refused, renewal = new_slot(), False, None
        try:
            result = await self.acquire(policy, subject, slot, endpoint=endpoint, overrides=overrides)
            refused = result.is_over_limit
            renewal = self.hold(self._encode(Operation.ACQUIRE, policy, subject, 1, endpoint, overrides, slot), result)
            yield _admitted(result)
        finally:
            if renewal is not None:
                renewal.stop()
            if not refused:  # also if it was cancelled: the slot may have been taken
                with _unreleased():
                    await shielded(self.release(policy, subject, slot, endpoint=endpoint, overrides=overrides))

    def hold(self, call: Call, result: RateLimitResult) -> Renewal | None:
        """Renew the slots that a call has taken, until they are stopped; None if it has taken none."""
        slots = slots_held(call, result) if result.allowed else None
        return None if slots is None else LoopRenewal(slots, self._renew)

    async def _renew(self, calls: Sequence[Call]) -> Sequence[Call]:
        try:
            return still_held(calls, await self._store.run_many(calls))
        except StoreOutage:
            return calls

    async def warm(self) -> None:
        """Open a connection in the background, so that the first check does not have to wait for it."""
        await self._store.warm()

    async def aclose(self) -> None:
        """Close the connections that this limiter has opened on the running event loop."""
        await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _open(self, store: AsyncStoreGiven) -> AsyncStore:
        opened: AsyncStore = stores.open_async_store(store, self.deadline)
        return opened

    async def decide(self, call: Call, mode: RateLimitMode = RateLimitMode.ON) -> RateLimitResult:
        """Let the store decide a call that core.protocol has made, and notify listeners."""
        started = perf_counter() if decisions.listeners else 0.0
        try:
            figures = self._refusals.find(call) if self._refusals is not None else None
            if figures is None:
                figures = await self._store.run(call)
                if call.operation is not CHECK:
                    forget_given_back(call)
                if self._learns and self._learn(call, figures):
                    _in_background(self._settle())
            result = decode(call, figures)
        except StoreOutage as error:
            result = self.without_store(call, error.outage, mode, started)
        if started:
            notify_decision(call, result, mode, started, self.prefix)
        return result

    async def decide_in(self, batch: Sequence[Call], at: int, mode: RateLimitMode = RateLimitMode.ON) -> RateLimitResult:
        """Let the store run several calls in one atomic go, and return the result of the one at a position."""
        if len(batch) == 1:
            return await self.decide(batch[0], mode)
        started = perf_counter() if decisions.listeners else 0.0
        try:
            result = self._result_in(batch, at, await self._store.run_many(batch))
        except StoreOutage as error:
            result = self._batch_without_store(batch, at, error.outage, mode, started)
        if started:
            notify_decision(batch[at], result, mode, started, self.prefix)
        return result

    async def decide_many(
        self, calls: Sequence[Call], mode: RateLimitMode = RateLimitMode.ON
    ) -> list[RateLimitResult | RateLimitUnavailable]:
        """Let the store decide independent calls in order, in as few round trips as possible.

        Each has a result of its own, or the error if the store could not tell and on_outage is "closed".
        """
        started = perf_counter() if decisions.listeners else 0.0
        answers: Sequence[StoreAnswer | StoreOutage]
        try:
            answers = await self._store.run_many(calls)
        except StoreOutage as error:
            answers = [error] * len(calls)
        if self._learns and self._learn_many(calls, answers):
            _in_background(self._settle())
        return [self._result_or_error(call, answer, mode, started) for call, answer in zip(calls, answers, strict=True)]

    async def give_back(self, batch: Sequence[Call]) -> None:
        """Run refunds, releases or charges whose answers nobody needs. A failure is logged. A cancellation waits for it."""
        await shielded(self._give_back(batch))

    async def _give_back(self, batch: Sequence[Call]) -> None:
        try:
            self._learn_batch(batch, await self._store.run_many(batch))
        except StoreOutage as error:
            self._give_back_without_store(batch, error.outage)

    async def _settle(self) -> None:
        try:
            for debts in self._fallback.debts():
                await self._store.run_many(debts)
        except StoreOutage as error:
            self._fallback.lose(error.outage)


async def shielded(work: Coroutine[Any, Any, Any]) -> Any:
    """Await work that goes on even if the task that awaits it is cancelled."""
    import asyncio

    return await asyncio.shield(_in_background(work))


def _in_background(work: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # loaded by the application; without it, the import of ratekit is a third faster

    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


@contextmanager
def _unreleased() -> Iterator[None]:
    """Let a slot that cannot be released be freed by its window, and the block's own outcome stand."""
    try:
        yield
    except RateLimitUnavailable as error:
        _log.warning("a slot is not released, and is free again after its window: %s", error)


def _admitted(result: RateLimitResult) -> RateLimitResult:
    if result.is_over_limit:
        raise RateLimitExceeded(result)
    return result
