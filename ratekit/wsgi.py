"""A middleware for any WSGI application."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from ratekit import fleet
from ratekit.errors import RatekitError, UnusableRequestError
from ratekit.front import Answers, Check, Refusal, is_refused, refusal_of
from ratekit.guard import Asked, Guard
from ratekit.limiter import RateLimiter
from ratekit.modes import RateLimitMode
from ratekit.operations import DEADLINE
from ratekit.outage import OnOutage
from ratekit.requests import WsgiRequest
from ratekit.results import RateLimitResult
from ratekit.rules import Rule

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]
Release = Callable[[], Any]

RESULTS = "ratekit.results"  # in the environ: what every front has decided about the request so far


class RateLimitMiddleware:
    """Limits the requests of a WSGI application by a table of paths; see ratekit.guard.Guard for the arguments.

    store, on_outage, deadline, instances and refusal_cache are those of RateLimiter; limiter brings one instead.
    fleet_mode follows the mode that the store has for every process: see ratekit.fleet.
    """

    def __init__(
        self,
        app: App,
        *,
        store: Any = None,
        on_outage: str = OnOutage.OPEN,
        deadline: float = DEADLINE,
        instances: int | None = None,
        refusal_cache: bool = False,
        limiter: RateLimiter | None = None,
        fleet_mode: bool = False,
        **options: Any,
    ) -> None:
        self.app = app
        outage: dict[str, Any] = {"on_outage": on_outage, "deadline": deadline, "instances": instances}
        self.limiter = limiter or RateLimiter(store, refusal_cache=refusal_cache, **outage)
        if fleet_mode:
            fleet.follow(limiter if limiter is not None else store)
        self.guard = Guard(prefix=self.limiter.prefix, **options)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Pass a request on, or refuse it."""
        mode = self.guard.mode()
        request = WsgiRequest(environ, self.guard.proxies)
        rule = None if mode is RateLimitMode.OFF else self.guard.rule(request.method, request.path)
        if rule is None:
            return self.app(environ, start_response)
        held: list[Release] = []
        try:
            refusal = self._refusal(environ, request, rule, mode, held)
            if refusal is not None:
                return send_refusal(refusal, environ, start_response)
            body = self.app(environ, with_headers(start_response, environ, self.guard.answers))
            # From here on, who closes the response frees the slots.
            response, held = Response(body, held) if held else body, []
            return response
        finally:
            release_all(held)

    def _refusal(
        self, environ: Environ, request: WsgiRequest, rule: Rule, mode: RateLimitMode, held: list[Release]
    ) -> Refusal | None:
        try:
            if self.guard.by.looks_into_body(request):
                request.body = read_body(environ, self.guard.by.most_body)
                self.guard.check_body(request)
            known = self.guard.known_checks((rule, request.peer))
            limiter = self.limiter.with_on_outage(rule.on_outage)
            checks = self.guard.checks(request, rule) if known is None else known
            return self._decide(environ, limiter, checks, mode, held)
        except RatekitError as error:
            return refusal_of(error, mode)

    def _decide(
        self, environ: Environ, limiter: RateLimiter, checks: Sequence[Asked], mode: RateLimitMode, held: list[Release]
    ) -> Refusal | None:
        results: list[RateLimitResult] = environ.setdefault(RESULTS, [])
        for check, call in checks:
            result = hold_slot(limiter, check, mode, held) if check.policy.has_slots else limiter.decide(call, mode)
            results.append(result)
            if not result.allowed and is_refused(mode, check.endpoint, result):
                return self.guard.answers.refusal(results)
        return None


def hold_slot(limiter: RateLimiter, check: Check, mode: RateLimitMode, held: list[Release]) -> RateLimitResult:
    """Take a slot, and say how it is released: when the response has ended."""
    slot = limiter.new_slot()
    held.append(partial(limiter.release_quietly, check.policy, check.subject, slot, endpoint=check.endpoint))
    result = limiter.decide(check.call(limiter.prefix, slot), mode)
    if result.is_over_limit:
        held.pop()
    return result


def release_all(held: list[Release]) -> None:
    """Release slots, each once."""
    while held:
        held.pop()()


class Response:
    """The application's response, which frees slots when the server has closed it."""

    def __init__(self, body: Iterable[bytes], held: list[Release]) -> None:
        self._body = body
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Close the application's response, then free the slots."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            release_all(self._held)


def with_headers(start_response: StartResponse, environ: Environ, answers: Answers) -> StartResponse:
    """Return a start_response that writes the headers of what was decided about the request."""

    def start_with_headers(status: str, lines: list[tuple[str, str]], *more: Any) -> Any:
        added = answers.lines(environ.get(RESULTS, ()), refused=status.startswith("429"))
        names = {name.lower() for name in added}
        kept = [(name, value) for name, value in lines if name.lower() not in names]
        return start_response(status, kept + list(added.items()), *more)

    return start_with_headers


def read_body(environ: Environ, most: int) -> bytes | None:
    """Read a body of so many bytes at most, and put it back for the application; None in place of a longer one.

    A body without a length has an end only if the server says so.
    """
    length = environ.get("CONTENT_LENGTH") or ""
    if length and not length.isdecimal():
        raise UnusableRequestError(f"the length of the body is {length!r}, which is not a number")
    if not length and not environ.get("wsgi.input_terminated"):
        return b""
    if length and int(length) > most:
        return None
    source = environ["wsgi.input"]
    body: bytes = source.read(int(length) if length else most + 1)
    environ["wsgi.input"] = io.BytesIO(body) if len(body) <= most else Rest(body, source)
    return body if len(body) <= most else None


class Rest(io.RawIOBase):
    """What was read of a body that is too long, and then the rest of it."""

    def __init__(self, head: bytes, source: Any) -> None:
        self._head = io.BytesIO(head)
        self._source = source

    def read(self, size: int | None = -1) -> bytes:
        """Read so many bytes, or all."""
        if size is None or size < 0:
            return self._head.read() + bytes(self._source.read())
        head = self._head.read(size)
        return head if len(head) == size else head + bytes(self._source.read(size - len(head)))

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line, or so much of it."""
        line = self._head.readline() if size is None or size < 0 else self._head.readline(size)
        if line.endswith(b"\n") or (size is not None and len(line) == size):
            return line
        return line + bytes(self._source.readline() if size is None or size < 0 else self._source.readline(size - len(line)))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")


def send_refusal(refusal: Refusal, environ: Environ, start_response: StartResponse) -> list[bytes]:
    """Answer instead of the application."""
    lines = [*refusal.headers.items(), ("Content-Length", str(len(refusal.body)))]
    start_response(f"{refusal.status} {HTTPStatus(refusal.status).phrase}", lines)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [refusal.body]
