"""Messages over Redis that tell other instances of a write at once, where the database itself cannot.

A message is sent after the commit, and is lost if the sender dies in between or a receiver's connection is lost. So
messages only accelerate the poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ratekit.core.outages import StoreOutage
from ratekit.database.notifications import CHANNEL
from ratekit.stores.contract import Store

_SECONDS = 0.5  # that a write waits for its message to be sent: by then, the others have polled


class Announcements:
    """Messages over the server of a store; nothing on a store that is in this process, on a Cluster and on Sentinels."""

    def __init__(self, url: str, store: Store) -> None:
        self._url = url
        self._store = store
        self._stop: Callable[[], None] | None = None

    def listen(self, changed: Callable[[], None]) -> None:
        """Call a function on the running event loop with each message, and when it begins to listen."""
        if self._store.is_local:
            return
        from ratekit.stores.redis.subscription import subscribe

        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the event loop has ended before the thread
                loop.call_soon_threadsafe(changed)

        self._stop = subscribe(self._url, CHANNEL, tell)

    async def send(self) -> None:
        """Tell the other instances of a write, if this one listens to them."""
        if self._stop is not None:
            with suppress(StoreOutage, TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    await asyncio.to_thread(self._store.execute_many, [("PUBLISH", CHANNEL, "")])

    def stop(self) -> None:
        """End."""
        if self._stop is not None:
            self._stop()
