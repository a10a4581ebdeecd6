"""The end of a request in Flask: what was reserved for it is settled when the server has closed the response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from werkzeug.wrappers import Response

from ratekit.flask.requests import RequestState
from ratekit.limiter.limiters import RateLimiter
from ratekit.web.charging import ResponseHead, joined
from ratekit.web.drivers import run
from ratekit.web.settling import Usage, conclude, fail, finish, reopen


def usage() -> Usage:
    """Return what takes note of what the request that runs has cost, for limits with an estimate."""
    return Usage(RequestState.current().ledger)


def end_with(response: Response, state: RequestState, limiter: RateLimiter) -> None:
    """Take note of the outcome of a request, and settle when its response is closed, after the last byte."""
    ledger, state.ended_with = state.ledger, (response, response.status_code)
    headers = joined(response.headers.items())
    for name in conclude(ledger, ResponseHead(response.status_code, headers, response), state.depth):
        response.headers.pop(name, None)
    if response.is_streamed and not response.direct_passthrough:
        response.response = _watched(response.response, state)
    response.call_on_close(lambda: _finish(state, limiter))


def end_with_another(response: Response, state: RequestState, limiter: RateLimiter) -> None:
    """Go by the response that is sent, if something has changed it after all or has put another one in its place."""
    if state.ended_with is not None and state.ended_with != (response, response.status_code):
        reopen(state.ledger, state.depth)
        end_with(response, state, limiter)


def end_failed(state: RequestState, limiter: RateLimiter) -> None:
    """Settle a request that has ended with an exception, and has no response."""
    if state.ledger.is_held:
        fail(state.ledger, state.depth)
        _finish(state, limiter)


def _finish(state: RequestState, limiter: RateLimiter) -> None:
    run(finish(state.ledger, limiter.store.place, state.depth), limiter)


def _watched(chunks: Iterable[Any], state: RequestState) -> Iterator[Any]:
    """Yield a stream, and take note of an exception in it."""
    try:
        yield from chunks
    except Exception:
        fail(state.ledger, state.depth)
        raise
    finally:
        getattr(chunks, "close", lambda: None)()
