"""Rules of a source that is awaited, such as pymongo's asynchronous client, followed by tasks of the event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from ratekit.core.errors import ConfigurationError, DocumentError, SourceUnavailable
from ratekit.rules.formats import Pace
from ratekit.rules.reload import Rules, RulesStatus, failure
from ratekit.rules.sources.contract import AsyncSource


class AsyncRules(Rules):
    """Rules that are loaded and followed on an event loop: `async with AsyncRules(source) as rules`.

    Until they are started, the default is in force; without one, nothing is limited.
    """

    _tasks: tuple[asyncio.Task[None], ...] = ()

    async def start(self) -> RulesStatus:
        """Load the rules, and follow the source in the background. Raises if it does not answer and there is no default."""
        source = self._awaited()
        self._wakes = asyncio.Event()
        has_default = bool(self._in_force.compiled.rules)
        try:
            self._accept(await source.aload(None, Pace()))
        except (SourceUnavailable, DocumentError) as error:
            if not has_default:
                await source.aclose()
                raise
            self._note_trouble(error)
        self._tasks = (asyncio.create_task(self._poll(source)), asyncio.create_task(source.awatch(self.changed)))
        return self.status

    async def arefresh(self) -> RulesStatus:
        """Look at the source now."""
        await self._alook(self._awaited())
        return self.status

    def changed(self) -> None:
        """Let the task look at the source now."""
        self._wakes.set()

    async def aclose(self) -> None:
        """Look no more. The rules stay in force."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = ()
        await self._awaited().aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _poll(self, source: AsyncSource) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakes.wait(), self._wait())
            self._wakes.clear()
            self._report_lookups()
            await self._alook(source)

    async def _alook(self, source: AsyncSource) -> None:
        """Look at the source. What takes long, the reading of a large document, is done in a thread."""
        try:
            loaded = await source.aload(self._seen, Pace())
            await asyncio.to_thread(self._accept, loaded)
        except (SourceUnavailable, DocumentError, ConfigurationError) as error:
            self._note_trouble(error)
        except Exception as error:  # noqa: BLE001 - a source of the application may raise anything; looks go on
            self._note_trouble(failure(self.origin, error))

    def _awaited(self) -> AsyncSource:
        if not isinstance(self._source, AsyncSource):
            raise ConfigurationError(f"rules from {self.origin} are not awaited: use Rules")
        return self._source
