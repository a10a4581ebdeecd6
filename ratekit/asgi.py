"""A middleware for any ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ratekit import fleet, modes
from ratekit.errors import RatekitError
from ratekit.events import decisions
from ratekit.front import Check, Refusal, is_refused, refusal_of
from ratekit.gathering import Item
from ratekit.guard import Guard
from ratekit.limiter import AsyncRateLimiter
from ratekit.modes import RateLimitMode
from ratekit.operations import DEADLINE
from ratekit.outage import OnOutage
from ratekit.passages import Passages
from ratekit.requests import AsgiRequest, asgi_path, asgi_peer
from ratekit.results import RateLimitResult
from ratekit.rules import Rule
from ratekit.scopes import Message, Scope, Send, results_in, with_headers

Receive = Callable[[], Awaitable[Message]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Release = Callable[[], Awaitable[Any]]

_ON, _OFF = RateLimitMode.ON, RateLimitMode.OFF
_LIMITED = ("http", "websocket")


class RateLimitMiddleware:
    """Limits the requests of an ASGI application by a table of paths; see ratekit.guard.Guard for the arguments.

    store, on_outage, deadline, instances and refusal_cache are those of AsyncRateLimiter; limiter brings one instead.
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
        limiter: AsyncRateLimiter | None = None,
        fleet_mode: bool = False,
        **options: Any,
    ) -> None:
        self.app = app
        outage: dict[str, Any] = {"on_outage": on_outage, "deadline": deadline, "instances": instances}
        self.limiter = limiter or AsyncRateLimiter(store, refusal_cache=refusal_cache, **outage)
        if fleet_mode:
            fleet.follow(limiter if limiter is not None else store)
        self.guard = Guard(prefix=self.limiter.prefix, **options)
        self._passages = Passages(self.guard, self.limiter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in _LIMITED:
            if scope["type"] == "lifespan":
                await self.limiter.warm()
            await self.app(scope, receive, send)
            return
        passages = self._passages
        # In the request's own context it is told to who listens, and asked of sources of the mode that are not ours.
        if passages.is_usable and not decisions.listeners and (not modes.added or self.guard.mode() is _ON):
            item: Item = [scope, send, None, None]
            waiting = passages.begin(item)
            if waiting is not None:
                await waiting
            _, _, passing, bug = item
            if passing:
                await self.app(scope, receive, passing)
                return
            if passing is False:
                await send_refusal(self.guard.answers.refusal(results_in(scope)), scope, receive, send)
                return
            if bug is not None:
                raise bug[0].with_traceback(bug[1])  # as it was: others may have raised it too
        await self._limit(scope, receive, send)

    async def _limit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it, whatever it takes to tell."""
        mode = self.guard.mode()
        rule = None if mode is _OFF else self.guard.rule(scope.get("method", "GET"), asgi_path(scope))
        if rule is None:
            await self.app(scope, receive, send)
            return
        held: list[Release] = []
        try:
            refusal, receive = await self._decide(scope, receive, rule, mode, held)
            if refusal is None:
                await self.app(scope, receive, with_headers(send, results_in(scope), self.guard.answers))
            else:
                await send_refusal(refusal, scope, receive, send)
        finally:
            for release in held:
                await release()

    async def _decide(
        self, scope: Scope, receive: Receive, rule: Rule, mode: RateLimitMode, held: list[Release]
    ) -> tuple[Refusal | None, Receive]:
        """Return the refusal if there is one, and a receive that still has the body."""
        guard, limiter = self.guard, self.limiter.with_on_outage(rule.on_outage)
        try:
            checks = guard.known_checks((rule, asgi_peer(scope)))
            if checks is None:
                request = AsgiRequest(scope, guard.proxies)
                if scope["type"] == "http" and guard.by.looks_into_body(request):
                    request.body, receive = await read_body(receive, guard.by.most_body)
                    guard.check_body(request)
                checks = guard.checks(request, rule)
            results = results_in(scope)
            for check, call in checks:
                if check.policy.has_slots:
                    result = await hold_slot(limiter, check, mode, held)
                else:
                    result = await limiter.decide(call, mode)
                results.append(result)
                if not result.allowed and is_refused(mode, check.endpoint, result):
                    return guard.answers.refusal(results), receive
        except RatekitError as error:
            return refusal_of(error, mode), receive
        return None, receive


async def hold_slot(limiter: AsyncRateLimiter, check: Check, mode: RateLimitMode, held: list[Release]) -> RateLimitResult:
    """Take a slot, and say how it is released: when the response has ended."""
    slot = limiter.new_slot()
    held.append(partial(limiter.release_quietly, check.policy, check.subject, slot, endpoint=check.endpoint))
    result = await limiter.decide(check.call(limiter.prefix, slot), mode)
    if result.is_over_limit:
        held.pop()  # if it was cancelled, or failed, the slot may have been taken all the same
    return result


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


async def send_refusal(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer instead of the application. A WebSocket that is not yet open is denied like any other request."""
    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in refusal.headers.items()]
    lines.append((b"content-length", str(len(refusal.body)).encode()))
    prefix = ""
    if scope["type"] == "websocket":
        await receive()  # the request to connect
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008, "reason": "rate limit"})
            return
        prefix = "websocket."
    await send({"type": f"{prefix}http.response.start", "status": refusal.status, "headers": lines})
    await send({"type": f"{prefix}http.response.body", "body": refusal.body})
