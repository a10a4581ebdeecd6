"""FastAPI's side of the engine: limiters of a route become checks, a verdict becomes an exception or headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from ratekit.asgi import Scope
from ratekit.core import clock, errors
from ratekit.core.limits import MOST_REQUESTS, Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter
from ratekit.limiter.reservations import Reservation, unlimited
from ratekit.web.answers import ErrorResponse, error_response
from ratekit.web.checks import Check, Group, grouped
from ratekit.web.decide import decide
from ratekit.web.drivers import arun
from ratekit.web.fast_path import decide_request
from ratekit.web.ledger import LEDGER, Ledger, hold_slots
from ratekit.web.requests import asgi_peer
from ratekit.web.steps import Verdict
from ratekit_fastapi.errors import RateLimitExceeded, RateLimitUnavailable, UnusableRequestError, answer_in
from ratekit_fastapi.routes import effective_route, limiters_after
from ratekit_fastapi.settings import CHECKS, SETTINGS, Settings, begin_dispatch, settings_of

if TYPE_CHECKING:
    from ratekit_fastapi.dependencies import RateLimiterDependency

_ON, _OFF = RateLimitMode.ON, RateLimitMode.OFF
_ROUTE = "a route of FastAPI"  # the front that dependencies are


_Decided = dict["RateLimiterDependency", RateLimitResult | None]


async def decide_route(
    limiter: RateLimiterDependency, connection: HTTPConnection, response: Response | None = None, **found: object
) -> RateLimitResult | None:
    """Decide a request by a limiter, together with those of the route that run right after it.

    Raises if the request is refused. Returns the result of a limiter that does not block. Each message of an open WebSocket
    is decided for itself. found is what the dependency that by= names has answered.
    """
    scope, mode = connection.scope, limiter.current_mode()
    if mode is _OFF:
        return None
    settings = settings_of(scope)
    per_message = _is_message(connection)
    ledger = _ledger_of(connection)
    decided: _Decided = ledger.decided
    if decided and limiter in decided:
        return decided[limiter]
    decided[limiter] = None
    asked = None if limiter.policy is not None else await _asked_policy(limiter, connection, settings, mode)
    if asked is None and limiter.policy is None:
        return None
    groups = _known_groups(limiter, scope, settings, asked) if mode is _ON else None
    if groups is None:
        groups = await _groups(limiter, connection, settings, mode, decided, asked, found)
    if not groups:
        return None
    if groups[0].is_held or groups[-1].is_held:
        _refuse_without_end(scope, is_message=per_message)
    if not limiter.block:
        decided[limiter] = await run(groups, settings.own_limiter, connection, settings, once=not per_message)
    else:
        verdict = await decide_request(groups, ledger, settings.writer, settings.own_limiter, once=not per_message)
        if verdict.response is not None:
            _raise(verdict, scope)
    if ledger.is_held:
        hold_slots(ledger, settings.own_limiter)
    if SETTINGS not in scope and response is not None:  # else a middleware of ours writes them, or there is no response
        lines = response.raw_headers
        lines[:] = ledger.write_headers(settings.writer, lines)
    return decided[limiter]


def _refuse_without_end(scope: Scope, *, is_message: bool) -> None:
    """Refuse to reserve, or to take a slot, where nobody would know when the response has ended."""
    if SETTINGS not in scope or is_message:
        what = "a message of a WebSocket has no response" if is_message else "call ratekit_fastapi.install(app) first"
        raise errors.ConfigurationError(
            f"a limiter with estimate=, count=, reset_when= or a concurrency limit ends with the response: {what}"
        )


def reservation_of(
    limiter: RateLimiterDependency, connection: HTTPConnection, result: RateLimitResult | None
) -> Reservation:
    """Return what a limiter has reserved for a request; one that tells nobody if nothing is reserved.

    result is that of a limiter that does not block: the request may be over its limit.
    """
    check = connection.scope.get(CHECKS, {}).get(limiter)
    found = None if check is None else Ledger.of(connection.scope).reservation(check)
    if found is not None:
        return found
    if result is not None:
        return Reservation([], result)
    limits = (Limit(MOST_REQUESTS, 1),) if limiter.policy is None else limiter.policy.limits
    return unlimited(limits, clock.now())


def _keep_check(limiter: RateLimiterDependency, check: Check | None, scope: Scope) -> None:
    if check is not None and check.is_reserved:
        scope.setdefault(CHECKS, {})[limiter] = check


async def _asked_policy(
    limiter: RateLimiterDependency, connection: HTTPConnection, settings: Settings, mode: RateLimitMode
) -> Policy | None:
    """Ask for the limits of a request. None: it is not limited, or it passes although it could not be found out."""
    try:
        return await limiter.asked_policy(connection, settings)
    except errors.RatekitError as error:
        raise_undecided(error, mode, connection.scope)
        return None


def _known_groups(
    limiter: RateLimiterDependency, scope: Scope, settings: Settings, asked: Policy | None
) -> Sequence[Group] | None:
    """Return the checks of an earlier request to the same route, by the same peer, if they are the same for each."""
    if "app_root_path" in scope:  # the same route may be mounted in several places
        return None
    route = effective_route(scope) if scope.get("fastapi") else scope.get("route")
    client = scope.get("client") if limiter.is_by_peer else None
    key = (limiter.version, id(route), client[0] if client else None, id(asked))
    known_route, known_policy, groups = settings.known_groups[key]
    return groups if known_route is route and known_policy is asked else None


def _keep_groups(
    limiter: RateLimiterDependency,
    connection: HTTPConnection,
    settings: Settings,
    asked: Policy | None,
    groups: Sequence[Group],
) -> None:
    """Keep checks for later requests, if they are the same for each."""
    if len(groups) == 1 and not groups[0].is_single_use and limiter.is_same_for(connection, settings):
        route, peer = effective_route(connection.scope), asgi_peer(connection.scope) if limiter.is_by_peer else None
        settings.known_groups.keep((limiter.version, id(route), peer, id(asked)), (route, asked, groups))


def _is_message(connection: HTTPConnection) -> bool:
    return type(connection) is WebSocket and connection.application_state is WebSocketState.CONNECTED


def _ledger_of(connection: HTTPConnection) -> Ledger:
    """Return the ledger of one dispatch of a request to a route, which FastAPI makes one Request or WebSocket for.

    A message of an open WebSocket has its own: its refusal gives nothing else back. Middleware runs before the request has a
    route, and is part of the dispatch that follows.
    """
    if _is_message(connection):
        return Ledger()
    if "endpoint" not in connection.scope:
        return Ledger.of(connection.scope)
    kept = vars(connection)
    ledger: Ledger | None = kept.get(LEDGER)
    if ledger is None:
        ledger = kept[LEDGER] = begin_dispatch(connection.scope, _ROUTE)
    return ledger


async def _groups(
    limiter: RateLimiterDependency,
    connection: HTTPConnection,
    settings: Settings,
    mode: RateLimitMode,
    decided: _Decided,
    asked: Policy | None,
    found: Mapping[str, object],
) -> Sequence[Group]:
    """Return the checks of a limiter and of those that run right after it; none if the request is not limited."""
    scope = connection.scope
    try:
        if found:
            limiter.note_subject(connection, found)
        check = (
            await limiter.check(connection, settings, mode, asked)
            if limiter.has_to_wait
            else limiter.check_of(connection, settings, mode, asked)
        )
    except errors.RatekitError as error:
        raise_undecided(error, mode, scope)
        return ()
    if check is None:
        return ()
    _keep_check(limiter, check, scope)
    checks = [check]
    if limiter.block and (after := limiters_after(effective_route(scope), limiter)):
        checks += await _checks_after(not_overridden(after, scope), connection, settings, decided)
    groups = grouped(checks, one_slot=settings.own_limiter.store.one_slot)
    if mode is _ON:
        _keep_groups(limiter, connection, settings, asked, groups)
    return groups


async def _checks_after(
    limiters: Sequence[RateLimiterDependency], connection: HTTPConnection, settings: Settings, decided: _Decided
) -> list[Check]:
    """Return the checks of the limiters that run right after one, and take note that they are decided.

    One that does not block is decided when FastAPI calls it: it is a call of its own in any case, and has its own result.
    """
    checks = []
    for other in limiters:
        mode = other.current_mode()
        if other in decided or mode is _OFF or not other.block:
            continue
        try:
            asked = None if other.policy is not None else await other.asked_policy(connection, settings)
            is_limited = other.policy is not None or asked is not None
            check = await other.check(connection, settings, mode, asked) if is_limited else None
        except errors.RatekitError:
            continue  # it raises the same when FastAPI calls it
        decided[other] = None
        _keep_check(other, check, connection.scope)
        checks += [] if check is None else [check]
    return checks


def not_overridden(limiters: Sequence[RateLimiterDependency], scope: Scope) -> Sequence[RateLimiterDependency]:
    """Return limiters but for those that a test has overridden."""
    overridden = getattr(scope.get("app"), "dependency_overrides", None) or {}
    return [limiter for limiter in limiters if limiter not in overridden]


async def run(
    groups: Sequence[Group], limiter: AsyncRateLimiter, connection: HTTPConnection, settings: Settings, *, once: bool
) -> RateLimitResult | None:
    """Decide a request by the engine, and raise if it is refused. The result is that of the last group."""
    place = limiter.store.place
    verdict = await arun(decide(groups, _ledger_of(connection), settings.writer, place, once=once), limiter)
    if verdict.response is not None:
        _raise(verdict, connection.scope)
    return verdict.result


def _raise(verdict: Verdict, scope: Scope) -> NoReturn:
    if SETTINGS in scope:
        answer_in(scope)
    if verdict.response is None or verdict.error is None:
        raise TypeError("a request that passes is not refused")
    raise _as_exception(verdict.response, verdict.error) from None


def _as_exception(response: ErrorResponse, error: errors.RatekitError) -> Exception:
    if isinstance(error, errors.RateLimitExceeded):
        return RateLimitExceeded(response, error.result)
    if isinstance(error, errors.RateLimitUnavailable):
        return RateLimitUnavailable(response, error)
    return UnusableRequestError(response, error) if isinstance(error, errors.UnusableRequestError) else error


def raise_undecided(error: errors.RatekitError, mode: RateLimitMode, scope: Scope) -> None:
    """Raise what FastAPI turns into a response, for a request that cannot be decided; log it where nothing is enforced."""
    response = error_response(error, mode)
    if response is not None:
        _raise(Verdict(response, error), scope)


def write_headers(response: Response, scope: Scope, settings: Settings) -> None:
    """Write the headers so far on the response that FastAPI has injected, where no middleware of ours will do it."""
    if SETTINGS not in scope:
        lines = response.raw_headers
        lines[:] = Ledger.of(scope).write_headers(settings.writer, lines)
