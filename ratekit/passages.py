"""Requests of a kind that an ASGI front has decided before: decided by fewer steps, those of one turn in one go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ratekit.events import decisions
from ratekit.gathering import Gathering, Item
from ratekit.guard import Asked, Guard
from ratekit.limiter import AsyncRateLimiter
from ratekit.modes import RateLimitMode
from ratekit.outage import OnOutage, StoreOutage
from ratekit.protocol import Call, decode
from ratekit.requests import asgi_path
from ratekit.results import RateLimitResult
from ratekit.scopes import Scope, results_in, with_headers

_ON = RateLimitMode.ON


class Passages:
    """Decides what it is known how to decide: who is limited is the peer, and nothing but the store has a say in it.

    An item is a request's scope, its send, what came of it, and an error that is nobody's but ours. What came of it is the
    send for a request that passes, its headers made; False for a refusal; None if it takes more to tell.
    """

    def __init__(self, guard: Guard, limiter: AsyncRateLimiter) -> None:
        self._guard = guard
        self._limiter = limiter
        # Else an outage may be a refusal of another kind, or the limiter has more to do than to ask the store.
        self._is_usable = guard.is_by_peer and limiter.is_plain and limiter.on_outage is OnOutage.OPEN
        self.begin: Callable[[Item], Awaitable[None] | None] = self._ask
        if limiter.decides_at_once:
            self.begin = Gathering(self._settle).do

    def may_decide(self, mode: RateLimitMode) -> bool:
        """Whether there is a short way now: nobody is to be told of decisions in the request's own context."""
        return mode is _ON and self._is_usable and not decisions.listeners

    def _known_checks(self, scope: Scope) -> Sequence[Asked] | None:
        """Return what there is to check of a request, if that was found out for another one."""
        guard = self._guard
        path = asgi_path(scope) if scope.get("root_path") else scope["path"]
        rule, client = guard.rules.found[scope.get("method", "GET"), path], scope.get("client")
        if rule is None or rule.on_outage is not None:
            return None
        return guard.known_checks((rule, client[0] if client else None))

    def _settle(self, item: Item) -> None:
        """Decide a request in this process."""
        checks = self._known_checks(item[0])
        if checks is not None:
            results = results_in(item[0])
            self._leave(item, results, passes=self._decide(checks, results))

    def _decide(self, checks: Sequence[Asked], results: list[RateLimitResult]) -> bool:
        """Decide by one check after the other; whether the request passes."""
        for _, call in checks:
            result = self._limiter.decide_now(call)
            results.append(result)
            if not result.allowed:
                return False
        return True

    def _ask(self, item: Item) -> Awaitable[None] | None:
        """Let the store decide a request, if there is one thing to check."""
        checks = self._known_checks(item[0])
        if checks is None or len(checks) != 1:
            return None
        call = checks[0][1]
        try:
            return self._limiter.submit(call, partial(self._take, item, call))
        except StoreOutage as outage:
            self._take(item, call, outage)
            return None

    def _take(self, item: Item, call: Call, figures: Sequence[int] | StoreOutage) -> None:
        """Take what the store has said, or that it could not."""
        results = results_in(item[0])
        result = self._limiter.missed(call, figures.outage) if isinstance(figures, StoreOutage) else decode(call, figures)
        results.append(result)
        self._leave(item, results, passes=result.allowed)

    def _leave(self, item: Item, results: list[RateLimitResult], *, passes: bool) -> None:
        answers = self._guard.answers
        if passes:
            made = answers.raw_of(results[0]) if len(results) == 1 else answers.raw(results)
            item[2] = with_headers(item[1], results, answers, made)
        else:
            item[2] = False
