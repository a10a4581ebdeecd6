"""How the limiters of a route decide a request: together where they can, each once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekit import errors
from ratekit.decisions import refund_of, tag_of
from ratekit.events import decisions
from ratekit.front import is_refused, refusal_of
from ratekit.limiter import AsyncRateLimiter
from ratekit.modes import RateLimitMode
from ratekit.protocol import Call, merge
from ratekit.results import RateLimitResult
from ratekit.scopes import Scope, results_in
from ratekit_fastapi.errors import RateLimitExceeded, RateLimitUnavailable, UnusableRequestError, answer_in
from ratekit_fastapi.routes import effective_route, limiters_after
from ratekit_fastapi.settings import SETTINGS, Settings, settings_of

if TYPE_CHECKING:
    from ratekit_fastapi.dependencies import RateLimiterDependency

DECIDED = "ratekit.decided"  # in the scope: the limiters that have decided the request
CHARGED = "ratekit.charged"  # in the scope: the calls by which they have charged it
_ON, _OFF = RateLimitMode.ON, RateLimitMode.OFF


class Shortcut(NamedTuple):
    """What decides every request to a route by its only limiter, which asks nothing of them. Found once."""

    route: Any
    settings: Settings
    store: AsyncRateLimiter
    call: Call


async def decide(limiter: RateLimiterDependency, connection: HTTPConnection, response: Response) -> None:
    """Decide a request by a limiter, and by the route's others that can be decided in the same call.

    Raises if it is refused.
    """
    scope, mode = connection.scope, limiter.current_mode()
    try:
        if mode is _ON and limiter.shortcuts and not decisions.listeners and _settle(limiter, scope, response):
            return
        if mode is _OFF or limiter in scope.get(DECIDED, ()):
            return
        settings = settings_of(scope)
        await _decide(limiter, connection, settings, mode)
        write_headers(response, scope, settings)
    except errors.RatekitError as error:
        raise_as_response(error, mode, scope)


def _settle(limiter: RateLimiterDependency, scope: Scope, response: Response) -> bool:
    """Decide a request that needs no more than its route's shortcut, and write its headers; whether that was all of it."""
    route = effective_route(scope) if "fastapi" in scope else scope.get("route")
    short = limiter.shortcuts.get(id(route))
    if short is None or DECIDED in scope or "app_root_path" in scope:  # the same route can be mounted in several places
        return False
    known_route, settings, store, call = short
    if known_route is not route or settings is not settings_of(scope):
        return False
    scope[DECIDED] = [limiter]
    result = store.decide_now(call)
    results = results_in(scope)
    results.append(result)
    plain = settings.answers.plain(result)
    if plain is None and not result.allowed:
        raise _exceeded(results, settings)
    scope[CHARGED] = [call]
    if SETTINGS not in scope:
        lines = response.raw_headers
        if plain is None or lines or len(results) > 1:
            lines[:] = settings.answers.written(lines, results)
        else:
            lines += plain
    return True


def raise_as_response(error: errors.RatekitError, mode: RateLimitMode, scope: Scope) -> None:
    """Raise what FastAPI turns into a response in place of one of the core's errors; log it where nothing is enforced."""
    if SETTINGS in scope:
        answer_in(scope)
    refusal = None if isinstance(error, RateLimitExceeded) else refusal_of(error, mode)
    if isinstance(error, RateLimitExceeded):
        raise error
    if refusal is not None and isinstance(error, errors.UnusableRequestError):
        raise UnusableRequestError(refusal, error) from None
    if refusal is not None and isinstance(error, errors.RateLimitUnavailable):
        raise RateLimitUnavailable(refusal, error) from None


def write_headers(response: Response, scope: Scope, settings: Settings) -> None:
    """Write the headers so far on the response that FastAPI has injected, where no middleware of ours will do it."""
    if SETTINGS not in scope:
        lines = response.raw_headers
        lines[:] = settings.answers.written(lines, results_in(scope))


async def run(
    limiter: RateLimiterDependency,
    connection: HTTPConnection,
    call: Call,
    mode: RateLimitMode,
    settings: Settings,
    client: Any = None,
) -> RateLimitResult:
    """Let the store decide a call, note the result for the headers, and raise if it refuses the request."""
    result = await settings.limiter(limiter.on_outage, client).decide(call, mode)
    _note(limiter, connection, result, mode, settings)
    return result


def _note(
    limiter: RateLimiterDependency,
    connection: HTTPConnection,
    result: RateLimitResult,
    mode: RateLimitMode,
    settings: Settings,
) -> None:
    results = results_in(connection.scope)
    results.append(result)
    if not result.allowed and is_refused(mode, limiter.endpoint_for(connection), result):
        raise _exceeded(results, settings)


def _exceeded(results: Sequence[RateLimitResult], settings: Settings) -> RateLimitExceeded:
    return RateLimitExceeded(settings.answers.refusal(results), results[-1])


async def _decide(
    limiter: RateLimiterDependency, connection: HTTPConnection, settings: Settings, mode: RateLimitMode
) -> None:
    """Decide a request so that its counters are charged once by it.

    What another limiter, which differs in mode or on_outage, has charged to them is given back first: then this one, which
    may be the stricter, decides as if it were alone.
    """
    scope, store = connection.scope, settings.limiter(limiter.on_outage)
    decided: list[Any] = scope.setdefault(DECIDED, [])
    decided.append(limiter)
    call = await _call(limiter, connection, settings)
    if call is None:
        limiter.note_pass(connection)
        return
    route = effective_route(scope)
    if after := limiters_after(route, limiter):
        call = await _with_others(call, _not_overridden(after, scope), limiter, connection, settings, decided)
    elif limiter.is_same_for_all and store.decides_at_once and not call.compiled.is_soft and "app_root_path" not in scope:
        limiter.shorten(Shortcut(route, settings, store, call))
    charged: list[Call] = scope.setdefault(CHARGED, [])
    if charged and {key for other in charged for key in other.keys}.issuperset(call.keys):
        await store.decide(refund_of(call))
    result = await store.decide(call, mode)
    _note(limiter, connection, result, mode, settings)
    if result.allowed:
        charged.append(call)


async def _with_others(
    call: Call,
    others: Sequence[RateLimiterDependency],
    limiter: RateLimiterDependency,
    connection: HTTPConnection,
    settings: Settings,
    decided: list[Any],
) -> Call:
    """Return one call for a limiter and those others that can be decided with it."""
    calls = [call]
    for other in others:
        if (
            other not in decided
            and other.is_decided_with(limiter)
            and (more := await _call_with(call, other, connection, settings))
        ):
            decided.append(other)
            calls.append(more)
    return merge(calls)


def _not_overridden(limiters: Sequence[RateLimiterDependency], scope: Scope) -> Sequence[RateLimiterDependency]:
    """Return limiters but for those that a test has overridden."""
    overridden = getattr(scope.get("app"), "dependency_overrides", None) or {}
    return [limiter for limiter in limiters if limiter not in overridden]


async def _call(limiter: RateLimiterDependency, connection: HTTPConnection, settings: Settings) -> Call | None:
    if limiter.needs_identity:
        await settings.identity(connection)
    if limiter.needs_body:
        await limiter.load_body(connection)
    cost = limiter.cost
    return limiter.call(connection, settings, cost if type(cost) is int else await limiter.cost_for(connection))


async def _call_with(
    call: Call, other: RateLimiterDependency, connection: HTTPConnection, settings: Settings
) -> Call | None:
    """Return the call of another limiter if it can be decided in one with this: the same tag, the same cost."""
    try:
        more = await _call(other, connection, settings)
    except errors.RatekitError:
        return None  # it will say so itself when its turn comes
    fits = more is not None and more.cost == call.cost and tag_of(more) == tag_of(call)
    return more if fits else None
