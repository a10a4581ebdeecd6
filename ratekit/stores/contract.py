"""The contract between limiters and stores, as types: everything that limiters and administration ask of a store.

A store decides calls (`core.protocol.Call`) by running the script. It also runs commands past the script, for
`ratekit.admin`. A `Store` blocks until it has the answer; an `AsyncStore` is awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import Call

if TYPE_CHECKING:
    from ratekit.stores.circuit_breaker import Health

Figures = Sequence[int]  # what the script replies for each limit of a call: see core.results
Answer = Figures | str  # to one call of several: its figures, or the server's error message
Finish = Callable[[Figures | StoreOutage], None]
Command = tuple[Any, ...]
Reply = Any  # to a command; a StoreOutage if it failed


@runtime_checkable
class Store(Protocol):
    """Decides calls. Its methods block, and may be called from any thread."""

    @property
    def is_local(self) -> bool:
        """Whether the store decides in this process, without waiting for anything."""

    @property
    def place(self) -> Hashable:
        """Where the state is kept: equal for stores that share it."""

    @property
    def one_slot(self) -> bool:
        """Whether all keys of one call must be in one slot, as in a Redis Cluster."""

    def run(self, call: Call) -> Figures:
        """Decide one call. Raises StoreOutage if the store cannot."""

    def run_many(self, calls: Sequence[Call]) -> list[Answer]:
        """Decide calls in order, in as few round trips as possible. Raises StoreOutage if none could be decided."""

    def execute_many(self, commands: Sequence[Command], node: str = "") -> list[Reply]:
        """Run commands past the script. A command without a key needs the name of a Cluster's node.

        If a command fails, a StoreOutage takes the place of its reply. Raises StoreOutage if the store cannot be reached.
        """

    def nodes(self) -> list[str]:
        """Return the sorted names of a Cluster's primaries, or [""] for any other store. Raises StoreOutage."""

    def health(self) -> Health:
        """Return the state of the store, the reason if it is not up, and since when."""

    def warm(self) -> None:
        """Open a connection in the background."""

    def close(self) -> None:
        """Close the connections that the store has opened. A later call opens new ones."""


@runtime_checkable
class AsyncStore(Protocol):
    """Decides calls. Its methods are awaited, on any event loop."""

    @property
    def is_local(self) -> bool:
        """Whether the store decides in this process, without waiting for anything."""

    @property
    def place(self) -> Hashable:
        """Where the state is kept: equal for stores that share it."""

    @property
    def one_slot(self) -> bool:
        """Whether all keys of one call must be in one slot, as in a Redis Cluster."""

    async def run(self, call: Call) -> Figures:
        """Decide one call. Raises StoreOutage if the store cannot."""

    def submit(self, call: Call, finish: Finish) -> Awaitable[None] | None:
        """Decide one call, and pass its figures, or the outage, to `finish`. The call may be sent only when this is awaited.

        None: `finish` was called already, and there is nothing to await.

        Calls that are submitted in one turn of the event loop are decided together and finished in order, so `finish` may
        run in the context of another request. The awaitable raises what `finish` raises. If it is cancelled before the
        answer arrives, `finish` is not called.
        """

    async def run_many(self, calls: Sequence[Call]) -> list[Answer]:
        """Decide calls in order, in as few round trips as possible. Raises StoreOutage if none could be decided."""

    async def execute_many(self, commands: Sequence[Command], node: str = "") -> list[Reply]:
        """Run commands past the script. A command without a key needs the name of a Cluster's node.

        If a command fails, a StoreOutage takes the place of its reply. Raises StoreOutage if the store cannot be reached.
        """

    async def nodes(self) -> list[str]:
        """Return the sorted names of a Cluster's primaries, or [""] for any other store. Raises StoreOutage."""

    def blocking(self, deadline: float) -> Store:
        """Return a store on the same state for a thread that has no event loop.

        Raises ConfigurationError if there is none: a client that the application brings belongs to its event loop.
        """

    def health(self) -> Health:
        """Return the state of the store, the reason if it is not up, and since when."""

    async def warm(self) -> None:
        """Open a connection in the background."""

    async def aclose(self) -> None:
        """Close the connections that the store has opened on the running event loop. A later call opens new ones."""


class SyncClient(Protocol):
    """A client of redis-py or valkey-py that the application brings."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command."""

    def close(self) -> None:
        """Close the client."""


class AsyncClient(Protocol):
    """A client of redis.asyncio or valkey.asyncio that the application brings."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]:
        """Run one command."""

    def aclose(self) -> Awaitable[None]:
        """Close the client."""


StoreGiven = str | Store | SyncClient  # what a RateLimiter takes: a URL, a store, or a client
AsyncStoreGiven = str | AsyncStore | AsyncClient  # what an AsyncRateLimiter takes
