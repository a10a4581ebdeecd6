"""The SDK: limits of one service by key, from a document that changes without a restart.

kit = RateKit(service="sentiment", rules="mongodb://host/limits", store="redis://host")
kit.check_rate_limit("tenant:acme:lang:en").remaining_by
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, Unpack

from ratekit.core import clock
from ratekit.core.errors import ConfigurationError, RateLimitExceeded, UnusableRequestError
from ratekit.core.figures import ADMITS, UNLIMITED
from ratekit.core.limits import MOST_REQUESTS, Limit
from ratekit.core.modes import RateLimitMode
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.limiter.operations import LimiterOptions
from ratekit.rules.checks import Front, checks_of_key, read_checks
from ratekit.rules.follow import AsyncRules
from ratekit.rules.front_requests import opened
from ratekit.rules.options import as_by, as_rules
from ratekit.rules.reload import Rules, RulesGiven, RulesStatus
from ratekit.rules.sources.contract import AsyncSource
from ratekit.stores.contract import AsyncStoreGiven, StoreGiven
from ratekit.web.answers import ErrorResponse, ResponseWriter
from ratekit.web.arguments import checked_mode, mode_reader
from ratekit.web.checks import Check, grouped
from ratekit.web.client_address import X_FORWARDED_FOR, TrustedProxies
from ratekit.web.decide import decide
from ratekit.web.drivers import arun, run
from ratekit.web.identity import By, as_key_function
from ratekit.web.ledger import Ledger
from ratekit.web.options import refuse_awaited
from ratekit.web.plans import PlanFunction, checked_plan_of
from ratekit.web.steps import Ask, Step

_Limiter = TypeVar("_Limiter", RateLimiter, AsyncRateLimiter)
_Deciding = Generator[Step, Any, RateLimitResult]
_ON = RateLimitMode.ON
_NO_LIMIT = Limit(MOST_REQUESTS, 1, name="unlimited")


class _Kit(Generic[_Limiter]):
    """What the waiting and the awaiting SDK share: everything but the waiting."""

    limiter: _Limiter
    rules: Rules

    def __init__(
        self,
        service: str,
        rules: Rules,
        limiter: _Limiter,
        by: By,
        mode: str | RateLimitMode | None,
        proxies: TrustedProxies,
        plan_of: PlanFunction | None,
    ) -> None:
        if not isinstance(service, str) or not service:
            raise ConfigurationError(f"service {service!r} is not the name of a service")
        self.service = service
        self.rules = rules
        self.limiter = limiter
        self._by = as_key_function(as_by(by))
        self._mode = mode_reader(checked_mode(mode))
        self._proxies = proxies
        asked = checked_plan_of(plan_of)
        self._ask_plan = None if asked is None else lambda _, key: Ask(asked, str(key), asked)
        self._writer = ResponseWriter()

    @property
    def status(self) -> RulesStatus:
        """Which rules are in force, since when and from where, and what is wrong with their source."""
        return self.rules.status

    def _by_key(self, service: str | None, key: str | None, cost: int | None, endpoint: str | None) -> _Deciding:
        key = self._key_of(service, key)
        rules = self.rules.compiled.of_endpoint(endpoint or self.service)
        mode = self._mode()
        rules = () if mode is RateLimitMode.OFF else rules
        checks = yield from checks_of_key(rules, key, self._front(), mode, cost)
        return (yield from self._decided(checks))

    def _by_request(self, given: Any) -> _Deciding:
        request, load_body = opened(given, self._proxies)
        mode = self._mode()
        rules = () if mode is RateLimitMode.OFF else self.rules.find(request, (self.service,))
        checks = yield from read_checks(rules, request, self._front(), mode, load_body)
        if isinstance(checks, ErrorResponse):
            raise UnusableRequestError(json.loads(checks.body)["detail"], checks.status)
        return (yield from self._decided(checks))

    def _key_of(self, service: str | None, key: str | None) -> str:
        service, key = (None, service) if key is None else (service, key)
        if service is not None and service != self.service:
            raise ConfigurationError(f"service {service!r} is another one: these are the rules of {self.service!r}")
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"key {key!r} is not a text with something in it")
        return key

    def _front(self) -> Front:
        return Front(self.limiter.prefix, self._by, self.rules.compiled.applies_all, self._ask_plan)

    def _decided(self, checks: Sequence[Check]) -> _Deciding:
        if not checks:
            return _unlimited()
        if any(check.call.compiled.has_slots for check in checks):
            raise ConfigurationError("a concurrency limit holds its slot while the request lasts: use RuleMiddleware for it")
        groups = grouped(checks, one_slot=self.limiter.store.one_slot)
        ledger = Ledger()
        verdict = yield from decide(groups, ledger, self._writer, self.limiter.store.place)
        if verdict.error is not None and not isinstance(verdict.error, RateLimitExceeded):
            raise verdict.error
        if verdict.error is not None and verdict.result is not None:
            return verdict.result
        result = ledger.results[0] if ledger.results else _unlimited()  # enforced ones come first
        return result if groups[0].mode is _ON else _monitored(result)


class RateKit(_Kit[RateLimiter]):
    """Limits of one service, by key, waiting for the store.

    rules is a path, the URL of a source, a source, a document, or Rules; functions and default are those of Rules. store and
    the other options are those of RateLimiter. by says who is limited in `check(request)` where the document does not.
    plan_of gets a key, and names its plan where the limits of the document are "plan".
    """

    def __init__(
        self,
        service: str,
        rules: RulesGiven | Rules,
        store: StoreGiven | None = None,
        *,
        limiter: RateLimiter | None = None,
        by: By = "ip",
        functions: Collection[str] = (),
        default: RulesGiven | None = None,
        plan_of: PlanFunction | None = None,
        mode: str | RateLimitMode | None = None,
        trusted_hops: int | Iterable[str] | str | None = None,
        trusted_header: str = X_FORWARDED_FOR,
        **options: Unpack[LimiterOptions],
    ) -> None:
        refuse_awaited("plan_of", plan_of)
        proxies = TrustedProxies.of(trusted_hops, trusted_header)
        loaded = as_rules(rules, service, functions, default, holds_slots=False, asks_plans=plan_of is not None)
        super().__init__(
            service, loaded, limiter or RateLimiter(store, **options), by, mode, proxies, checked_plan_of(plan_of)
        )

    def check_rate_limit(
        self,
        service_name: str | None = None,
        key: str | None = None,
        *,
        cost: int | None = None,
        endpoint: str | None = None,
    ) -> RateLimitResult:
        """Spend a key's limits, all or nothing. A single argument is the key.

        endpoint is the service unless it is given. A key that the document does not limit is allowed. Another service's name
        is a ConfigurationError.
        """
        return run(self._by_key(service_name, key, cost, endpoint), self.limiter)

    def check(self, request: Any) -> RateLimitResult:
        """Spend the limits of a request of any framework, by what the document says of it.

        Raises UnusableRequestError if the request does not say who asks, and RateLimitUnavailable if the store cannot tell
        and the rule is closed then.
        """
        return run(self._by_request(request), self.limiter)

    def close(self) -> None:
        """Look at the source no more, and close the connections."""
        self.rules.close()
        self.limiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncRateKit(_Kit[AsyncRateLimiter]):
    """Limits of one service, by key, awaited: see RateKit.

    A source that is awaited (`AsyncMongoSource`) is followed from `async with` or `start` on.
    """

    def __init__(
        self,
        service: str,
        rules: RulesGiven | Rules,
        store: AsyncStoreGiven | None = None,
        *,
        limiter: AsyncRateLimiter | None = None,
        by: By = "ip",
        functions: Collection[str] = (),
        default: RulesGiven | None = None,
        plan_of: PlanFunction | None = None,
        mode: str | RateLimitMode | None = None,
        trusted_hops: int | Iterable[str] | str | None = None,
        trusted_header: str = X_FORWARDED_FOR,
        **options: Unpack[LimiterOptions],
    ) -> None:
        proxies = TrustedProxies.of(trusted_hops, trusted_header)
        if isinstance(rules, AsyncSource):
            rules = AsyncRules(rules, service=service, functions=functions, default=default)
        loaded = as_rules(rules, service, functions, default, holds_slots=False, asks_plans=plan_of is not None)
        super().__init__(
            service, loaded, limiter or AsyncRateLimiter(store, **options), by, mode, proxies, checked_plan_of(plan_of)
        )

    async def check_rate_limit(
        self,
        service_name: str | None = None,
        key: str | None = None,
        *,
        cost: int | None = None,
        endpoint: str | None = None,
    ) -> RateLimitResult:
        """Spend a key's limits, all or nothing. A single argument is the key: see RateKit."""
        return await arun(self._by_key(service_name, key, cost, endpoint), self.limiter)

    async def check(self, request: Any) -> RateLimitResult:
        """Spend the limits of a request of any framework, by what the document says of it."""
        return await arun(self._by_request(request), self.limiter)

    async def start(self) -> None:
        """Load the rules of a source that is awaited, and follow it."""
        if isinstance(self.rules, AsyncRules):
            await self.rules.start()

    async def aclose(self) -> None:
        """Look at the source no more, and close the connections of this event loop."""
        if isinstance(self.rules, AsyncRules):
            await self.rules.aclose()
        else:
            await asyncio.to_thread(self.rules.close)  # a look at the source may be under way
        await self.limiter.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _unlimited() -> RateLimitResult:
    """Return the result of a key that nothing limits."""
    figures = (ADMITS | UNLIMITED, MOST_REQUESTS, 0, MOST_REQUESTS, 0, 0)
    return RateLimitResult((_NO_LIMIT,), figures, clock.now())


def _monitored(result: RateLimitResult) -> RateLimitResult:
    """Return a result that allows, as the mode is monitor; would_violate says what would have refused."""
    return result._replace(limits=tuple(replace(limit, shadow=True) for limit in result.limits))
