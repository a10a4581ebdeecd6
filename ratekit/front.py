"""What every front does the same way: apply the mode, choose the headers, answer a refusal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ratekit import headers
from ratekit.errors import ConfigurationError, RatekitError, RateLimitUnavailable, UnusableRequestError
from ratekit.headers import RawLine
from ratekit.limits import MOST_REQUESTS, Policy
from ratekit.modes import RateLimitMode, as_mode, get_rate_limit_mode, weakest
from ratekit.protocol import Call, Operation, encode
from ratekit.results import RateLimitResult
from ratekit.tracing import tag_over_limit

_log = logging.getLogger("ratekit.front")
BodyFunction = Callable[[RateLimitResult], Any]


class Check(NamedTuple):
    """One thing to decide about a request: who spends how much of what, and the call that asks for it."""

    policy: Policy
    endpoint: str
    subject: str
    cost: int = 1

    def call(self, prefix: str, slot: str | None = None) -> Call:
        """Make the call that decides it, by taking a slot if there is one."""
        if slot is None:
            return encode(self.policy, self.subject, self.endpoint, prefix, Operation.CHECK, self.cost)
        return encode(self.policy, self.subject, self.endpoint, prefix, Operation.ACQUIRE, slot=slot)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer instead of the application's."""

    status: int
    headers: dict[str, str]
    body: bytes


def current_mode(own: RateLimitMode | None = None) -> RateLimitMode:
    """Return the mode of a limiter now: the weaker of the global one and its own."""
    mode = get_rate_limit_mode()
    return mode if own is None else weakest(mode, own)


def mode_reader(own: RateLimitMode | None) -> Callable[[], RateLimitMode]:
    """Return what tells the mode of a limiter, each time it is asked."""
    return get_rate_limit_mode if own is None else partial(current_mode, own)


def is_refused(mode: RateLimitMode, endpoint: str, result: RateLimitResult) -> bool:
    """Whether a result refuses its request in a mode. Marks the trace where monitoring lets it pass."""
    if result.allowed or mode is RateLimitMode.OFF:
        return False
    if mode is RateLimitMode.MONITOR:
        tag_over_limit(endpoint)
        return False
    return True


class Answers:
    """How a front answers: the styles of its headers, and the body of a 429."""

    def __init__(self, styles: str | Iterable[str] = headers.DEFAULT_STYLE, body: BodyFunction | None = None) -> None:
        if not isinstance(styles, Iterable):
            raise ConfigurationError(f"headers {styles!r} is neither the name of a style nor several")
        given = [styles] if isinstance(styles, str) else list(styles)
        self._style = headers.combined([headers.check_style(style) for style in given])
        self._raw_of = self._style.raw()  # the header lines of one result on an answer that is no refusal, as ASGI has them
        self.plain_of = self._style.plain()  # the same by the figures of an only limit, no shadow, if it admits
        self._raw_names = frozenset(name.lower().encode() for name in self._style.names)
        self.shortest = min(map(len, self._raw_names), default=0)  # of the names: a shorter line is none of these
        if body is not None and not callable(body):
            raise ConfigurationError(f"body {body!r} is not a callable of the result")
        self._body = body

    def lines(self, results: Sequence[RateLimitResult], *, refused: bool) -> dict[str, str]:
        """Return the headers of an answer. Retry-After stands on a refusal only, not where monitoring let it pass."""
        result = headers.told(results)
        if result is None:
            return {}
        lines = self._style.lines(result)
        return lines | headers.retry_after(result) if refused and lines else lines

    def written(
        self, lines: Iterable[RawLine], results: Sequence[RateLimitResult], *, refused: bool = False
    ) -> list[RawLine]:
        """Return the lines of an answer as ASGI has them, with its headers in place of those of the same names."""
        if not refused:
            return self.replaced(lines, self.raw(results))
        told = self.lines(results, refused=True)
        added = [(name.lower().encode(), value.encode()) for name, value in told.items()]
        return _replaced(lines, added, frozenset(name for name, _ in added))

    def raw(self, results: Sequence[RateLimitResult]) -> list[RawLine]:
        """Return those of several results: of the one that is told."""
        result = results[0] if len(results) == 1 else headers.told(results)
        return [] if result is None else self.plain(result) or self._raw_of(result)

    def plain(self, result: RateLimitResult) -> list[RawLine] | None:
        """Return those of a request that passes by the word of its only limit, fast; None if there is more to look at."""
        return None if result.degraded is not None or result.limits[0].shadow else self.plain_of(result.figures)

    def replaced(self, lines: Iterable[RawLine], added: list[RawLine]) -> list[RawLine]:
        """Return lines with those that were made for them in place of any of the same names."""
        kept, names = [*lines], self._raw_names
        for name, _ in kept:
            if name.lower() in names:
                return _replaced(kept, added, names) if added else kept
        return kept + added

    def refusal(self, results: Sequence[RateLimitResult]) -> Refusal:
        """Return the 429 for results of which at least one refuses."""
        strictest = headers.most_restrictive([result for result in results if result.is_over_limit])
        kind, body = self._encoded(strictest)
        lines = self.lines(results, refused=True) | headers.retry_after(strictest)
        return Refusal(429, lines | {"Content-Type": kind, "Cache-Control": "no-store"}, body)

    def _encoded(self, result: RateLimitResult) -> tuple[str, bytes]:
        if self._body is None:
            return headers.PROBLEM_TYPE, _json(headers.problem(result))
        body = self._body(result)
        if isinstance(body, bytes | str):
            return "text/plain; charset=utf-8", body.encode() if isinstance(body, str) else body
        return "application/json", _json(body)


def _replaced(lines: Iterable[RawLine], added: list[RawLine], names: frozenset[bytes]) -> list[RawLine]:
    return [line for line in lines if line[0].lower() not in names] + added


def unavailable(error: RateLimitUnavailable) -> Refusal:
    """Return the 503 for a limiter that refuses while the store cannot tell."""
    lines = {"Retry-After": str(headers.whole_seconds(error.retry_after)), "Cache-Control": "no-store"}
    reason = error.reason.partition(":")[0]  # one word: where the store is, is nobody's business
    return Refusal(503, lines | {"Content-Type": headers.PROBLEM_TYPE}, _json(headers.unavailable_problem(reason)))


def unusable(error: UnusableRequestError) -> Refusal:
    """Return the 4xx for a request that does not say what a limit needs to know."""
    body = {
        "type": "about:blank",
        "title": "The rate limit cannot be applied",
        "status": error.status,
        "detail": error.detail,
    }
    return Refusal(error.status, {"Content-Type": headers.PROBLEM_TYPE, "Cache-Control": "no-store"}, _json(body))


def refusal_of(error: RatekitError, mode: RateLimitMode) -> Refusal | None:
    """Return the answer to a request that could not be decided; None, and a line in the log, where nothing is enforced."""
    if not isinstance(error, UnusableRequestError | RateLimitUnavailable):
        raise error
    if mode is not RateLimitMode.ON:
        _log.warning("a request passes that could not be limited: %s", error)
        return None
    return unavailable(error) if isinstance(error, RateLimitUnavailable) else unusable(error)


def checked_mode(mode: str | RateLimitMode | None) -> RateLimitMode | None:
    """Return a limiter's own mode, if it has one; and read the global one, so that a wrong one is told at start."""
    get_rate_limit_mode()
    return None if mode is None else as_mode(mode)


def cost_of(cost: int | Callable[[Any], int], request: Any) -> int:
    """Return what a request costs; a cost that makes no sense refuses the request, since it cannot be counted."""
    try:
        value = cost(request) if callable(cost) else cost
    except ValueError as error:
        raise UnusableRequestError(f"what the request costs cannot be told: {error}") from None
    if type(value) is not int or not 0 <= value <= MOST_REQUESTS:
        raise UnusableRequestError(f"the cost of the request is {value!r}, not a whole number of 0 to {MOST_REQUESTS}")
    return value


def checked_cost(cost: int | Callable[[Any], int]) -> int | Callable[[Any], int]:
    """Return a cost as it was given, or raise ConfigurationError if it is neither a number nor a callable."""
    if not callable(cost) and (type(cost) is not int or not 0 <= cost <= MOST_REQUESTS):
        raise ConfigurationError(f"cost {cost!r} is neither a whole number of 0 or more nor a callable of the request")
    return cost


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
