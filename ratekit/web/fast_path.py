"""The fast path of fronts that await: what most requests need, one group that admits them, with less work.

It does what the engine (`web.decide`) does for such a request, and hands everything else to the engine: requests with more
than one group or with a history, charges that are kept, and the store's answer where that is not an admission. So there is
one copy of what a refusal, an outage, a mode or several groups mean. `is_on = False` changes nothing but the speed.

What makes it fast: between two steps of one request a server does so much else that the processor has forgotten the code
of a decision. Alone, a decision takes several times as long as right after another one. So it is made where the store's
answers arrive, those of many requests in a row, with header lines, and what nobody asks for is not made at all.
"""

from __future__ import annotations

import types
from asyncio import AbstractEventLoop
from asyncio import _get_running_loop as _running_loop  # None where there is no event loop of asyncio
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any

from ratekit.core import clock
from ratekit.core.errors import RatekitError
from ratekit.core.events import decisions
from ratekit.core.outages import StoreOutage
from ratekit.core.results import RateLimitResult
from ratekit.limiter.limiters import AsyncRateLimiter
from ratekit.stores.contract import Figures
from ratekit.web.answers import ResponseWriter
from ratekit.web.checks import Group
from ratekit.web.decide import decide
from ratekit.web.drivers import arun
from ratekit.web.ledger import Admission, Ledger, releases_of
from ratekit.web.steps import PASS, Verdict

is_on = True
_AT_ONCE = 16  # requests that are decided at once before it is looked again whether several wait
_waiting: dict[AbstractEventLoop | None, list[_First]] = {}  # for the next turn of each event loop
_left_at_once = 0


@types.coroutine
def decide_request(
    groups: Sequence[Group],
    ledger: Ledger,
    writer: ResponseWriter,
    limiter: AsyncRateLimiter,
    *,
    once: bool = True,
    together: bool = False,
) -> Generator[Any, Any, Verdict]:
    """Decide a request, awaiting: by the fast path if it can, else by the engine.

    together lets requests of one turn of the event loop be decided in a row, even where the store is this process. It is
    for fronts around an application: a request that waits deep in one holds so many objects that the garbage collector
    takes more time than that saves. A request that is cancelled meanwhile holds no slot, and nothing is reserved for it.
    """
    try:
        known: RateLimitResult | RatekitError | None = None
        if is_on and ledger.is_new and len(groups) == 1 and not groups[0].is_kept and not decisions.listeners:
            group = groups[0]
            chosen = limiter if group.on_outage is None else limiter.with_on_outage(group.on_outage)
            if chosen.asks_store_alone and type(chosen) is AsyncRateLimiter:
                first = _First(group, writer, chosen)
                if together and chosen.store.is_local:
                    yield from first.decide_together()
                elif (waiting := chosen.store.submit(group.call, first)) is not None:
                    yield from waiting.__await__()
                if first.lines is not None:
                    ledger.admit(first)
                    return PASS
                known = first.known
        flow = decide(groups, ledger, writer, limiter.store.place, once=once, known=known)
        verdict: Verdict = yield from arun(flow, limiter).__await__()
        return verdict
    except GeneratorExit:
        raise
    except BaseException:
        if calls := releases_of(groups):  # the store may have decided it meanwhile
            yield from limiter.give_back(calls).__await__()
        raise


class _First(Admission):
    """The first thing to decide about a request, and what the store has answered: an admission, or what the engine gets."""

    __slots__ = ("_limiter", "error", "known")

    def __init__(self, group: Group, writer: ResponseWriter, limiter: AsyncRateLimiter) -> None:
        self.group = group
        self.writer = writer
        self.lines = None
        self.known: RateLimitResult | RatekitError | None = None
        self.error: Exception | None = None  # a bug
        self._limiter = limiter

    def decide(self) -> None:
        """Ask a store that answers at once."""
        try:
            self._limiter.store.submit(self.group.call, self)
        except Exception as error:  # noqa: BLE001 - raised in the request's own task, and not in that of another
            self.error = error

    def decide_together(self) -> Generator[None, None, None]:
        """Decide with all others that ask in this turn of the event loop; at once if nobody else has asked of late."""
        global _left_at_once
        loop = _running_loop()
        waiting = _waiting.get(loop)
        if loop is None or (waiting is None and _left_at_once > 0):
            _left_at_once -= 1
            self.decide()
        else:
            if waiting is None:
                _waiting[loop] = waiting = []
            waiting.append(self)
            try:
                yield  # to all that is ready to run, and may ask too
            except BaseException:
                _withdraw(loop, waiting, self)
                raise
            if _waiting.get(loop) is waiting:
                del _waiting[loop]
                _left_at_once = _AT_ONCE if len(waiting) == 1 else 0
                for first in waiting:
                    first.decide()
        if self.error is not None:
            raise self.error

    def __call__(self, answer: Figures | StoreOutage) -> None:
        """Take the store's answer, where it arrives."""
        if isinstance(answer, StoreOutage):
            self.known = self._without_store(answer)
            return
        self.figures = answer
        self.place = self._limiter.store.place
        self.at = monotonic() if clock.source is None else clock.steady()
        self.lines = self.writer.window_lines(self.group.call.compiled.limits, answer)
        if self.lines is None:
            result = self.result()
            if result.allowed:
                self.lines = self.writer.raw_lines((result,))
            else:
                self.known = result

    def _without_store(self, outage: StoreOutage) -> RateLimitResult | RatekitError:
        try:
            return self._limiter.without_store(self.group.call, outage.outage, self.group.mode, 0.0)
        except RatekitError as error:
            return error


def _withdraw(loop: AbstractEventLoop, waiting: list[_First], first: _First) -> None:
    """Decide nothing for a request that was cancelled."""
    waiting.remove(first)
    if not waiting and _waiting.get(loop) is waiting:
        del _waiting[loop]
