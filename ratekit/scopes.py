"""What fronts leave in the scope of an ASGI request: what they have decided about it, and the headers that tell of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from ratekit.front import Answers
from ratekit.headers import RawLine
from ratekit.protocol import Call, decode
from ratekit.results import RateLimitResult

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Results = list[Any]  # of RateLimitResult; the first may be what decode makes one of

RESULTS = "ratekit.results"  # in a scope; read by results_in
_STARTS = ("http.response.start", "websocket.http.response.start")


def results_in(scope: Scope) -> list[RateLimitResult]:
    """Return what every front has decided about a request so far: a list to append to."""
    return _decoded(scope.setdefault(RESULTS, []))


def leave_first(scope: Scope, call: Call, figures: Sequence[int], decided_at: float) -> Results:
    """Leave what the first front has decided about a request: of most, nobody wants to know more than the headers."""
    scope[RESULTS] = results = [(call, figures, None, decided_at)]
    return results


def _decoded(results: Results) -> list[RateLimitResult]:
    if results and type(results[0]) is tuple:
        results[0] = decode(*results[0])
    return results


def with_headers(send: Send, results: Results, answers: Answers, made: list[RawLine] | None = None) -> Send:
    """Return a send that writes the headers of what was decided about the request, once, where the response starts.

    made are the lines of the only result so far, if somebody has made them; what is decided later needs others.
    """
    return partial(_send_with_headers, send, results, answers, made)


def _send_with_headers(
    send: Send, results: Results, answers: Answers, made: list[RawLine] | None, message: Message
) -> Awaitable[None]:
    if message["type"] in _STARTS:
        lines, status = [*message.get("headers", ())], message["status"]
        if made is None or status == 429 or len(results) != 1:
            lines = answers.written(lines, _decoded(results), refused=status == 429)
        else:
            shortest = answers.shortest
            for name, _ in lines:
                if len(name) >= shortest:
                    lines = answers.replaced(lines, made)
                    break
            else:
                lines += made
        message = {**message, "headers": lines}  # some applications send the same one again
    return send(message)
