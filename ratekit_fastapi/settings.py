"""What `install` has set for an application, and what holds where nothing is installed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import cached_property
from typing import Any, Unpack

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from ratekit.admin.fleet_mode import Follower, follow
from ratekit.core.cache import Cache
from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import DEFAULT_PREFIX
from ratekit.core.limits import Policy
from ratekit.limiter.limiters import AsyncRateLimiter
from ratekit.limiter.operations import LimiterOptions
from ratekit.stores.contract import AsyncClient, AsyncStoreGiven
from ratekit.web.answers import ResponseWriter
from ratekit.web.checks import Group
from ratekit.web.client_address import TrustedProxies
from ratekit.web.identity import identified_subject
from ratekit.web.ledger import LEDGER, Ledger
from ratekit.web.options import MOST_KNOWN
from ratekit.web.plans import PlanFunction, Plans

Identity = tuple[Any, Any] | str | None
Identify = Callable[[Any], Identity | Awaitable[Identity]]  # of a Request, or of any HTTPConnection if sockets are limited

# The route and the policy of an earlier request, and its checks.
KnownGroups = tuple[Any, Policy | None, Sequence[Group] | None]
STATE = "ratekit"  # in app.state: the settings of an application
SETTINGS = "ratekit.settings"  # in the scope, for applications that are mounted
IDENTITY = "ratekit.identity"  # in the scope: the subject of the project, or None
CHECKS = "ratekit.checks"  # in the scope: what limiters have reserved
SUBJECTS = "ratekit.subjects"  # in the scope: whom a limiter limits, where that had to be awaited, by the limiter's id
_MOST_CLIENTS = 16


class Settings:
    """Store, identity and answers of an application."""

    def __init__(
        self,
        store: AsyncStoreGiven | None = None,
        *,
        identify: Identify | None = None,
        writer: ResponseWriter | None = None,
        proxies: TrustedProxies | None = None,
        prefix: str = DEFAULT_PREFIX,
        plans: Plans | None = None,
        plan_of: PlanFunction | None = None,
        **limiter: Unpack[LimiterOptions],
    ) -> None:
        self.writer = writer or ResponseWriter()
        self.proxies = proxies or TrustedProxies()
        self.prefix = prefix
        self.plans = plans or Plans()
        self.plan_of = plan_of
        self._identify = identify or _identity_in_state
        self._store = store
        self._options = limiter
        self._limiters: dict[int, AsyncRateLimiter] = {}  # of clients
        # By a version of a limiter, the id of the route, and a peer, where nothing else makes a difference.
        self.known_groups: Cache[tuple[object, int, str | None, int], KnownGroups]
        self.known_groups = Cache(lambda key: (None, None, None), MOST_KNOWN, lambda key, value: value[2] is not None)
        self._follower: Follower | None = None
        self._follows = False

    @cached_property
    def own_limiter(self) -> AsyncRateLimiter:
        """The limiter of these settings, made on first use."""
        return AsyncRateLimiter(self._store, prefix=self.prefix, **self._options)

    def limiter(self, on_outage: str | None = None, client: AsyncClient | None = None) -> AsyncRateLimiter:
        """Return the limiter of these settings; client brings a store of its own."""
        if client is None:
            return self.own_limiter.with_on_outage(on_outage)
        limiter = self._limiters.get(id(client))
        if limiter is None:
            if len(self._limiters) >= _MOST_CLIENTS:
                self._limiters.clear()
            limiter = self._limiters[id(client)] = AsyncRateLimiter(client, prefix=self.prefix, **self._options)
        return limiter.with_on_outage(on_outage)

    def follow_fleet(self) -> None:
        """Follow the mode that the store has for every process, until these settings are closed."""
        self._follows = True
        if self._follower is None:
            self._follower = follow(self._store, prefix=self.prefix)

    def resume(self) -> None:
        """Begin again what was closed, for an application that is started once more."""
        if self._follows:
            self.follow_fleet()

    async def identity(self, connection: HTTPConnection) -> str | None:
        """Return the subject of the project that the request was authenticated for, asked once it is known."""
        known: str | None = connection.scope.get(IDENTITY)
        if known is None:
            answer = self._identify(connection)
            known = identified_subject(await answer if inspect.isawaitable(answer) else answer)
            connection.scope[IDENTITY] = known
        return known

    async def aclose(self) -> None:
        """Close the connections of its limiters on this event loop, and follow nothing any more."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        for limiter in [self.own_limiter, *self._limiters.values()]:
            await limiter.aclose()


def settings_of(scope: MutableMapping[str, Any]) -> Settings:
    """Return the settings for a request: of its application, of the one that it is mounted in, or the default ones."""
    return scope.get(SETTINGS) or (_default[0] if _default else default_settings())


def begin_dispatch(scope: MutableMapping[str, Any], front: object) -> Ledger:
    """Return the ledger of a request for a front that begins to decide it. Another dispatch is asked anew who it is for.

    A batch view may have put other credentials into a copy of the scope.
    """
    known = scope.get(LEDGER)
    ledger = Ledger.begun(scope, front)
    if ledger is not known:
        scope.pop(IDENTITY, None)
        scope.pop(SUBJECTS, None)
        scope.pop(CHECKS, None)
    return ledger


def limiter_of(app: Starlette) -> AsyncRateLimiter:
    """Return the limiter that `install` has made for an application: it has peek, check, charge, refund and health().

    The mode does not apply to it. Raises ConfigurationError if nothing is installed.
    """
    settings = getattr(app.state, STATE, None)
    if not isinstance(settings, Settings):
        raise ConfigurationError(f"ratekit is not installed in {app!r}: call install(app) first")
    return settings.limiter()


_default: list[Settings] = []


def default_settings() -> Settings:
    """Return the settings where nothing is installed: RATE_LIMIT_STORE_URL, else memory://."""
    if not _default:
        _default.append(Settings())
    return _default[0]


def reset_default_settings() -> None:
    """Forget the settings that hold where nothing is installed. For tests."""
    _default.clear()


def _identity_in_state(connection: HTTPConnection) -> Identity:
    state = connection.state
    org_id, project_id = getattr(state, "org_id", None), getattr(state, "project_id", None)
    return None if org_id is None or project_id is None else (org_id, project_id)
