"""What fronts leave in the scope of an ASGI request: what they have decided about it, and the headers that tell of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from ratekit.events import decisions
from ratekit.front import Answers
from ratekit.headers import RawLine
from ratekit.limiter import AsyncRateLimiter
from ratekit.modes import RateLimitMode
from ratekit.protocol import Call
from ratekit.results import RateLimitResult

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

_RESULTS = "ratekit.results"
_STARTS = ("http.response.start", "websocket.http.response.start")


def results_in(scope: Scope) -> list[RateLimitResult]:
    """Return what every front has decided about a request so far: a list to append to."""
    results: list[RateLimitResult] | None = scope.get(_RESULTS)
    if results is None:
        results = scope[_RESULTS] = []
    return results


def can_settle(limiter: AsyncRateLimiter, mode: RateLimitMode) -> bool:
    """Whether `settle` can decide a request: with nothing to await, and nobody to be told in the request's own context."""
    return mode is RateLimitMode.ON and limiter.decides_at_once and not decisions.listeners


def settle(results: list[RateLimitResult], limiter: AsyncRateLimiter, checks: Iterable[tuple[object, Call]]) -> bool:
    """Decide a request by one call after the other; whether it passes."""
    for _, call in checks:
        result = limiter.decide_now(call)
        results.append(result)
        if not result.allowed:
            return False
    return True


def with_headers(send: Send, results: list[RateLimitResult], answers: Answers, made: list[RawLine] | None = None) -> Send:
    """Return a send that writes the headers of what was decided about the request, once, where the response starts.

    made are the lines of the results so far, if somebody has made them; what is decided later needs others.
    """
    count = len(results)

    def send_with_headers(message: Message) -> Awaitable[None]:
        if message["type"] in _STARTS:
            lines, status = message.get("headers", ()), message["status"]
            if made is None or status == 429 or len(results) != count:
                lines = answers.written(lines, results, refused=status == 429)
            else:
                lines = answers.replaced(lines, made)
            message = {**message, "headers": lines}  # some applications send the same one again
        return send(message)

    return send_with_headers
