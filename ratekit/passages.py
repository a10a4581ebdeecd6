"""Requests of a kind that an ASGI front has decided before: decided by fewer steps, those of one turn in one go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ratekit import clock
from ratekit.gathering import Gathering, Item
from ratekit.guard import Asked, Guard
from ratekit.limiter import AsyncRateLimiter
from ratekit.modes import RateLimitMode
from ratekit.outage import OnOutage, StoreOutage
from ratekit.protocol import decode
from ratekit.requests import asgi_path
from ratekit.results import RateLimitResult
from ratekit.scopes import RESULTS, leave_first, results_in, with_headers

_ON = RateLimitMode.ON
Figures = Sequence[int]
Known = tuple[Item, Sequence[Asked]]  # a request, and what there is to check of it: at least one thing


class Passages:
    """Decides what it is known how to decide: who is limited is the peer, and nothing but the store has a say in it.

    An item is a request's scope, its send, what came of it, and an error that is nobody's but ours. What came of it is the
    send for a request that passes, its headers made; False for a refusal; None if it takes more to tell.
    """

    def __init__(self, guard: Guard, limiter: AsyncRateLimiter) -> None:
        self._guard = guard
        self._limiter = limiter
        # Else an outage may be a refusal of another kind, or the limiter has more to do than to ask the store.
        self.is_usable = guard.is_by_peer and limiter.is_plain and limiter.on_outage is OnOutage.OPEN
        self.begin: Callable[[Item], Awaitable[None] | None] = self._ask
        if limiter.decides_at_once:
            self.begin = Gathering(self._settle).do

    def _known(self, items: Sequence[Item]) -> list[Known]:
        """Return the requests of which it was found out for others what there is to check, if limits are enforced now."""
        if self._guard.mode() is not _ON:
            return []
        rules, checks_of, known = self._guard.rules.found, self._guard.known_checks, []
        for item in items:
            scope = item[0]
            try:
                path = asgi_path(scope) if scope.get("root_path") else scope["path"]
                rule, client = rules[scope.get("method", "GET"), path], scope.get("client")
                if rule is not None and rule.on_outage is None:
                    checks = checks_of((rule, client[0] if client else None))
                    if checks:
                        known.append((item, checks))
            except (LookupError, TypeError):
                continue  # a scope that lacks something: that is told on the long way, and is nothing to the others
        return known

    def _settle(self, items: Sequence[Item]) -> None:
        """Decide requests in this process."""
        known = self._known(items)
        self._leave(known, self._limiter.ask_each([checks[0][1] for _, checks in known]))

    def _ask(self, item: Item) -> Awaitable[None] | None:
        """Let the store decide a request, if there is one thing to check."""
        known = self._known((item,))
        if not known or len(known[0][1]) != 1:
            return None
        try:
            return self._limiter.submit(known[0][1][0][1], partial(self._take, known))
        except StoreOutage as outage:
            self._take(known, outage)
            return None

    def _take(self, known: Sequence[Known], answer: Figures | StoreOutage) -> None:
        self._leave(known, (answer,))

    def _leave(self, known: Sequence[Known], firsts: Sequence[Figures | StoreOutage]) -> None:
        """Tell requests what came of them, by what the store has said to the first check of each, or that it could not."""
        answers, now = self._guard.answers, clock.now()
        lines_of = answers.plain_of
        for (item, checks), answer in zip(known, firsts, strict=True):
            scope, send, _, _ = item
            call = checks[0][1]
            is_plain = len(checks) == 1 and RESULTS not in scope and not call[0].limits[0].shadow
            if is_plain and not isinstance(answer, StoreOutage) and (lines := lines_of(answer)) is not None:
                item[2] = with_headers(send, leave_first(scope, call, answer, now), answers, lines)
            else:
                results = results_in(scope)
                item[2] = self._passes(checks, answer, results) and with_headers(send, results, answers)

    def _passes(self, checks: Sequence[Asked], answer: Figures | StoreOutage, results: list[RateLimitResult]) -> bool:
        """Whether a request passes: by what is known of its first check, and by one after the other of the rest."""
        (_, call), *rest = checks
        results.append(self._limiter.missed(call, answer) if isinstance(answer, StoreOutage) else decode(call, answer))
        for _, call in rest:
            if not results[-1].allowed:
                return False
            results.append(self._limiter.decide_now(call))
        return results[-1].allowed
