"""A middleware for any WSGI application."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Unpack

from ratekit.admin.fleet_mode import follow
from ratekit.core.errors import RatekitError, UnusableRequestError
from ratekit.core.modes import RateLimitMode
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import RateLimiter
from ratekit.stores.contract import StoreGiven
from ratekit.web.answers import ANSWERED, ErrorResponse
from ratekit.web.charging import ResponseHead, joined
from ratekit.web.decide import decide, give_back, refusal_of, refuse
from ratekit.web.drivers import run
from ratekit.web.identity import KeyFunction, body_too_long
from ratekit.web.ledger import Ledger, hold_slots, releases_of
from ratekit.web.options import MiddlewareKeywords, MiddlewareOptions, RuleKeywords, split_arguments
from ratekit.web.requests import MOST_DIGITS, WsgiRequest
from ratekit.web.settling import Usage, conclude, fail, finish, reopen
from ratekit.web.steps import Verdict
from ratekit.web.table import Rule

if TYPE_CHECKING:
    from ratekit.rules.reload import Rules, RulesGiven

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class RateLimitMiddleware:
    """Limits the requests of a WSGI application by a table of paths; see ratekit.web.options for the arguments.

    store, on_outage, deadline, instances and refusal_cache are those of RateLimiter; limiter brings one instead.
    fleet_mode follows the mode that the store has for every process: see ratekit.admin.fleet_mode.
    """

    options_class: type[MiddlewareOptions] = MiddlewareOptions

    def __init__(
        self,
        app: App,
        *,
        store: StoreGiven | None = None,
        limiter: RateLimiter | None = None,
        **keywords: Unpack[MiddlewareKeywords],
    ) -> None:
        self.app = app
        options, of_limiter, fleet_mode = split_arguments(keywords, type(self))
        self.limiter = limiter or RateLimiter(store, **of_limiter)
        if fleet_mode:
            follow(limiter if limiter is not None else store)
        self.options = self.options_class(self.limiter, **options)
        _answer_errors_of(app, self.answer)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Pass a request on, or answer it in place of the application."""
        mode = self.options.mode()
        request = WsgiRequest(environ, self.options.proxies)
        rules = () if mode is RateLimitMode.OFF else self.options.rules.find(request) or self.options.without_rule
        if not rules:
            return self._pass_on(environ, start_response, Ledger())
        ledger = Ledger.begun(environ, self)
        verdict = self._decide(request, rules, mode, ledger)
        if verdict.response is not None:
            return send_response(verdict.response, environ, start_response)
        return self._pass_on(environ, start_response, ledger)

    def _decide(self, request: WsgiRequest, rules: Sequence[Rule], mode: RateLimitMode, ledger: Ledger) -> Verdict:
        groups = self.options.known_groups(rules, request.peer, mode)
        if groups is None:
            load = partial(_load_body, request)
            read = run(self.options.read(request, rules, mode, load), self.limiter)
            if isinstance(read, ErrorResponse):
                return Verdict(read)
            groups = read
        try:
            return run(decide(groups, ledger, self.options.writer, self.limiter.store.place), self.limiter)
        except BaseException:
            if calls := releases_of(groups):
                self.limiter.give_back(calls)
            raise

    def _pass_on(self, environ: Environ, start_response: StartResponse, ledger: Ledger) -> Iterable[bytes]:
        depth = len(ledger.fronts)
        failed, finished = partial(fail, ledger, depth), partial(self._finish, ledger, depth)
        if ledger.is_held:
            hold_slots(ledger, self.limiter)
        starter = Starter(start_response, ledger, self, depth)
        try:
            body = self.app(environ, starter)
        except ANSWERED as error:
            if starter.has_started:
                failed()
                finished()
                raise
            return self.answer(error)(environ, start_response)
        except BaseException as error:
            if isinstance(error, Exception):
                failed()
            finished()
            raise
        # From here on, the server closes the response, and that ends what is held for the request.
        return Response(body, failed, finished) if ledger.is_held else body

    def answer(self, error: RatekitError) -> App:
        """Return a WSGI application that answers the error of a limiter which the application has called itself."""

        def answering(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            ledger = Ledger.of(environ)
            run(refuse(ledger, self.limiter.store.place), self.limiter)
            return send_response(refusal_of(error, ledger, self.options.writer), environ, start_response)

        return answering

    def give_back(self, ledger: Ledger) -> None:
        """Give back what was spent for a request that the application behind has refused by a limit of its own."""
        run(give_back(ledger, self.limiter.store.place), self.limiter)

    def _finish(self, ledger: Ledger, depth: int) -> None:
        if ledger.is_held:
            run(finish(ledger, self.limiter.store.place, depth), self.limiter)


class RuleMiddleware(RateLimitMiddleware):
    """Limits the requests of a WSGI application by a document of rules: see ratekit.rules.

    rules is a path, the URL of a source, a source, a document, or Rules. service, functions and default are those of Rules.
    by is who is limited where the document does not say, and plan_of names the plan where its limits are "plan". The other
    arguments are those of RateLimitMiddleware.
    """

    def __init__(
        self,
        app: App,
        *,
        rules: RulesGiven | Rules,
        service: str | None = None,
        functions: Collection[str] = (),
        default: RulesGiven | None = None,
        store: StoreGiven | None = None,
        limiter: RateLimiter | None = None,
        **keywords: Unpack[RuleKeywords],
    ) -> None:
        from ratekit.rules.options import DocumentOptions, as_rules

        self.options_class = DocumentOptions
        self.rules = as_rules(rules, service, functions, default, asks_plans=keywords.get("plan_of") is not None)
        super().__init__(app, store=store, limiter=limiter, rules=self.rules, **keywords)


def _answer_errors_of(app: Any, answer: Callable[[RatekitError], App]) -> None:
    """Let Flask, which answers every error itself, answer those of limiters as the front does. Its own handlers are kept.

    Flask takes a WSGI application for a response. It refuses new handlers once it has served a request.
    """
    flask = getattr(app, "__self__", app)  # app.wsgi_app is a method
    register, handlers = getattr(flask, "register_error_handler", None), getattr(flask, "error_handler_spec", None)
    if register is None or handlers is None:
        return
    own = handlers[None][None]  # of the application as a whole, and not of a status
    for kind in ANSWERED:
        if kind not in own:
            with suppress(AssertionError):
                register(kind, answer)


def _load_body(request: WsgiRequest, by: KeyFunction) -> None:
    """Read the body of a request for a key function that looks into it."""
    try:
        request.body = read_body(request.native, by.most_body)
        request.body_error = body_too_long(by) if request.body is None else None
    except UnusableRequestError as error:
        request.body_error = error


def results_in(environ: Environ) -> list[RateLimitResult]:
    """Return what every front has decided about a request so far."""
    return Ledger.of(environ).results


def usage_in(environ: Environ) -> Usage:
    """Return what takes note of what a request has cost, for limits with an estimate."""
    return Usage(Ledger.of(environ))


class Response:
    """The application's response. What is held for the request ends when the server has closed it, after the last byte."""

    def __init__(self, body: Iterable[bytes], fail: Callable[[], None], finish: Callable[[], None]) -> None:
        self._body = body
        self._fail = fail
        self._finish = finish

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except Exception:
            self._fail()
            raise

    def close(self) -> None:
        """Close the application's response, then end what is held for the request."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._finish()


class Starter:
    """The start_response of a request: writes the headers of what was decided."""

    def __init__(self, start_response: StartResponse, ledger: Ledger, front: RateLimitMiddleware, depth: int) -> None:
        self._start_response = start_response
        self._ledger = ledger
        self._front = front
        self._depth = depth
        self.has_started = False

    def __call__(self, status: str, lines: list[tuple[str, str]], *more: Any) -> Any:
        """Start the response. The 500 that stands for a limiter's error is not sent: the error goes on to the front."""
        error = (more[0] if more and more[0] else sys.exc_info())[1]
        if status.startswith("500") and isinstance(error, ANSWERED) and not self.has_started:
            raise error
        if self._ledger.is_held:
            if self.has_started:  # an error handler starts another response, in place of what was not sent yet
                reopen(self._ledger, self._depth)
            lines = _concluded(self._ledger, status, lines, self._depth)
        self.has_started = True
        added = self._front.options.writer.lines(self._ledger.results, refused=status.startswith("429"))
        names = {name.lower() for name in added}
        kept = [(name, value) for name, value in lines if name.lower() not in names]
        if self._ledger.is_refused:
            self._front.give_back(self._ledger)
        return self._start_response(status, kept + list(added.items()), *more)


def _concluded(ledger: Ledger, status: str, lines: list[tuple[str, str]], depth: int) -> list[tuple[str, str]]:
    """Take note of how a request has ended, and return the response's lines without those that are hidden."""
    hidden = conclude(ledger, ResponseHead(int(status[:3]), joined(lines)), depth)
    return [line for line in lines if line[0].lower() not in hidden]


def read_body(environ: Environ, most: int) -> bytes | None:
    """Read a body of so many bytes at most, and put it back for the application; None in place of a longer one.

    A body without a length has an end only if the server says so. One that the server cannot read is a 400: its
    chunks may be malformed.
    """
    length = environ.get("CONTENT_LENGTH") or ""
    if length and not length.isdecimal():
        raise UnusableRequestError("the length of the body is not a number")
    if not length and not environ.get("wsgi.input_terminated"):
        return b""
    if length and (len(length) > MOST_DIGITS or int(length) > most):
        return None
    source = environ["wsgi.input"]
    try:
        body: bytes = source.read(int(length) if length else most + 1)
    except OSError:
        raise UnusableRequestError("the body cannot be read") from None
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


def send_response(response: ErrorResponse, environ: Environ, start_response: StartResponse) -> list[bytes]:
    """Answer in place of the application."""
    lines = [*response.headers.items(), ("Content-Length", str(len(response.body)))]
    start_response(f"{response.status} {HTTPStatus(response.status).phrase}", lines)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]
