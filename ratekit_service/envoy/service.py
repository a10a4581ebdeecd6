"""ShouldRateLimit as one function of bytes: decides all descriptors of a request together, and writes the response.

An answer is OVER_LIMIT only if the store has refused the request. What cannot be decided is a status of gRPC, on which Envoy
does what its `failure_mode_deny` says.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from ratekit.core import headers as header_lines
from ratekit.core.errors import RatekitError, RateLimitUnavailable
from ratekit.core.figures import OVERRIDDEN, UNLIMITED
from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import part_of
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter
from ratekit.rules.descriptors.tree import Domains
from ratekit.web.answers import ResponseWriter
from ratekit.web.arguments import checked_mode, mode_reader
from ratekit.web.decide import decide
from ratekit.web.drivers import arun
from ratekit.web.ledger import Ledger
from ratekit.web.steps import Decide, Flow, Step, Verdict
from ratekit_service.envoy.errors import GrpcError, StatusCode
from ratekit_service.envoy.plans import Place, Plan, Planner
from ratekit_service.envoy.wire import MOST_UINT32, OK, OVER_LIMIT, UNKNOWN, Status, header, write_response

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = f"/{SERVICE}/ShouldRateLimit"
RULE_HEADER = b"x-ratekit-rule"
_PASSES = Status(OK)
_UNLIMITED = Status(OK, remaining=MOST_UINT32)
_OFF = RateLimitMode.OFF


class RateLimitService:
    """Envoy's rate limit service on one limiter.

    headers names one style or several of the header lines that Envoy adds to each response; mode is weakened by
    RATE_LIMIT_MODE, as everywhere.
    """

    def __init__(
        self,
        limiter: AsyncRateLimiter,
        domains: Domains,
        *,
        headers: str | Iterable[str] = header_lines.DEFAULT_STYLE,
        mode: str | RateLimitMode | None = None,
    ) -> None:
        self.limiter = limiter
        self._writer = ResponseWriter(headers)
        self._mode = mode_reader(checked_mode(mode))
        self.use(domains)

    def use(self, domains: Domains) -> None:
        """Decide by other limits from now on. A request that is being decided keeps those that it began with."""
        self._planner = Planner(domains, self.limiter.prefix, one_slot=self.limiter.store.one_slot)

    async def should_rate_limit(self, message: bytes) -> bytes:
        """Decide a request. Raises GrpcError if it makes no sense, or if it cannot be decided and on_outage is closed."""
        mode = self._mode()
        if mode is _OFF:
            return write_response(OK, [_PASSES] * self._planner.places(message), ())
        plan = self._planner.plan(message, mode)
        if not plan.groups:
            return write_response(OK, [_undecided(place) for place in plan.places], ())
        results: list[RateLimitResult | None] = []
        flow = decide(plan.groups, Ledger(), self._writer, self.limiter.store.place)
        verdict: Verdict = await arun(_observed(flow, results), self.limiter)
        if isinstance(verdict.error, RateLimitUnavailable):
            reason = verdict.error.reason.partition(":")[0]  # one word: clients do not learn where the store is
            raise GrpcError(StatusCode.UNAVAILABLE, f"the rate limit cannot be checked now: {reason}")
        return self._response(plan, results, is_refused=verdict.response is not None)

    def _response(self, plan: Plan, results: Sequence[RateLimitResult | None], *, is_refused: bool) -> bytes:
        parts = [_result(place, results) for place in plan.places]
        statuses = [
            _status(place, part, len(results), is_enforced=plan.groups[place.group or 0].mode is RateLimitMode.ON)
            for place, part in zip(plan.places, parts, strict=True)
        ]
        lines = self._headers(plan.places, parts, is_refused=is_refused)
        return write_response(OVER_LIMIT if is_refused else OK, statuses, lines)

    def _headers(
        self, places: Sequence[Place], parts: Sequence[RateLimitResult | None], *, is_refused: bool
    ) -> Iterable[bytes]:
        """Return the header lines of the most restrictive descriptor, and the name of its rule."""
        named = [(place.name, part) for place, part in zip(places, parts, strict=True) if part is not None and part.is_shown]
        binding = header_lines.shown([part for _, part in named])
        if binding is None:
            return []
        name = next(name for name, part in named if part is binding)
        if is_refused:
            written = self._writer.lines([binding], refused=True)
            lines = [(line.lower().encode(), value.encode()) for line, value in written.items()]
        else:
            lines = self._writer.raw_lines([binding])
        return [*(header(*line) for line in lines), _rule_header(name)]


_SAFE = "!#$%&'()*+,/:;=?@[]^`{|}~ "  # what a header may have beside letters and digits


@lru_cache(maxsize=4096)
def _rule_header(name: str) -> bytes:
    return header(RULE_HEADER, quote(name, safe=_SAFE).encode())


def _observed(flow: Flow, results: list[RateLimitResult | None]) -> Generator[Step, Any, Verdict]:
    """Drive a flow, and take note of the result of each group; None for one that could not be decided."""
    try:
        step = next(flow)
        while True:
            is_group = type(step) is Decide
            try:
                answer = yield step
            except RatekitError as error:
                results += [None] if is_group else []
                step = flow.throw(error)
            else:
                results += [answer] if is_group else []
                step = flow.send(answer)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict


def _result(place: Place, results: Sequence[RateLimitResult | None]) -> RateLimitResult | None:
    """Return what has been decided about a descriptor; None if it has no limit, or the store has not decided."""
    if place.group is None or place.group >= len(results):
        return None
    result = results[place.group]
    return None if result is None or result.degraded is not None else part_of(result, place.part)


def _status(place: Place, result: RateLimitResult | None, decided: int, *, is_enforced: bool) -> Status:
    if place.group is None:
        return _undecided(place)
    if result is None:  # not asked, as another descriptor was refused before; or the store is away, and requests pass
        return Status(UNKNOWN) if place.group >= decided else _PASSES
    flags, most, _, remaining, retry_us, reset_us = result.figures[result.binding * 6 : result.binding * 6 + 6]
    if flags & UNLIMITED:
        return _UNLIMITED
    unit = 0 if flags & OVERRIDDEN else place.unit  # an override may have a window of its own
    limit = (min(most, MOST_UINT32), unit, place.name)
    if result.allowed:
        return Status(OK, limit, min(remaining, MOST_UINT32) if result.is_enforced else _left(result), _seconds(reset_us))
    code = OVER_LIMIT if is_enforced else OK
    return Status(code, limit, 0, max(1, _seconds(retry_us if retry_us >= 0 else reset_us)))


def _left(result: RateLimitResult) -> int:
    """Return what a shadow limit has left; nothing if it would refuse."""
    return 0 if result.would_violate else min(result.remaining, MOST_UINT32)


def _undecided(place: Place) -> Status:
    return _UNLIMITED if place.is_unlimited else _PASSES


def _seconds(microseconds: int) -> int:
    return -(-microseconds // 1_000_000)
