"""Keeping the configuration fresh: a polled version is the guarantee, notifications make it faster."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic

from ratekit.core.errors import ConfigurationError, DatabaseUnavailable
from ratekit.core.limits import Policy
from ratekit.database.notifications import can_listen, listen
from ratekit.database.versions import current_version
from ratekit_service.configuration.announcements import Announcements
from ratekit_service.configuration.loading import load
from ratekit_service.configuration.snapshot import Changes, Configuration
from ratekit_service.database import Database

RULES_SECONDS = 30.0  # between two loads of all rules: others may write them without raising the version
_RETRY_SECONDS = 1.0
_log = logging.getLogger("ratekit.service")


class Refresher:
    """Holds the configuration in force, and replaces it when the database has another version."""

    def __init__(
        self, database: Database, poll_seconds: float, default_limit: Policy | None, announcements: Announcements
    ) -> None:
        self.configuration = Configuration()
        self.refused: list[str] = []  # rows that make no sense
        self._database = database
        self._poll_seconds = poll_seconds
        self._default_limit = default_limit
        self._announcements = announcements
        self._refreshing = asyncio.Lock()
        self._told = asyncio.Event()
        self._rules_at = 0.0
        self._seen_at = 0.0
        self._is_away = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def age(self) -> float:
        """Seconds since the version was last looked at."""
        return monotonic() - self._seen_at

    async def start(self) -> None:
        """Load the configuration if the database answers, and keep it fresh from now on."""
        await self._try()
        self._tasks = [asyncio.create_task(self._poll())]
        if can_listen(self._database.engine.url):
            self._tasks.append(asyncio.create_task(self._listen()))
        else:
            self._announcements.listen(self._told.set)

    async def stop(self) -> None:
        """End."""
        self._announcements.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def take_over(self) -> None:
        """Have a write in force in this instance, and tell the others of it. Raises DatabaseUnavailable."""
        await self._announcements.send()
        await self.refresh()

    async def refresh(self) -> None:
        """Load what has changed, if anything has. Raises DatabaseUnavailable."""
        async with self._refreshing:
            every_rule = monotonic() - self._rules_at > RULES_SECONDS
            version = await self._database.read(current_version)
            known = self.configuration.version
            if version != known or every_rule:
                since = known if version >= known else 0
                changes = await self._database.read(
                    lambda connection: load(connection, since, self._default_limit, every_rule=every_rule)
                )
                self._put_in_force(changes)
                self._rules_at = monotonic() if every_rule else self._rules_at
            self._seen_at = monotonic()

    def _put_in_force(self, changes: Changes) -> None:
        for sentence in changes.refused:
            _log.error("a row is left out, as it makes no sense: %s", sentence)
        self.refused = changes.refused
        self.configuration = self.configuration.changed(changes)

    async def _poll(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):  # wait_for of Python 3.11 may lose a cancellation
                    await self._told.wait()
            self._told.clear()
            await self._try()

    async def _try(self) -> None:
        try:
            if self.configuration.version == 0:
                await self._database.migrate()
            await self.refresh()
        except (DatabaseUnavailable, ConfigurationError) as error:
            self._say(away=str(error))
        except Exception:  # noqa: BLE001 - a bug; without the next poll, a key that is revoked would work here for ever
            _log.exception("the configuration could not be refreshed, and the one in force stays")
        else:
            self._say(away="")

    def _say(self, away: str) -> None:
        """Log when the database goes and when it is back, once each."""
        if away and not self._is_away:
            stays = self.configuration.version > 0
            _log.warning("%s; %s", away, "the configuration in force stays" if stays else "not ready until that changes")
        elif not away and self._is_away:
            _log.warning("the database answers again")
        self._is_away = bool(away)

    async def _listen(self) -> None:
        while True:
            with suppress(DatabaseUnavailable):
                async for _ in listen(self._database.engine.url):
                    self._told.set()
            await asyncio.sleep(_RETRY_SECONDS)
