"""The limiters: two thin edges, waiting and awaiting, around encode and decode."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from ratekit import stores
from ratekit.errors import RateLimitExceeded, RateLimitUnavailable
from ratekit.events import decisions, tell_decision
from ratekit.limits import Limit, Policy
from ratekit.loggers import Logger
from ratekit.modes import RateLimitMode
from ratekit.operations import Operations
from ratekit.outage import StoreOutage, or_outage
from ratekit.protocol import Call, decode
from ratekit.results import RateLimitResult

_log = Logger("ratekit.limiter")
_under_way: set[Any] = set()  # an event loop itself does not keep its tasks alive


class RateLimiter(Operations[RateLimitResult]):
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
        """Hold a slot for a block. Raises RateLimitExceeded if there is none: a block cannot be skipped otherwise."""
        slot, refused = self.new_slot(), False
        try:
            result = self.acquire(policy, subject, slot, endpoint=endpoint, overrides=overrides)
            refused = result.is_over_limit
            yield _admitted(result)
        finally:
            if not refused:
                self.release_quietly(policy, subject, slot, endpoint=endpoint, overrides=overrides)

    def release_quietly(self, policy: Policy | Limit, subject: str, slot: str, **options: Any) -> None:
        """Free a slot; one that cannot be freed now is free after its window."""
        with _unminded():
            self.release(policy, subject, slot, **options)

    def warm(self) -> None:
        """Open a connection in the background, so that the first check does not have to wait for it."""
        self._store.warm()

    def close(self) -> None:
        """Close the connections that this limiter has opened."""
        self._store.close()

    def _settle(self) -> None:
        try:
            for debts in self._absence.debts():
                self._store.run_many(debts)
        except StoreOutage as error:
            self._absence.lose(error.outage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self, store: Any) -> Any:
        return stores.open_store(store, self.deadline)

    def decide(self, call: Call, mode: RateLimitMode = RateLimitMode.ON) -> RateLimitResult:
        """Let the store decide a call that ratekit.protocol has made, and tell who listens."""
        refusals = self._refusals
        started = perf_counter() if decisions.listeners else 0.0
        try:
            figures = refusals.find(call) if refusals is not None else None
            if figures is None:
                figures = self._store.run(call)
                if self._learns and self._learn(call, figures):
                    threading.Thread(target=self._settle, name="ratekit-settle", daemon=True).start()
            result = decode(call, figures)
        except StoreOutage as error:
            result = self._without_store(call, error.outage, mode, started)
        if started:
            tell_decision(call, result, mode, started, self.prefix)
        return result


class AsyncRateLimiter(Operations[Coroutine[Any, Any, RateLimitResult]]):
    """Decides requests, awaiting the store. Takes what RateLimiter takes; clients are those of redis.asyncio."""

    @asynccontextmanager
    async def slot(
        self, policy: Policy | Limit, subject: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> AsyncIterator[RateLimitResult]:
        """Hold a slot for a block. Raises RateLimitExceeded if there is none: a block cannot be skipped otherwise."""
        slot, refused = self.new_slot(), False
        try:
            result = await self.acquire(policy, subject, slot, endpoint=endpoint, overrides=overrides)
            refused = result.is_over_limit
            yield _admitted(result)
        finally:
            if not refused:  # also if it was cancelled: the slot may have been taken
                await self.release_quietly(policy, subject, slot, endpoint=endpoint, overrides=overrides)

    async def release_quietly(self, policy: Policy | Limit, subject: str, slot: str, **options: Any) -> None:
        """Free a slot, even if who waits for it is cancelled; one that cannot be freed now is free after its window."""
        with _unminded():
            await _to_its_end(self.release(policy, subject, slot, **options))

    async def warm(self) -> None:
        """Open a connection in the background, so that the first check does not have to wait for it."""
        if not self._store.is_local:
            await self._store.warm()

    async def aclose(self) -> None:
        """Close the connections that this limiter has opened on the running event loop."""
        await self._store.aclose()

    async def _settle(self) -> None:
        try:
            for debts in self._absence.debts():
                await self._store.run_many(debts)
        except StoreOutage as error:
            self._absence.lose(error.outage)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _open(self, store: Any) -> Any:
        return stores.open_async_store(store, self.deadline)

    async def decide(self, call: Call, mode: RateLimitMode = RateLimitMode.ON) -> RateLimitResult:
        """Let the store decide a call that ratekit.protocol has made, and tell who listens."""
        store, refusals = self._store, self._refusals
        started = perf_counter() if decisions.listeners else 0.0
        try:
            figures = refusals.find(call) if refusals is not None else None
            if figures is None:
                figures = store.run(call) if store.is_local else await store.run(call)
                if self._learns and self._learn(call, figures):
                    _keep(self._settle())
            result = decode(call, figures)
        except StoreOutage as error:
            result = self._without_store(call, error.outage, mode, started)
        if started:
            tell_decision(call, result, mode, started, self.prefix)
        return result

    @cached_property
    def is_plain(self) -> bool:
        """Whether there is nothing to a decision but the store's word, and who listens."""
        return not self._learns and type(self).decide is AsyncRateLimiter.decide

    @cached_property
    def decides_at_once(self) -> bool:
        """Whether decide_now may stand for decide: the store is in this process, and there is nothing else to it."""
        return self._store.is_local is True and self.is_plain

    def decide_now(self, call: Call) -> RateLimitResult:
        """Do what decide does, with nothing to await and nobody told, where the limiter decides_at_once."""
        try:
            return decode(call, self._store.run(call))
        except StoreOutage as error:
            return self.missed(call, error)

    def ask_each(self, calls: Sequence[Call]) -> list[Sequence[int] | StoreOutage]:
        """Begin the same for each of several calls, which come again, the same objects: figures or outages, as of submit."""
        run_each = getattr(type(self._store), "run_each", None)
        if run_each is None:
            return [or_outage(self._store.run, call) for call in calls]
        return run_each(self._store, calls)  # type: ignore[no-any-return]

    def submit(self, call: Call, finish: Callable[[Sequence[int] | StoreOutage], None]) -> Awaitable[None] | None:
        """Begin what decide does, with no coroutine of its own and nobody told, where the limiter is_plain.

        finish gets the figures, or the outage, for which missed has a result. Raises StoreOutage if there is one already.
        None: that is not all there is to it, and decide has to.
        """
        submit = getattr(type(self._store), "submit", None)  # what only hands things on to a store wants to be asked itself
        return None if submit is None else submit(self._store, call, finish)

    def missed(self, call: Call, error: StoreOutage) -> RateLimitResult:
        """Answer a call that the store could not decide."""
        if not self._store.is_local:
            self._store.doubt(error.outage)
        return self._without_store(call, error.outage, RateLimitMode.ON, 0.0)


async def _to_its_end(work: Coroutine[Any, Any, RateLimitResult]) -> None:
    """Await something that goes on even if who awaits it is cancelled."""
    import asyncio

    await asyncio.shield(_keep(work))


def _keep(work: Coroutine[Any, Any, Any]) -> Any:
    """Start something that goes on by itself."""
    import asyncio  # loaded by who is here; without it, the import of ratekit is a third faster

    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    return task


@contextmanager
def _unminded() -> Iterator[None]:
    """Let a slot that cannot be released be freed by its window, and the block's own outcome stand."""
    try:
        yield
    except RateLimitUnavailable as error:
        _log.warning("a slot is not released, and is free again after its window: %s", error)


def _admitted(result: RateLimitResult) -> RateLimitResult:
    if result.is_over_limit:
        raise RateLimitExceeded(result)
    return result
