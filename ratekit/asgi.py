"""A middleware for any ASGI application."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ratekit.admin.fleet_mode import follow
from ratekit.core.errors import RatekitError
from ratekit.core.headers import RawLine
from ratekit.core.modes import RateLimitMode
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter, shielded
from ratekit.stores.contract import AsyncStoreGiven
from ratekit.web.answers import ANSWERED, ErrorResponse, ResponseWriter
from ratekit.web.charging import ResponseHead, joined
from ratekit.web.decide import give_back, refusal_of, refuse
from ratekit.web.drivers import arun
from ratekit.web.fast_path import decide_request
from ratekit.web.identity import KeyFunction, body_too_long
from ratekit.web.ledger import Ledger, hold_slots
from ratekit.web.options import MiddlewareKeywords, MiddlewareOptions, RuleKeywords, split_arguments
from ratekit.web.requests import AsgiRequest, asgi_path, asgi_peer
from ratekit.web.settling import Usage, conclude, conclude_trailers, fail, finish
from ratekit.web.table import Rule

if TYPE_CHECKING:
    from ratekit.rules.reload import Rules, RulesGiven

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_OFF = RateLimitMode.OFF
_LIMITED = ("http", "websocket")
_STARTS = ("http.response.start", "websocket.http.response.start")
_BEFORE_START = ("http.response.early_hint", "http.response.push", "http.response.debug")
_BODIES = ("http.response.body", "http.response.pathsend", "http.response.zerocopysend")  # the last two by extensions
_TRAILERS = "http.response.trailers"
_DISCONNECTS = ("http.disconnect", "websocket.disconnect")
_SOCKET_STATUSES = {"websocket.accept": 101, "websocket.close": 403}  # what a client sees; a close after accept says no more


class RateLimitMiddleware:
    """Limits the requests of an ASGI application by a table of paths; see ratekit.web.options for the arguments.

    store, on_outage, deadline, instances and refusal_cache are those of AsyncRateLimiter; limiter brings one instead.
    fleet_mode follows the mode that the store has for every process: see ratekit.admin.fleet_mode.
    """

    options_class: type[MiddlewareOptions] = MiddlewareOptions
    route_of: Callable[[Any], str] | None = None  # names the route of a request, where a framework's middleware knows it

    def __init__(
        self,
        app: App,
        *,
        store: AsyncStoreGiven | None = None,
        limiter: AsyncRateLimiter | None = None,
        **keywords: Unpack[MiddlewareKeywords],
    ) -> None:
        self.app = app
        options, of_limiter, fleet_mode = split_arguments(keywords, type(self))
        self.limiter = limiter or AsyncRateLimiter(store, **of_limiter)
        if fleet_mode:
            follow(limiter if limiter is not None else store)
        self.options = self.options_class(self.limiter, route_of=self.route_of, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it in place of the application."""
        if scope["type"] not in _LIMITED:
            if scope["type"] == "lifespan":
                await self.limiter.warm()
            await self.app(scope, receive, send)
            return
        options = self.options
        mode = options.mode()
        rules = () if mode is _OFF else self._rules_of(scope) or options.without_rule
        if not rules:
            await self._answer(scope, receive, send, Ledger())
            return
        groups = options.known_groups(rules, asgi_peer(scope), mode)
        if groups is None:
            body = _Body(self.request(scope), receive)
            read = await arun(options.read(body.request, rules, mode, body.load), self.limiter)
            receive = body.receive
            if isinstance(read, ErrorResponse):
                await send_response(read, scope, receive, send)
                return
            groups = read
        ledger = Ledger.begun(scope, self)
        if groups:
            verdict = await decide_request(groups, ledger, options.writer, self.limiter, together=True)
            if verdict.response is not None:
                await send_response(verdict.response, scope, receive, send)
                return
        await self._answer(scope, receive, send, ledger)

    def _rules_of(self, scope: Scope) -> Sequence[Rule]:
        table = self.options.table
        if table is not None:
            return table.found[scope.get("method", "GET"), asgi_path(scope)]
        return self.options.rules.find(self.request(scope))

    def request(self, scope: Scope) -> AsgiRequest:
        """Return a request as key functions and rules see it."""
        return AsgiRequest(scope, self.options.proxies)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, ledger: Ledger) -> None:
        """Let the application answer a request, and answer what its own use of a limiter has raised."""
        depth = len(ledger.fronts)
        if ledger.is_held:
            hold_slots(ledger, self.limiter)
        sender = Sender(send, ledger, self.options.writer, self)
        try:
            try:
                await self.app(scope, sender.watching(receive) if ledger.is_held else receive, sender)
            except Exception as raised:
                if not sender.leaves(raised):
                    sender.fail()
                    raise
            if sender.error is not None:
                await send_response(await self._refusal(sender.error, ledger), scope, None, send)
        finally:
            if ledger.is_held:  # after the last byte, and even if the request is cancelled meanwhile
                await shielded(arun(finish(ledger, self.limiter.store.place, depth), self.limiter))

    async def _refusal(self, error: RatekitError, ledger: Ledger) -> ErrorResponse:
        """Return the response to an error that the application's own use of a limiter has raised."""
        await arun(refuse(ledger, self.limiter.store.place), self.limiter)
        return refusal_of(error, ledger, self.options.writer)

    async def give_back(self, ledger: Ledger) -> None:
        """Give back what was spent for a request that the application behind has refused by a limit of its own."""
        await arun(give_back(ledger, self.limiter.store.place), self.limiter)


class RuleMiddleware(RateLimitMiddleware):
    """Limits the requests of an ASGI application by a document of rules: see ratekit.rules.

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
        store: AsyncStoreGiven | None = None,
        limiter: AsyncRateLimiter | None = None,
        **keywords: Unpack[RuleKeywords],
    ) -> None:
        from ratekit.rules.options import DocumentOptions, as_rules

        self.options_class = DocumentOptions
        self.rules = as_rules(rules, service, functions, default, asks_plans=keywords.get("plan_of") is not None)
        super().__init__(app, store=store, limiter=limiter, rules=self.rules, **keywords)

    def _rules_of(self, scope: Scope) -> Sequence[Rule]:
        compiled = self.rules.compiled
        if compiled.is_by_path:
            return compiled.at(scope.get("method", "GET"), asgi_path(scope))
        return super()._rules_of(scope)


class _Body:
    """The body of a request, read for a key function that looks into it; receive still has it."""

    __slots__ = ("receive", "request")

    def __init__(self, request: AsgiRequest, receive: Receive) -> None:
        self.request = request
        self.receive = receive

    async def load(self, by: KeyFunction) -> None:
        """Read the body, no more than the key function may look into."""
        request = self.request
        if request.native["type"] != "http":
            return
        if request.is_longer_than(by.most_body):
            request.body_error = body_too_long(by)
            return
        request.body, self.receive = await read_body(self.receive, by.most_body)
        request.body_error = body_too_long(by) if request.body is None else None


def results_in(scope: Scope) -> list[RateLimitResult]:
    """Return what every front has decided about a request so far."""
    return Ledger.of(scope).results


def usage_in(scope: Scope) -> Usage:
    """Return what takes note of what a request has cost, for limits with an estimate."""
    return Usage(Ledger.of(scope))


class Sender:
    """The send of a request: writes the headers of what was decided, once, where the response starts."""

    __slots__ = ("_depth", "_front", "_ledger", "_send", "_writer", "error", "has_started", "is_over")

    def __init__(self, send: Send, ledger: Ledger, writer: ResponseWriter, front: Any = None) -> None:
        self._send = send
        self._ledger = ledger
        self._writer = writer
        self._front = front  # gives back what it has spent if a front behind it refuses
        self._depth = len(ledger.fronts)
        self.has_started = False
        self.is_over = False  # the last byte was sent, or the client has hung up; seen where something is held
        self.error: RatekitError | None = None  # of a limiter that the application has called, left to its front to answer

    def leaves(self, raised: BaseException | None) -> bool:
        """Whether the application has left it to its front to answer a limiter's error, and not begun to answer itself."""
        if self.error is None and not self.has_started and isinstance(raised, ANSWERED):
            self.error = raised
        return self.error is not None

    def __call__(self, message: Message) -> Awaitable[None]:
        """Send a message, but for the 500 that a framework makes of a limiter's error: Starlette does, before it raises."""
        ledger = self._ledger
        if message["type"] not in _STARTS:
            self.has_started = self.error is None and (self.has_started or message["type"] not in _BEFORE_START)
            if self.error is not None:
                return _nothing()
            return self._send_held(message) if ledger.is_held else self._send(message)
        status = message.get("status")
        if status == 500 and not self.has_started and self.leaves(sys.exc_info()[1]):
            return _nothing()
        self.has_started = True
        lines = message.get("headers", ())
        if ledger.is_held and not self.is_over:
            lines = _concluded(ledger, message, lines, self._depth)
        lines = ledger.write_headers(self._writer, lines, refused=status == 429)
        message = {**message, "headers": lines}  # some applications send the same one again
        if ledger.is_refused and self._front is not None:
            return self._send_after_giving_back(message)
        return self._send_held(message) if ledger.is_held else self._send(message)

    def fail(self) -> None:
        """Take note of an exception of the application.

        None of a client that has hung up, which frameworks raise too, nor of a background task: both have had the answer.
        """
        if not self.is_over:
            fail(self._ledger, self._depth)

    def watching(self, receive: Receive) -> Receive:
        """Return a receive that takes note of a client which hangs up."""

        async def receive_watching() -> Message:
            message = await receive()
            if message["type"] in _DISCONNECTS:
                self.is_over = True
            return message

        return receive_watching

    async def _send_held(self, message: Message) -> None:
        """Send a message of a request for which something is held, and see whether it is over with that."""
        kind = message["type"]
        if kind in _SOCKET_STATUSES:
            conclude(self._ledger, ResponseHead(_SOCKET_STATUSES[kind]), self._depth)
        if kind == _TRAILERS:
            message = {**message, "headers": _concluded(self._ledger, message, message.get("headers", ()), self._depth)}
        try:
            await self._send(message)
        except OSError:  # by which servers say that the client has hung up
            self.is_over = True
            raise
        if kind in _BODIES and not message.get("more_body"):
            self.is_over = True

    async def _send_after_giving_back(self, message: Message) -> None:
        await self._front.give_back(self._ledger)
        await self._send(message)


async def _nothing() -> None: ...


def _concluded(ledger: Ledger, message: Message, lines: Iterable[RawLine], depth: int) -> Iterable[RawLine]:
    """Take note of how a request has ended, and return the response's lines, or its trailers, without what is hidden."""
    lines = list(lines)
    headers = joined((name.decode("latin-1"), value.decode("latin-1")) for name, value in lines)
    if message["type"] == _TRAILERS:
        hidden = conclude_trailers(ledger, headers, depth)
    else:
        head = ResponseHead(message["status"], headers, has_trailers=bool(message.get("trailers")))
        hidden = conclude(ledger, head, depth)
    return [line for line in lines if line[0].decode("latin-1").lower() not in hidden] if hidden else lines


async def read_body(receive: Receive, most: int) -> tuple[bytes | None, Receive]:
    """Read a body of so many bytes at most, and return it with a receive that gives it to the application again.

    None in place of a body that is longer; what was read of it is not lost either.
    """
    chunks: list[bytes] = []
    messages: list[Message] = []
    size, more = 0, True
    while more and size <= most:
        message = await receive()
        messages.append(message)
        chunks.append(message.get("body", b""))
        size, more = size + len(chunks[-1]), message.get("more_body", False)
    messages.reverse()

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return b"".join(chunks) if size <= most else None, receive_again


async def send_response(response: ErrorResponse, scope: Scope, receive: Receive | None, send: Send) -> None:
    """Answer in place of the application. A WebSocket that is not yet open is denied like any other request.

    receive is None where the application has received the request to connect.
    """
    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    lines.append((b"content-length", str(len(response.body)).encode()))
    prefix = ""
    if scope["type"] == "websocket":
        if receive is not None:
            await receive()  # the request to connect
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008, "reason": "rate limit"})
            return
        prefix = "websocket."
    await send({"type": f"{prefix}http.response.start", "status": response.status, "headers": lines})
    await send({"type": f"{prefix}http.response.body", "body": response.body})
