"""`ReserveLimiter`: a limiter for `Depends` whose endpoint says what a request has cost."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from fastapi import params
from starlette.requests import HTTPConnection
from starlette.responses import Response

from ratekit.core.limits import Limit, Policy
from ratekit.core.modes import RateLimitMode
from ratekit.limiter.reservations import Reservation
from ratekit.web.charging import Anchor, Outcome, Share
from ratekit.web.identity import By
from ratekit.web.plans import Cost, LimitsFunction, RuleLimits
from ratekit_fastapi import decisions
from ratekit_fastapi.dependencies import ProjectRateLimiter, signature_of


class ReserveArguments(TypedDict, total=False):
    """The keyword arguments of ReserveLimiter but its estimate."""

    limits: RuleLimits | LimitsFunction | None
    policy: Policy | Limit | None
    endpoint: str | None
    mode: str | RateLimitMode | None
    on_outage: str | None
    by: By | params.Depends | None
    block: bool
    actual: str | None
    hide: bool
    count: Outcome | None
    reset_when: Outcome | None
    share: Share | None
    anchor: Anchor | None


class ReserveLimiter(ProjectRateLimiter):
    """Reserves an estimate of what a request costs, and gives the endpoint a Reservation to say what it has cost.

    `usage: Reservation = Depends(ReserveLimiter(policy=llm, by="ip", estimate=800))`, then `usage.add(12)` as a stream goes
    on, or `usage.settle(523)`. It is settled when the response has ended, with its streams and background tasks. Without
    either, the estimate stays; if the endpoint raises an exception, all of it returns. By default it limits the project.
    """

    def __init__(
        self,
        max_requests: int | None = None,
        expiry: float | None = None,
        *,
        estimate: Cost = 1,
        anonymous: str | None = None,
        **options: Unpack[ReserveArguments],
    ) -> None:
        arguments: Any = {**options, "estimate": estimate}
        super().__init__(max_requests, expiry, anonymous=anonymous, **arguments)
        self.__signature__ = signature_of(self._by if isinstance(self._by, params.Depends) else None)

    async def __call__(  # type: ignore[override]
        self, connection: HTTPConnection, response: Response | None = None, **found: object
    ) -> Reservation:
        """Reserve, and return the reservation. Raises if the request is refused."""
        result = await decisions.decide_route(self, connection, response, **found)
        return decisions.reservation_of(self, connection, result)
