"""What a front answers: the header lines of a decision, and the response in place of the application's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ratekit.core import headers
from ratekit.core.errors import (
    ConfigurationError,
    RatekitError,
    RateLimitExceeded,
    RateLimitUnavailable,
    UnknownLimitsError,
    UnusableRequestError,
    WrongTypeError,
)
from ratekit.core.figures import ADMITS, FIGURES, UNLIMITED
from ratekit.core.headers import RawLine
from ratekit.core.limits import Limit
from ratekit.core.modes import RateLimitMode
from ratekit.core.results import RateLimitResult

_log = logging.getLogger("ratekit.web")
_COUNTED = ADMITS | UNLIMITED
ANSWERED = (RateLimitExceeded, RateLimitUnavailable, UnusableRequestError)  # errors that have a response
_BUGS = (WrongTypeError, UnknownLimitsError)  # of the application: a 500 where they are enforced
BodyFunction = Callable[[RateLimitResult], Any]


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """A response in place of the application's own: a 429, a 503 or another 4xx."""

    status: int
    headers: dict[str, str]
    body: bytes


class ResponseWriter:
    """Writes header lines in the styles of a front, and the body of a 429."""

    def __init__(self, styles: str | Iterable[str] = headers.DEFAULT_STYLE, body: BodyFunction | None = None) -> None:
        if not isinstance(styles, Iterable):
            raise ConfigurationError(f"headers {styles!r} is neither the name of a style nor several")
        given = [styles] if isinstance(styles, str) else list(styles)
        self._style = headers.combined([headers.check_style(style) for style in given])
        self._window_names = self._style.window_names
        self._shortest = min(map(len, self._style.names), default=0)  # name
        if body is not None and not callable(body):
            raise ConfigurationError(f"body {body!r} is not a callable of the result")
        self._body = body

    @property
    def header_names(self) -> Sequence[str]:
        """The names of the header lines, in the styles of the front."""
        return self._style.names

    @property
    def has_own_body(self) -> bool:
        """Whether the application makes the body of a 429."""
        return self._body is not None

    def lines(self, results: Sequence[RateLimitResult], *, refused: bool) -> dict[str, str]:
        """Return the header lines of a response. Retry-After is for refusals only, not for what monitoring let pass."""
        result = headers.shown(results)
        if result is None:
            return {}
        lines = self._style.lines(result)
        return lines | headers.retry_after(result) if refused and lines else lines

    def write(self, lines: Any, results: Sequence[RateLimitResult], *, status: int) -> None:
        """Write the header lines of what was decided on a framework's response, and keep caches from storing a 429.

        lines are the response's own, by name: a mapping that knows names in any case.
        """
        if not results:
            return
        refused = status == 429
        for name, value in self.lines(results, refused=refused).items():
            lines[name] = value
        if refused:
            lines.setdefault("Cache-Control", "no-store")

    def raw_lines(self, results: Sequence[RateLimitResult]) -> list[RawLine]:
        """Return the header lines of a response that is no refusal, as ASGI has them."""
        result = headers.shown(results)
        return [] if result is None else self._style.raw_lines(result)

    def window_lines(self, limits: Sequence[Limit], figures: Sequence[int]) -> list[RawLine] | None:
        """Return what `raw_lines` does for most answers of a store, fast: for one limit that admits, in the usual style."""
        if len(figures) != FIGURES or not self._window_names or limits[0].shadow:
            return None
        flags, most, _, remaining, _, reset_us = figures
        if flags & _COUNTED != ADMITS:
            return None
        limit_name, remaining_name, reset_name = self._window_names
        seconds = -(-reset_us // 1_000_000)
        return [(limit_name, b"%d" % most), (remaining_name, b"%d" % remaining), (reset_name, b"%d" % seconds)]

    def replaced(self, lines: Iterable[RawLine], added: list[RawLine]) -> list[RawLine]:
        """Return the lines of a response that is no refusal, with ratekit's in place of any of the same names."""
        kept = [*lines]
        for name, _ in kept:
            if len(name) >= self._shortest:  # it may be one of ratekit's
                return _replaced(kept, added)
        return kept + added

    def written(self, lines: Iterable[RawLine], results: Sequence[RateLimitResult], *, refused: bool) -> list[RawLine]:
        """Return a response's lines with the header lines of what was decided."""
        if not refused:
            return self.replaced(lines, self.raw_lines(results))
        added = self.lines(results, refused=True)
        return _replaced(lines, [(name.lower().encode(), value.encode()) for name, value in added.items()])

    def refusal(self, results: Sequence[RateLimitResult]) -> ErrorResponse:
        """Return the 429 for results of which at least one refuses."""
        strictest = headers.most_restrictive([result for result in results if result.is_over_limit])
        kind, body = self._encoded(strictest)
        lines = self.lines(results, refused=True) | headers.retry_after(strictest)
        return ErrorResponse(429, lines | {"Content-Type": kind, "Cache-Control": "no-store"}, body)

    def _encoded(self, result: RateLimitResult) -> tuple[str, bytes]:
        if self._body is None:
            return headers.PROBLEM_TYPE, _json(headers.problem(result))
        body = self._body(result)
        if isinstance(body, bytes | str):
            return "text/plain; charset=utf-8", body.encode() if isinstance(body, str) else body
        return "application/json", _json(body)


def _replaced(lines: Iterable[RawLine], added: list[RawLine]) -> list[RawLine]:
    names = {name for name, _ in added}
    return [line for line in lines if line[0].lower() not in names] + added


def unavailable(error: RateLimitUnavailable) -> ErrorResponse:
    """Return the 503 of a limiter that refuses while the store is away."""
    lines = {"Retry-After": str(headers.whole_seconds(error.retry_after)), "Cache-Control": "no-store"}
    reason = error.reason.partition(":")[0]  # one word: clients do not learn where the store is
    return ErrorResponse(503, lines | {"Content-Type": headers.PROBLEM_TYPE}, _json(headers.unavailable_problem(reason)))


def unusable(error: UnusableRequestError) -> ErrorResponse:
    """Return the 4xx for a request that lacks what a limit needs to know."""
    body = {
        "type": "about:blank",
        "title": "The rate limit cannot be applied",
        "status": error.status,
        "detail": error.detail,
    }
    return ErrorResponse(error.status, {"Content-Type": headers.PROBLEM_TYPE, "Cache-Control": "no-store"}, _json(body))


def error_response(error: RatekitError, mode: RateLimitMode) -> ErrorResponse | None:
    """Return the response to a request that could not be decided; None, and a log line, where nothing is enforced.

    Raises any other error: it is a bug or a fault of configuration.
    """
    if not isinstance(error, (UnusableRequestError, RateLimitUnavailable, *_BUGS)):
        raise error
    if mode is not RateLimitMode.ON:
        _log.warning("a request passes that could not be limited: %s", error)
        return None
    if isinstance(error, _BUGS):
        raise error
    return unavailable(error) if isinstance(error, RateLimitUnavailable) else unusable(error)


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
