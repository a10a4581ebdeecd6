"""The steps of a flow, which `web.drivers` takes by waiting or by awaiting, and the verdict that a flow comes to."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from ratekit.core.errors import RatekitError
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import Call
from ratekit.core.results import RateLimitResult
from ratekit.web.answers import ErrorResponse


class Verdict(NamedTuple):
    """What came of all checks of a request: it passes, or here is the response instead, and the error that it stands for."""

    response: ErrorResponse | None = None
    error: RatekitError | None = None
    result: RateLimitResult | None = None  # the last one; None: the request is not limited


PASS = Verdict()


class Decide(NamedTuple):
    """A step: let the store run a batch of calls in one atomic go, of which one decides the request."""

    batch: tuple[Call, ...]
    mode: RateLimitMode
    on_outage: OnOutage | None
    at: int = 0  # the position of the call that decides


class GiveBack(NamedTuple):
    """A step: let the store give back what calls have spent. A failure is logged, and changes nothing."""

    batch: tuple[Call, ...]
    on_outage: OnOutage | None


class Ask(NamedTuple):
    """A step: ask the application's own code about a request."""

    function: Callable[[Any], Any]
    request: Any
    awaited: Callable[[Any], Any]  # asked instead where there is an event loop: it may answer with something to be awaited


Step = Decide | GiveBack | Ask
Flow = Generator[Step, Any, Verdict]
