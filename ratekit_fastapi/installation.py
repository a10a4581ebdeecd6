"""`install`: store, identity, headers on every answer, problem bodies, OpenAPI, and an end with the application's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request

from ratekit.asgi import App, Receive, RuleMiddleware, Scope, Send, Sender, send_response
from ratekit.core.errors import ConfigurationError, RatekitError
from ratekit.core.headers import DEFAULT_STYLE
from ratekit.core.keys import DEFAULT_PREFIX, check_prefix
from ratekit.core.modes import get_rate_limit_mode
from ratekit.limiter.limiters import shielded
from ratekit.limiter.operations import LimiterOptions
from ratekit.stores.contract import AsyncStoreGiven
from ratekit.web.answers import BodyFunction, ResponseWriter
from ratekit.web.arguments import refuse_unknown
from ratekit.web.client_address import X_FORWARDED_FOR, TrustedProxies
from ratekit.web.drivers import arun
from ratekit.web.plans import PlanFunction, Plans, RuleLimits, as_plans, checked_plan_of
from ratekit.web.requests import AsgiRequest
from ratekit.web.settling import finish
from ratekit_fastapi import openapi
from ratekit_fastapi.bodies import BoundedReceive
from ratekit_fastapi.errors import answer, answer_to
from ratekit_fastapi.requests import StarletteRequest
from ratekit_fastapi.settings import SETTINGS, STATE, Identify, Settings, begin_dispatch

if TYPE_CHECKING:
    from ratekit.rules.reload import Rules, RulesGiven

_ARGUMENTS = (
    "store", "identify", "headers", "body", "trusted_hops", "trusted_header", "prefix", "document", "fleet_mode", "plans",
    "plan_of", "rules", "service",
)  # fmt: skip


def install(
    app: Starlette,
    *,
    store: AsyncStoreGiven | None = None,
    identify: Identify | None = None,
    headers: str | Iterable[str] = DEFAULT_STYLE,
    body: BodyFunction | None = None,
    trusted_hops: int | Iterable[str] | str | None = None,
    trusted_header: str = X_FORWARDED_FOR,
    prefix: str = DEFAULT_PREFIX,
    document: bool = True,
    fleet_mode: bool = False,
    plans: Plans | Mapping[str, RuleLimits] | None = None,
    plan_of: PlanFunction | None = None,
    rules: RulesGiven | Rules | None = None,
    service: str | None = None,
    **limiter: Unpack[LimiterOptions],
) -> Settings:
    """Set up ratekit for an application and what is mounted in it.

    identify says for which project a request was authenticated: (org_id, project_id), a subject, or None; it may be async.
    Without it, request.state.org_id and request.state.project_id count. document lets OpenAPI say what limited
    operations may answer, and which headers they have. fleet_mode follows the mode of the store (`ratekit mode monitor`).
    plans are named sets of limits, and plan_of, which may be async, says which one a request has. rules is a document for
    the whole application, as ratekit.rules.Rules takes it, and service is whose. The rest is as in AsyncRateLimiter.
    """
    _check_arguments(limiter)
    settings = Settings(
        store,
        identify=_checked_identify(identify),
        writer=ResponseWriter(headers, body),
        proxies=TrustedProxies.of(trusted_hops, trusted_header),
        prefix=check_prefix(prefix),
        plans=as_plans(plans),
        plan_of=checked_plan_of(plan_of),
        **limiter,
    )
    _limit_by_rules(app, settings, rules, service)
    _connect(app, settings, document=document, fleet_mode=fleet_mode)
    return settings


def _limit_by_rules(app: Starlette, settings: Settings, rules: RulesGiven | Rules | None, service: str | None) -> None:
    if rules is not None:
        app.add_middleware(StarletteRuleMiddleware, settings=settings, rules=rules, service=service)


def _checked_identify(identify: Identify | None) -> Identify | None:
    if identify is not None and not callable(identify):
        raise ConfigurationError(f"identify {identify!r} is not a callable of the request")
    return identify


def _check_arguments(limiter: Any) -> None:
    refuse_unknown("install", limiter, {*LimiterOptions.__annotations__, *_ARGUMENTS})
    get_rate_limit_mode()  # a mode that makes no sense is an error now


class StarletteRuleMiddleware(RuleMiddleware):
    """Limits an application by a document, as its settings say; key functions see Starlette's own request."""

    def __init__(self, app: App, settings: Settings, rules: RulesGiven | Rules, service: str | None) -> None:
        super().__init__(app, rules=rules, service=service, limiter=settings.limiter(), plan_of=settings.plan_of)
        self.options.writer = settings.writer
        self.options.proxies = settings.proxies

    def request(self, scope: Scope) -> AsgiRequest:
        """Return a request as key functions and rules see it."""
        connection = HTTPConnection(scope) if scope["type"] == "websocket" else Request(scope)
        return StarletteRequest(connection, self.options.proxies)


class HeadersMiddleware:
    """Writes the headers of what the limiters have decided, whatever the outcome, and settles when the response ends."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. Errors of limiters that the application calls itself become the same responses as ours."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        scope[SETTINGS] = settings = self.settings
        ledger = begin_dispatch(scope, self)  # made here, so that the copies of the scope which mounts make share it
        sender, depth = Sender(send, ledger, settings.writer), len(ledger.fronts)
        try:
            await self._answer(scope, receive, sender)
            if sender.error is not None:
                await send_response(await answer_to(sender.error, scope), scope, None, send)
        finally:
            if ledger.is_held:  # after the last byte and the background tasks, even if the request is cancelled meanwhile
                limiter = settings.limiter()
                await shielded(arun(finish(ledger, limiter.store.place, depth), limiter))

    async def _answer(self, scope: Scope, receive: Receive, sender: Sender) -> None:
        try:
            is_http = scope["type"] == "http"
            receive = BoundedReceive(receive, scope, sender) if is_http else sender.watching(receive)
            await self.app(scope, receive, sender)
        except Exception as raised:
            if not sender.leaves(raised):
                sender.fail()
                raise


def _connect(app: Starlette, settings: Settings, *, document: bool, fleet_mode: bool) -> None:
    settings.limiter()  # a store that makes no sense is an error now
    setattr(app.state, STATE, settings)
    if fleet_mode:
        settings.follow_fleet()
    app.exception_handlers.setdefault(RatekitError, answer)  # an application's own, before or after, is used instead
    app.add_middleware(HeadersMiddleware, settings=settings)
    _close_with(app, settings)
    if document and isinstance(app, FastAPI):
        openapi.document(app, settings)


def _close_with(app: Starlette, settings: Settings) -> None:
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(running: Any) -> AsyncIterator[Any]:
        await settings.limiter().warm()
        settings.resume()
        async with inner(running) as state:
            try:
                yield state
            finally:
                await settings.aclose()

    app.router.lifespan_context = lifespan
