"""The service: what all of its routes share, how it starts, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ratekit.admin import fleet_mode
from ratekit.admin.override_copies import Follower, OverrideCopies
from ratekit.admin.violations import ViolationLog
from ratekit.core.errors import DatabaseUnavailable, MissingExtraError, RateLimitUnavailable
from ratekit.core.events import StoreState
from ratekit.core.limits import Policy
from ratekit.database.versions import KEPT, forget_deletions
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit_service.checks.answers import Decision
from ratekit_service.checks.decide import Decider
from ratekit_service.checks.handlers import Handlers
from ratekit_service.configuration.announcements import Announcements
from ratekit_service.configuration.refresher import Refresher
from ratekit_service.database import Database
from ratekit_service.keys.authentication import Authentication, Failures
from ratekit_service.keys.routes import note_uses
from ratekit_service.overrides.originals import TenantOverrides
from ratekit_service.settings import Settings
from ratekit_service.telemetry import tracing
from ratekit_service.telemetry.logs import CheckLog
from ratekit_service.telemetry.metrics import Metrics

USES_SECONDS = 30.0
HOUSEKEEPING_SECONDS = 60.0
METRICS_SECONDS = 1.0
STORE_SECONDS = 5.0  # that the store has for overrides and the fleet mode before the service starts without them


class Service:
    """One instance: settings, store, database, configuration, telemetry."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tracer = tracing.tracer_of(settings.tracing)
        self.limiter = AsyncRateLimiter(settings.store_url, deadline=settings.deadline, on_outage="closed")
        self.database = Database(settings.database_url)
        default_limit = Policy("tenant", settings.tenant_limit) if settings.tenant_limit else None
        self._administration = RateLimiter(settings.store_url, deadline=settings.deadline * 20, on_outage="closed")
        announcements = Announcements(settings.store_url, self._administration.store)
        self.refresher = Refresher(self.database, settings.poll_seconds, default_limit, announcements)
        self.violations = ViolationLog(self.database.engine)
        self._originals = TenantOverrides(self.database.engine)
        self._copies = OverrideCopies(self._administration, tenant="*")
        self._follower: Follower | None = None
        self._fleet: fleet_mode.Follower | None = None
        self.decider = Decider(self.limiter, self.refresher, self.violations, settings.on_outage, self.tracer)
        self.handlers = Handlers(self.decider, self.refresher)
        failures = Failures(settings.failure_limit)
        self.authentication = Authentication(self.refresher, failures, settings.key_pepper, settings.admin_token)
        self.metrics = Metrics()
        self.check_log = CheckLog(settings.log_checks)
        self.demo_key = ""  # of the demo's tenant, for the page
        self._envoy = self._envoy_files()
        self._envoy_host: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        if self.tracer is not None:
            tracing.trace_database(self.tracer, self.database.engine)

    async def start(self) -> None:
        """Load the configuration if the database answers, and begin the work in the background."""
        await self.limiter.warm()
        await self.refresher.start()
        self.violations.start(listen=False)
        self._follower = Follower(self._originals, self._copies)
        self._fleet = await asyncio.to_thread(fleet_mode.follow, self.settings.store_url, prefix=self.limiter.prefix)
        with contextlib.suppress(TimeoutError):  # a store that hangs is waited for once, and not by each in turn
            async with asyncio.timeout(STORE_SECONDS):
                await asyncio.gather(
                    asyncio.to_thread(self._follower.wait_for_first, STORE_SECONDS), asyncio.to_thread(self._fleet.refresh)
                )
        self._tasks = [
            asyncio.create_task(_repeated(self._note_uses, USES_SECONDS)),
            asyncio.create_task(_repeated(self._keep_house, HOUSEKEEPING_SECONDS)),
            asyncio.create_task(_repeated(self._publish, METRICS_SECONDS)),
        ]

        if self._envoy is not None:
            await self._start_envoy()
        self.measure()

    async def stop(self) -> None:
        """End the work in the background, and write what is waiting."""
        if self._envoy_host is not None:
            await self._envoy_host.stop(self.settings.shutdown_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.refresher.stop()
        with contextlib.suppress(DatabaseUnavailable):
            await self._note_uses()
        if self._fleet is not None:
            self._fleet.close()
        if self._follower is not None:
            await asyncio.to_thread(self._follower.close, 5.0)
        await asyncio.to_thread(self.violations.close)
        self._administration.close()
        await asyncio.to_thread(self.database.close)
        await self.limiter.aclose()

    def _envoy_files(self) -> Any:
        """Return the files of the limits of Envoy's rate limit service, which may need an extra; None without a port."""
        if not self.settings.grpc_port:
            return None
        try:
            from ratekit_service.envoy.serving import RuleFiles
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("ratekit"):
                raise
            raise MissingExtraError("grpc_port", "grpc") from None
        return RuleFiles([self.settings.rules])

    async def _start_envoy(self) -> None:
        from ratekit_service.envoy.serving import EnvoyHost

        address = f"{self.settings.host}:{self.settings.grpc_port}"
        limiter = self.limiter.with_on_outage(self.settings.on_outage)
        self._envoy_host = EnvoyHost(
            address, self._envoy, limiter, tls=_tls(self.settings), shares_port=self.settings.workers > 1
        )
        await self._envoy_host.start()

    def note(self, route: str, decisions: Sequence[Decision]) -> None:
        """Count decisions, and write their log lines."""
        self.metrics.decisions(route, decisions)
        self.check_log.write(route, decisions)

    def measure(self) -> None:
        """Bring the metrics up to date: what was counted, and the gauges."""
        metrics = self.metrics
        metrics.flush()
        metrics.show(
            version=self.refresher.configuration.version,
            age=self.refresher.age,
            database=self.database.is_up,
            store=self.limiter.health().state is StoreState.UP,
            written=self.violations.written,
            dropped=self.violations.dropped,
        )

    async def copy_overrides(self) -> bool:
        """Copy what has changed in the database to the store; whether the store answers. If not, it is done later."""
        try:
            await asyncio.to_thread(self._copies.copy, self._originals)
        except RateLimitUnavailable:
            return False
        return True

    async def _publish(self) -> None:
        """Show the metrics of this worker to the others: whichever is asked answers for all."""
        self.measure()

    async def _note_uses(self) -> None:
        used, self.authentication.used = self.authentication.used, {}
        if not used:
            return
        try:
            await self.database.write_quietly(lambda connection: note_uses(connection, used))
        except DatabaseUnavailable:
            self.authentication.used = used | self.authentication.used

    async def _keep_house(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        await self.database.write_quietly(lambda connection: forget_deletions(connection, now - KEPT))


def _tls(settings: Settings) -> Any:
    """Return the certificate of the gRPC server, which is that of HTTPS; None without one."""
    if not settings.tls_key:
        return None
    from ratekit_service.envoy.grpc_host import Tls

    authority = Path(settings.grpc_client_authority) if settings.grpc_client_authority else None
    return Tls(Path(settings.tls_certificate), Path(settings.tls_key), authority)


async def _repeated(work: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
    """Do something again and again. What the database refuses is done the next time."""
    while True:
        await asyncio.sleep(seconds)
        with contextlib.suppress(DatabaseUnavailable):
            await work()
