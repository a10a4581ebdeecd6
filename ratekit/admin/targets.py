"""What functions of administration take first, and how one function serves both synchronous and asynchronous callers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from ratekit.admin.commands import Flow, drive
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.stores.contract import AsyncClient, AsyncStore, Store, SyncClient

SyncTarget = RateLimiter | Store | SyncClient
AsyncTarget = AsyncRateLimiter | AsyncStore | AsyncClient
Target = SyncTarget | AsyncTarget
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Covariant = TypeVar("Covariant", covariant=True)


class SyncOrAsync(Protocol[Arguments, Covariant]):
    """A function that returns its answer on a synchronous target, and a coroutine of it on an asynchronous one."""

    @overload
    def __call__(
        self, store: AsyncTarget, /, *args: Arguments.args, **options: Arguments.kwargs
    ) -> Coroutine[Any, Any, Covariant]: ...

    @overload
    def __call__(self, store: SyncTarget, /, *args: Arguments.args, **options: Arguments.kwargs) -> Covariant: ...


def sync_or_async(
    flow_of: Callable[Concatenate[Target, Arguments], Flow[Answer]],
) -> SyncOrAsync[Arguments, Answer]:
    """Make a public function of one that returns the flow of its commands.

    The arguments are checked when the function is called, also where its answer has to be awaited.
    """

    @functools.wraps(flow_of)
    def function(store: Any, /, *args: Any, **options: Any) -> Any:
        return drive(store, flow_of(store, *args, **options))

    return cast("SyncOrAsync[Arguments, Answer]", function)
