"""The limiters: two thin edges, waiting and awaiting, around encode and decode."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TypeVar

from ratekit import stores
from ratekit.core.errors import RatekitError, RateLimitExceeded, RateLimitUnavailable
from ratekit.core.events import decisions, notify_decision, notify_settlement
from ratekit.core.lazy_log import Logger
from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import CHECK, Call, CostGiven, Operation, decode
from ratekit.core.results import RateLimitResult
from ratekit.limiter.identities import decide_all, reserve_all
from ratekit.limiter.operations import Anchor, Checks, Operations, new_slot, reserved
from ratekit.limiter.refusal_cache import forget_given_back
from ratekit.limiter.renewal import LoopRenewal, Renewal, slots_held, still_held
from ratekit.limiter.renewal import thread as renewal_thread
from ratekit.limiter.reservations import HOLD, SETTLED_BY_LIMITER, Reservation, abandoned
from ratekit.stores.contract import Answer as StoreAnswer
from ratekit.stores.contract import AsyncStore, AsyncStoreGiven, Figures, Store, StoreGiven

_log = Logger("ratekit.limiter")
_SETTLE = Operation.SETTLE
Value = TypeVar("Value")
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

    @contextmanager
    def reserve(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        estimate: CostGiven = 1,
        endpoint: str | None = None,
        overrides: bool = True,
        share: float | None = None,
        clamp: bool = False,
        hold: float = HOLD,
        anchor: Anchor = None,
    ) -> Iterator[Reservation]:
        """Reserve an estimate for a block, and settle it when the block ends. Raises RateLimitExceeded if it does not fit.

        - clamp: reserve as much as fits, at least 1; `estimate` of the reservation says how much
        - hold: seconds for which it can be settled
        """
        call = self._reserve_call(
            policy, subject, estimate,
            reservation=None, endpoint=endpoint, overrides=overrides, share=share, clamp=clamp, hold=hold, anchor=anchor,
        )  # fmt: skip
        with self._held(reserved(call, self.decide(call))) as reservation:
            yield reservation

    @contextmanager
    def reserve_all(self, checks: Checks, *, share: float | None = None) -> Iterator[Reservation]:
        """Reserve for several identities in one decision, for a block, as `reserve` does: (policy, subject, estimate)."""
        calls = self._all(Operation.RESERVE, checks, share)
        reservation = self._driven(reserve_all(calls, self.prefix, one_slot=self._store.one_slot))
        with self._held(reservation):
            yield reservation

    @contextmanager
    def _held(self, reservation: Reservation) -> Iterator[Reservation]:
        _admitted(reservation.result)
        renewals = [self.hold(booking.call, booking.result) for booking in reservation.bookings]
        try:
            yield reservation
        except Exception:
            reservation.fail()
            raise
        finally:
            _stop(renewals)
            for settlement in reservation.settlements():
                with _unsettled():
                    self.decide(settlement)

    def reserve_now(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        estimate: CostGiven = 1,
        reservation: str | None = None,
        endpoint: str | None = None,
        overrides: bool = True,
        share: float | None = None,
        clamp: bool = False,
        hold: float = HOLD,
        anchor: Anchor = None,
    ) -> Reservation:
        """Reserve an estimate that `settle` settles later, perhaps in another process: its `id` can travel.

        reservation is an id of your own: the same id again spends nothing more.
        """
        call = self._reserve_call(
            policy, subject, estimate,
            reservation=reservation, endpoint=endpoint, overrides=overrides, share=share, clamp=clamp, hold=hold,
            anchor=anchor,
        )  # fmt: skip
        return reserved(call, self.decide(call), SETTLED_BY_LIMITER)

    def check_all(self, checks: Checks, *, share: float | None = None) -> RateLimitResult:
        """Decide several checks of one request together, all or nothing: (policy, subject) or (policy, subject, cost).

        One atomic call, whatever the subjects; in a Redis Cluster one for each slot, and what was spent in others returns
        if one refuses. Each tier of the result names its policy and its subject.
        """
        return self._together(Operation.CHECK, checks, share)

    def peek_all(self, checks: Checks, *, share: float | None = None) -> RateLimitResult:
        """Return what `check_all` would answer, and spend nothing."""
        return self._together(Operation.PEEK, checks, share)

    def charge_all(self, checks: Checks) -> RateLimitResult:
        """Spend several costs whatever the maximum."""
        return self._together(Operation.CHARGE, checks, None)

    def _together(self, operation: Operation, checks: Checks, share: float | None) -> RateLimitResult:
        calls = self._all(operation, checks, share)
        return self._driven(decide_all(calls, self.prefix, one_slot=self._store.one_slot))

    def _driven(self, flow: Generator[Call, RateLimitResult, Value]) -> Value:
        """Drive a flow of calls."""
        try:
            call = next(flow)
            while True:
                try:
                    result = self.decide(call)
                except BaseException as error:  # noqa: BLE001 - the flow gives back what was spent, and raises it
                    call = flow.throw(error)
                else:
                    call = flow.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

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
            if call.operation is _SETTLE:
                notify_settlement(call, result, self.prefix)
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

    @asynccontextmanager
    async def reserve(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        estimate: CostGiven = 1,
        endpoint: str | None = None,
        overrides: bool = True,
        share: float | None = None,
        clamp: bool = False,
        hold: float = HOLD,
        anchor: Anchor = None,
    ) -> AsyncIterator[Reservation]:
        """Reserve an estimate for a block, and settle it when the block ends. Raises RateLimitExceeded if it does not fit.

        - clamp: reserve as much as fits, at least 1; `estimate` of the reservation says how much
        - hold: seconds for which it can be settled
        """
        call = self._reserve_call(
            policy, subject, estimate,
            reservation=None, endpoint=endpoint, overrides=overrides, share=share, clamp=clamp, hold=hold, anchor=anchor,
        )  # fmt: skip
        async with self._held(await self._reserved(call)) as reservation:
            yield reservation

    @asynccontextmanager
    async def reserve_all(self, checks: Checks, *, share: float | None = None) -> AsyncIterator[Reservation]:
        """Reserve for several identities in one decision, for a block, as `reserve` does: (policy, subject, estimate)."""
        calls = self._all(Operation.RESERVE, checks, share)
        reservation = await self._driven(reserve_all(calls, self.prefix, one_slot=self._store.one_slot))
        async with self._held(reservation):
            yield reservation

    @asynccontextmanager
    async def _held(self, reservation: Reservation) -> AsyncIterator[Reservation]:
        _admitted(reservation.result)
        renewals = [self.hold(booking.call, booking.result) for booking in reservation.bookings]
        try:
            yield reservation
        except Exception:
            reservation.fail()
            raise
        finally:
            _stop(renewals)
            await shielded(self._settle_all(reservation.settlements()))

    async def _settle_all(self, settlements: Sequence[Call]) -> None:
        for settlement in settlements:
            with _unsettled():
                await self.decide(settlement)

    async def reserve_now(
        self,
        policy: Policy | Limit,
        subject: str,
        *,
        estimate: CostGiven = 1,
        reservation: str | None = None,
        endpoint: str | None = None,
        overrides: bool = True,
        share: float | None = None,
        clamp: bool = False,
        hold: float = HOLD,
        anchor: Anchor = None,
    ) -> Reservation:
        """Reserve an estimate that `settle` settles later, perhaps in another process: its `id` can travel.

        reservation is an id of your own: the same id again spends nothing more.
        """
        call = self._reserve_call(
            policy, subject, estimate,
            reservation=reservation, endpoint=endpoint, overrides=overrides, share=share, clamp=clamp, hold=hold,
            anchor=anchor,
        )  # fmt: skip
        return await self._reserved(call, SETTLED_BY_LIMITER)

    async def _reserved(self, call: Call, settled_by: str = "") -> Reservation:
        """Reserve; if that is cancelled, nobody will use what was reserved, and it returns."""
        try:
            return reserved(call, await self.decide(call), settled_by)
        except BaseException as error:
            if not isinstance(error, Exception):
                await shielded(self._settle_all([abandoned(call)]))
            raise

    async def check_all(self, checks: Checks, *, share: float | None = None) -> RateLimitResult:
        """Decide several checks of one request together, all or nothing: (policy, subject) or (policy, subject, cost).

        One atomic call, whatever the subjects; in a Redis Cluster one for each slot, and what was spent in others returns
        if one refuses. Each tier of the result names its policy and its subject.
        """
        return await self._together(Operation.CHECK, checks, share)

    async def peek_all(self, checks: Checks, *, share: float | None = None) -> RateLimitResult:
        """Return what `check_all` would answer, and spend nothing."""
        return await self._together(Operation.PEEK, checks, share)

    async def charge_all(self, checks: Checks) -> RateLimitResult:
        """Spend several costs whatever the maximum."""
        return await self._together(Operation.CHARGE, checks, None)

    async def _together(self, operation: Operation, checks: Checks, share: float | None) -> RateLimitResult:
        calls = self._all(operation, checks, share)
        return await self._driven(decide_all(calls, self.prefix, one_slot=self._store.one_slot))

    async def _driven(self, flow: Generator[Call, RateLimitResult, Value]) -> Value:
        """Drive a flow of calls. What it does when it is cancelled is done all the same."""
        try:
            call = next(flow)
            while True:
                try:
                    result = await self.decide(call)
                except RatekitError as error:
                    call = flow.throw(error)
                except BaseException as error:
                    await shielded(self._cancel(flow, error))
                    raise
                else:
                    call = flow.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _cancel(self, flow: Generator[Call, RateLimitResult, Any], error: BaseException) -> None:
        try:
            call = flow.throw(error)
            while True:
                try:
                    result = await self.decide(call)
                except RatekitError as another:
                    call = flow.throw(another)
                else:
                    call = flow.send(result)
        except BaseException as last:
            if last is not error:
                raise

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
            if call.operation is _SETTLE:
                notify_settlement(call, result, self.prefix)
        except StoreOutage as error:
            result = self.without_store(call, error.outage, mode, started)
        if started:
            notify_decision(call, result, mode, started, self.prefix)
        return result

    async def decide_then(self, call: Call, mode: RateLimitMode, finish: Callable[[RateLimitResult], Value]) -> Value:
        """Decide a call as `decide` does, and return what `finish` makes of the result.

        `finish` runs where the store's answers arrive, for many requests in a row, which takes less time than in the task
        of each. What it raises is raised here.
        """
        if self._learns or decisions.listeners or call.operation is not CHECK:
            return finish(await self.decide(call, mode))
        taken: list[Any] = []

        def take(answer: Figures | StoreOutage) -> None:
            taken.append(answer if isinstance(answer, StoreOutage) else finish(decode(call, answer)))

        waiting = self._store.submit(call, take)
        if waiting is not None:
            await waiting
        value = taken[0]
        return finish(self.without_store(call, value.outage, mode, 0.0)) if isinstance(value, StoreOutage) else value

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


def _stop(renewals: Sequence[Renewal | None]) -> None:
    for renewal in renewals:
        if renewal is not None:
            renewal.stop()


@contextmanager
def _unsettled() -> Iterator[None]:
    """Let the block's own outcome stand if its reservation cannot be settled: the estimate stays until its window ends."""
    try:
        yield
    except RateLimitUnavailable:
        return  # it is logged, and counted as unsettled


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
