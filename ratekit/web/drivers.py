"""Drivers of the engine: one waits, one awaits. A decision is written once, as a generator of steps, and driven here."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from ratekit.core.errors import RatekitError
from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import Call
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import RateLimiter
from ratekit.web.ledger import endings_of
from ratekit.web.steps import Ask, Decide, GiveBack, Step

Result = TypeVar("Result")


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
    """Drive a flow, awaiting. One that is cancelled while the store decides holds no slot, and reserves nothing."""
    try:
        step = next(flow)
        while True:
            try:
                value = await _awaited(step, limiter)
            except (RatekitError, ValueError) as error:
                step = flow.throw(error)
            except GeneratorExit:
                raise
            except BaseException:
                await _end(step, limiter)
                raise
            else:
                step = flow.send(value)
    except StopIteration as end:
        result: Result = end.value
        return result


async def _end(step: Step, limiter: AwaitedLimiter) -> None:
    """End what the store may have decided although nobody waits for it any more."""
    if isinstance(step, Decide) and (calls := endings_of(step.batch[step.at])):
        await limiter.with_on_outage(step.on_outage).give_back(calls)


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
