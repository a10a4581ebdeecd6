"""How the limiters of a route decide a request: together where they can, each once."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekit import errors
from ratekit.decisions import refund_of, tag_of
from ratekit.front import cost_of, is_refused, refusal_of
from ratekit.limiter import AsyncRateLimiter
from ratekit.modes import RateLimitMode
from ratekit.protocol import Call, merge
from ratekit.results import RateLimitResult
from ratekit.scopes import can_settle, results_in, settle, with_lines
from ratekit_fastapi.errors import RateLimitExceeded, RateLimitUnavailable, UnusableRequestError, answer_in
from ratekit_fastapi.routes import effective_route, limiters_after
from ratekit_fastapi.settings import SETTINGS, Settings, settings_of

if TYPE_CHECKING:
    from ratekit_fastapi.dependencies import RateLimiterDependency

DECIDED = "ratekit.decided"  # in the scope: the limiters that have decided the request
CHARGED = "ratekit.charged"  # in the scope: the keys that they have charged


async def decide(limiter: RateLimiterDependency, connection: HTTPConnection, response: Response) -> None:
    """Decide a request by a limiter, and by the route's others that can be decided in the same call.

    Raises if it is refused.
    """
    scope, mode = connection.scope, limiter.current_mode()
    if mode is RateLimitMode.OFF or limiter in scope.get(DECIDED, ()):
        return
    settings = settings_of(scope)
    if SETTINGS in scope:
        answer_in(scope)
    store = settings.limiter(limiter.on_outage)
    try:
        passes = None
        if limiter.is_same_for_all and DECIDED not in scope and can_settle(store, mode):
            passes = _settle(limiter, connection, response, settings, store)
        if passes is None:
            await _decide(limiter, connection, settings, store, mode)
            write_headers(response, scope, settings)
        elif not passes:
            raise _exceeded(connection, settings)
    except errors.RatekitError as error:
        raise_as_response(error, mode)


def _settle(
    limiter: RateLimiterDependency,
    connection: HTTPConnection,
    response: Response,
    settings: Settings,
    store: AsyncRateLimiter,
) -> bool | None:
    """Decide a request whose first limiter asks nothing of it, and write its headers; None: there are others to ask."""
    scope = connection.scope
    if limiters_after(effective_route(scope), limiter):
        return None
    call = limiter.call(connection, settings, cost_of(limiter.cost, connection))
    if call is None:
        return None
    scope[DECIDED] = [limiter]
    if not settle(scope, store, ((limiter, call),), settings.answers):
        return False
    scope[CHARGED] = set(call.keys)
    write_headers(response, scope, settings)
    return True


def raise_as_response(error: errors.RatekitError, mode: RateLimitMode) -> None:
    """Raise what FastAPI turns into a response in place of one of the core's errors; log it where nothing is enforced."""
    refusal = None if isinstance(error, RateLimitExceeded) else refusal_of(error, mode)
    if isinstance(error, RateLimitExceeded):
        raise error
    if refusal is not None and isinstance(error, errors.UnusableRequestError):
        raise UnusableRequestError(refusal, error) from None
    if refusal is not None and isinstance(error, errors.RateLimitUnavailable):
        raise RateLimitUnavailable(refusal, error) from None


def write_headers(response: Response, scope: MutableMapping[str, Any], settings: Settings) -> None:
    """Write the headers so far on the response that FastAPI has injected, where no middleware of ours will do it."""
    if SETTINGS not in scope:
        response.raw_headers[:] = with_lines(response.raw_headers, scope, settings.answers)


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
        raise _exceeded(connection, settings)


def _exceeded(connection: HTTPConnection, settings: Settings) -> RateLimitExceeded:
    results = results_in(connection.scope)
    return RateLimitExceeded(settings.answers.refusal(results), results[-1])


async def _decide(
    limiter: RateLimiterDependency,
    connection: HTTPConnection,
    settings: Settings,
    store: AsyncRateLimiter,
    mode: RateLimitMode,
) -> None:
    """Decide a request so that its counters are charged once by it.

    What another limiter, which differs in mode or on_outage, has charged to them is given back first: then this one, which
    may be the stricter, decides as if it were alone.
    """
    scope = connection.scope
    decided: list[Any] = scope.setdefault(DECIDED, [])
    decided.append(limiter)
    call = await _call(limiter, connection, settings)
    if call is None:
        limiter.note_pass(connection)
        return
    others = _others(limiter, connection)
    if others:
        call = await _with_others(call, others, limiter, connection, settings, decided)
    charged: set[bytes] = scope.setdefault(CHARGED, set())
    if charged and charged.issuperset(call.keys):
        await store.decide(refund_of(call))
    if can_settle(store, mode):
        if not settle(scope, store, ((limiter, call),), settings.answers):
            raise _exceeded(connection, settings)
        charged.update(call.keys)
        return
    result = await store.decide(call, mode)
    _note(limiter, connection, result, mode, settings)
    if result.allowed:
        charged.update(call.keys)


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


def _others(limiter: RateLimiterDependency, connection: HTTPConnection) -> Sequence[RateLimiterDependency]:
    """Return the limiters that run right after one, but for those that a test has overridden."""
    limiters = limiters_after(effective_route(connection.scope), limiter)
    if not limiters:
        return []
    overridden = getattr(connection.scope.get("app"), "dependency_overrides", None) or {}
    return [other for other in limiters if other not in overridden]


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
