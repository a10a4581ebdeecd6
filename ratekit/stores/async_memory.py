"""`memory://` for code that awaits."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ratekit.core.outages import StoreOutage
from ratekit.core.protocol import Call
from ratekit.stores.circuit_breaker import Health
from ratekit.stores.contract import Answer, Command, Figures, Finish, Reply
from ratekit.stores.memory import MemoryStore


class AsyncMemoryStore:
    """Decides calls in this process, by a MemoryStore that others may use too."""

    is_local = True
    one_slot = False

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.place: Hashable = store.place

    @classmethod
    def of(cls, store: MemoryStore) -> AsyncMemoryStore:
        """Return the only one of a store."""
        if store.awaited is None:
            store.awaited = cls(store)
        return store.awaited

    async def run(self, call: Call) -> Figures:
        """Decide one call."""
        return self.store.run(call)

    def submit(self, call: Call, finish: Finish) -> None:
        """Decide one call at once, and pass its figures, or the outage, to `finish`: there is nothing to wait for."""
        try:
            answer: Figures | StoreOutage = self.store.run(call)
        except StoreOutage as outage:
            answer = outage
        finish(answer)

    async def run_many(self, calls: Sequence[Call]) -> list[Answer]:
        """Decide calls one after the other, in one go."""
        return self.store.run_many(calls)

    async def execute_many(self, commands: Sequence[Command], node: str = "") -> list[Reply]:
        """Run commands past the script."""
        return self.store.execute_many(commands, node)

    async def nodes(self) -> list[str]:
        """Return one node without a name."""
        return self.store.nodes()

    def health(self) -> Health:
        """Return that it is up: it is this process."""
        return self.store.health()

    async def warm(self) -> None:
        """Nothing has to be opened."""

    async def aclose(self) -> None:
        """Nothing is open; the state stays for other users of the store."""

    def blocking(self, deadline: float) -> MemoryStore:
        """Return the same store for a thread without an event loop."""
        return self.store
