"""The limiters: two thin edges, waiting and awaiting, around encode and decode."""

from __future__ import annotations

import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from ratekit import stores
from ratekit.errors import ConfigurationError, RateLimitExceeded, RateLimitUnavailable
from ratekit.events import decisions, tell_decision
from ratekit.keys import DEFAULT_PREFIX, check_prefix
from ratekit.limits import Limit, Policy
from ratekit.local import LocalFallback
from ratekit.modes import RateLimitMode
from ratekit.outage import OnOutage, Outage, StoreOutage, as_on_outage
from ratekit.protocol import Call, Operation, decode, encode
from ratekit.results import RateLimitResult

INSTANCES_VARIABLE = "RATE_LIMIT_INSTANCES"

Answer = TypeVar("Answer")
_log = logging.getLogger("ratekit.limiter")
_under_way: set[Any] = set()  # an event loop itself does not keep its tasks alive


class _Limiter(ABC, Generic[Answer]):
    """All but the waiting: what a limiter takes, and what it can be asked. An answer is a result, or one to be awaited."""

    def __init__(
        self,
        store: Any = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        on_outage: str = OnOutage.OPEN,
        deadline: float = 0.05,
        instances: int | None = None,
    ) -> None:
        self.prefix = check_prefix(prefix)
        self.on_outage = as_on_outage(on_outage)
        self.deadline = _checked_deadline(deadline)
        self._local = LocalFallback(_checked_instances(instances)) if self.on_outage is OnOutage.LOCAL else None
        self._store: Any = self._open(stores.default_url() if store is None else store)

    @property
    def store(self) -> Any:
        """The store in use."""
        return self._store

    def check(
        self, policy: Policy | Limit, subject: str, *, cost: int = 1, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Decide a request and, if it is admitted, spend its cost from every limit of the policy. A cost of 0 looks."""
        call = encode(policy, subject, endpoint, self.prefix, Operation.CHECK, cost, overrides)
        if call.compiled.has_slots:
            raise _needs_slot(call)
        return self.decide(call)

    def peek(
        self, policy: Policy | Limit, subject: str, *, cost: int = 1, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Say what check would answer, and spend nothing."""
        return self.decide(self._encode(Operation.PEEK, policy, subject, cost, endpoint, overrides))

    def charge(
        self, policy: Policy | Limit, subject: str, *, cost: int = 1, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Spend a cost whatever the maximum: what a request turned out to cost. Slots are not touched."""
        return self.decide(self._encode(Operation.CHARGE, policy, subject, cost, endpoint, overrides))

    def refund(
        self, policy: Policy | Limit, subject: str, *, cost: int = 1, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Give back what was spent, never more than is used. Slots are not touched."""
        return self.decide(self._encode(Operation.REFUND, policy, subject, cost, endpoint, overrides))

    def reset(self, policy: Policy | Limit, subject: str, *, endpoint: str | None = None) -> Answer:
        """Forget what a subject has used; its override stays."""
        return self.decide(self._encode(Operation.RESET, policy, subject, 0, endpoint, overrides=True))

    def acquire(
        self, policy: Policy | Limit, subject: str, slot: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Take the slot of that id, and spend 1 from the policy's other limits. The same id again spends nothing more."""
        return self.decide(self._encode(Operation.ACQUIRE, policy, subject, 1, endpoint, overrides, slot))

    def renew(
        self, policy: Policy | Limit, subject: str, slot: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Keep a slot for another window. Refused if it is not held any more."""
        return self.decide(self._encode(Operation.RENEW, policy, subject, 1, endpoint, overrides, slot))

    def release(
        self, policy: Policy | Limit, subject: str, slot: str, *, endpoint: str | None = None, overrides: bool = True
    ) -> Answer:
        """Free a slot; no matter if it is not held."""
        return self.decide(self._encode(Operation.RELEASE, policy, subject, 1, endpoint, overrides, slot))

    @staticmethod
    def new_slot() -> str:
        """Make an id for a slot."""
        return os.urandom(16).hex()

    def _encode(
        self,
        operation: Operation,
        policy: Policy | Limit,
        subject: str,
        cost: int,
        endpoint: str | None,
        overrides: bool,
        slot: str | None = None,
    ) -> Call:
        if slot is not None and not (isinstance(slot, str) and slot.isprintable() and slot):
            raise ConfigurationError(f"slot {slot!r} is not a text that can be printed")
        call = encode(policy, subject, endpoint, self.prefix, operation, cost, overrides, slot)
        if slot is not None and not call.compiled.has_slots:
            names = ", ".join(limit.name for limit in call.compiled.limits)
            raise ConfigurationError(f"no limit of {names} is a concurrency limit: use check(), not {operation}()")
        return call

    @abstractmethod
    def _open(self, store: Any) -> Any:
        """Return the store that a URL, a client or a store stands for."""

    @abstractmethod
    def decide(self, call: Call, mode: RateLimitMode = RateLimitMode.ON) -> Answer:
        """Let the store decide a call that ratekit.protocol has made. Listeners are told the mode; it changes no answer."""

    def _without_store(self, call: Call, outage: Outage, mode: RateLimitMode, started: float) -> RateLimitResult:
        """Answer a call that the store could not decide."""
        log = _log.error if outage.is_fault else _log.warning
        log("the store cannot decide (%s); on_outage is %s", outage, self.on_outage)
        if self.on_outage is OnOutage.CLOSED:
            if started:
                tell_decision(call, None, mode, started, self.prefix, outage.reason)
            raise RateLimitUnavailable(str(outage))
        figures = self._local.run(call) if self._local is not None else ()
        return decode(call, figures, degraded=outage.reason)


class RateLimiter(_Limiter[RateLimitResult]):
    """Decides requests, waiting for the store.

    store is a URL, a client of redis-py or valkey-py, or a store; RATE_LIMIT_STORE_URL by default, else memory://.
    on_outage says what happens when the store cannot tell: "open" lets pass, "closed" raises RateLimitUnavailable, and
    "local" counts in this process, a share of each limit: its maximum divided by instances (RATE_LIMIT_INSTANCES).
    deadline is how many seconds the store has for an answer.
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

    def close(self) -> None:
        """Close the connections that this limiter has opened."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self, store: Any) -> Any:
        return stores.open_store(store, self.deadline)

    def decide(self, call: Call, mode: RateLimitMode = RateLimitMode.ON) -> RateLimitResult:
        """Let the store decide a call that ratekit.protocol has made, and tell who listens."""
        started = perf_counter() if decisions.listeners else 0.0
        try:
            result = decode(call, self._store.run(call))
        except StoreOutage as error:
            result = self._without_store(call, error.outage, mode, started)
        if started:
            tell_decision(call, result, mode, started, self.prefix)
        return result


class AsyncRateLimiter(_Limiter[Coroutine[Any, Any, RateLimitResult]]):
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

    async def aclose(self) -> None:
        """Close the connections that this limiter has opened on the running event loop."""
        await self._store.aclose()

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
        store = self._store
        started = perf_counter() if decisions.listeners else 0.0
        try:
            result = decode(call, store.run(call) if store.is_local else await store.run(call))
        except StoreOutage as error:
            result = self._without_store(call, error.outage, mode, started)
        if started:
            tell_decision(call, result, mode, started, self.prefix)
        return result


async def _to_its_end(work: Coroutine[Any, Any, RateLimitResult]) -> None:
    """Await something that goes on even if who awaits it is cancelled."""
    import asyncio  # loaded by who is here; without it, the import of ratekit is a third faster

    task = asyncio.ensure_future(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    await asyncio.shield(task)


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


def _needs_slot(call: Call) -> ConfigurationError:
    names = ", ".join(limit.name for limit in call.compiled.limits)
    return ConfigurationError(f"one limit of {names} is a concurrency limit: use slot(), not check()")


def _checked_deadline(deadline: float) -> float:
    if not isinstance(deadline, int | float) or not math.isfinite(deadline) or deadline <= 0:
        raise ConfigurationError(f"deadline {deadline!r} is not a number of seconds above 0")
    return float(deadline)


def _checked_instances(instances: int | None) -> int:
    value = os.environ.get(INSTANCES_VARIABLE, "1") if instances is None else str(instances)
    if not value.isdecimal() or int(value) < 1:
        raise ConfigurationError(f"instances {value!r} is not a whole number above 0")
    return int(value)
