"""Drivers of the engine: one waits, one awaits. A decision is written once, as a generator of steps, and driven here.

Between two steps of one request a server does much else, and by then the processor has forgotten the code and the data of a
decision: alone it takes several times as long as right after another one. So where nothing but the store has a say, the
awaiting driver lets the generator go on where the store's answers arrive, those of many requests one after the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from ratekit.core.errors import RatekitError
from ratekit.core.events import decisions
from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import Call
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.web.answers import ResponseWriter
from ratekit.web.decide import Ask, Decide, GiveBack, Group, Ledger, Step, Verdict, decide

Result = TypeVar("Result")
_ON = RateLimitMode.ON


class AwaitedLimiter(Protocol):
    """What the awaiting driver needs of a limiter."""

    def with_on_outage(self, on_outage: str | None) -> Any:
        """Return the limiter on the same store that treats outages otherwise."""

    def decide_in(self, batch: Sequence[Call], at: int, mode: RateLimitMode) -> Awaitable[RateLimitResult]:
        """Let the store run several calls in one atomic go, and return the result of the one at a position."""

    def give_back(self, batch: Sequence[Call]) -> Awaitable[None]:
        """Run calls whose answers nobody needs."""


def run(flow: Generator[Step, Any, Result], limiter: RateLimiter) -> Result:
    """Drive a flow, waiting."""
    try:
        step = next(flow)
        while True:
            try:
                value = _taken(step, limiter)
            except (RatekitError, ValueError) as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as end:
        result: Result = end.value
        return result


async def arun(flow: Generator[Step, Any, Result], limiter: AwaitedLimiter) -> Result:
    """Drive a flow, awaiting."""
    try:
        step = next(flow)
        if type(step) is Decide and step.mode is _ON and not decisions.listeners and len(step.batch) == 1:
            chosen = limiter.with_on_outage(step.on_outage)
            if type(chosen) is AsyncRateLimiter and chosen.can_submit:
                rest = _Rest(flow)
                await chosen.submit(step.batch[0], rest.go_on)
                step = rest.step()
        while True:
            try:
                value = await _awaited(step, limiter)
            except (RatekitError, ValueError) as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as end:
        result: Result = end.value
        return result


async def decide_request(
    groups: Sequence[Group], ledger: Ledger, writer: ResponseWriter, limiter: AsyncRateLimiter, *, once: bool = True
) -> Verdict:
    """Decide a request, awaiting. What most requests need is done without a generator: one group, which admits."""
    place = limiter.store.place
    known: RateLimitResult | RatekitError | None = None
    if len(groups) == 1 and not ledger.spent and not ledger.is_refused and limiter.store.is_local:
        group = groups[0]
        try:
            known = await limiter.with_on_outage(group.on_outage).decide(group.call, group.mode)
            if known.allowed:
                return ledger.admitted(group, place, known)
        except RatekitError as error:
            known = error
    return await arun(decide(groups, ledger, writer, place, once=once, known=known), limiter)


class _Rest:
    """The rest of a flow, which goes on where the store's answer arrives, up to its end or its next step."""

    __slots__ = ("_error", "_flow", "_step")

    def __init__(self, flow: Generator[Step, Any, Any]) -> None:
        self._flow = flow
        self._step: Step | None = None
        self._error: BaseException | None = None

    def go_on(self, answer: RateLimitResult | RatekitError) -> None:
        try:
            self._step = self._flow.throw(answer) if isinstance(answer, RatekitError) else self._flow.send(answer)
        except BaseException as error:  # noqa: BLE001 - raised in the request's own task: StopIteration brings the result
            self._error = error

    def step(self) -> Step:
        """Return the next step, or raise what has ended the flow."""
        if self._step is None:
            raise self._error or RuntimeError("the store has not answered")
        return self._step


def _taken(step: Step, limiter: RateLimiter) -> Any:
    if isinstance(step, Ask):
        return step.function(step.request)
    chosen = limiter.with_on_outage(step.on_outage)
    if isinstance(step, GiveBack):
        return chosen.give_back(step.batch)
    return chosen.decide_in(step.batch, step.at, step.mode)


async def _awaited(step: Step, limiter: AwaitedLimiter) -> Any:
    if isinstance(step, Ask):
        value = step.awaited(step.request)
        return await value if inspect.isawaitable(value) else value
    chosen = limiter.with_on_outage(step.on_outage)
    if isinstance(step, GiveBack):
        return await chosen.give_back(step.batch)
    return await chosen.decide_in(step.batch, step.at, step.mode)
