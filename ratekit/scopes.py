"""What fronts leave in the scope of an ASGI request: what they have decided about it, and the headers that tell of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
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
_LINES = "ratekit.lines"  # the header lines of the results, if they are made already: by which answers, and of how many
_STARTS = ("http.response.start", "websocket.http.response.start")


def results_in(scope: Scope) -> list[RateLimitResult]:
    """Return what every front has decided about a request so far."""
    results: list[RateLimitResult] = scope.setdefault(_RESULTS, [])
    return results


def can_settle(limiter: AsyncRateLimiter, mode: RateLimitMode) -> bool:
    """Whether `settle` can decide a request: with nothing to await, and nobody to be told in the request's own context."""
    return mode is RateLimitMode.ON and limiter.decides_at_once and not decisions.listeners


def settle(scope: Scope, limiter: AsyncRateLimiter, checks: Iterable[tuple[object, Call]], answers: Answers) -> bool:
    """Decide a request by one call after the other; whether it passes. The headers of one that does are made here too."""
    results: list[RateLimitResult] = scope.setdefault(_RESULTS, [])
    decide = limiter.decide_now
    for _, call in checks:
        result = decide(call)
        results.append(result)
        if not result.allowed:
            return False
    scope[_LINES] = answers, len(results), answers.raw(results)
    return True


def with_lines(lines: Iterable[RawLine], scope: Scope, answers: Answers, status: int = 200) -> list[RawLine]:
    """Return the header lines of an answer with those of what was decided, in place of any of the same names."""
    results: Sequence[RateLimitResult] = scope.get(_RESULTS, ())
    made: tuple[Answers, int, list[RawLine]] | None = scope.get(_LINES)
    if made is not None and made[0] is answers and made[1] == len(results):
        return answers.replaced(lines, made[2])
    return answers.written(lines, results, refused=status == 429)


def with_headers(send: Send, scope: Scope, answers: Answers) -> Send:
    """Return a send that writes the headers of what was decided about the request, once, where the response starts."""

    def send_with_headers(message: Message) -> Awaitable[None]:
        if message["type"] in _STARTS:
            lines = with_lines(message.get("headers", ()), scope, answers, message["status"])
            message = {**message, "headers": lines}
        return send(message)

    return send_with_headers
