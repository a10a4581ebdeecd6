"""The clients: two thin edges, waiting and awaiting, around the flows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from ratekit.client.answers import Anchor, Answer, Check
from ratekit.client.flows import Ask, Flow, Flows, Reply, admitted, headers_of, outage_of, reply_of, reserve_body, settling
from ratekit.client.reservations import ENDED, SETTLED_BY_CLIENT, Reservation, own_id
from ratekit.core.limits import Limit, Policy
from ratekit.core.outages import OnOutage, Outage
from ratekit.core.protocol import CostGiven

DEADLINE = 0.25  # seconds that the service has for an answer
Result = TypeVar("Result")


class RateKitClient:
    """Asks the check service, waiting for it. Safe to share among threads.

    - deadline: seconds that the service has for an answer; a service that is down costs nothing until it is tried again
    - on_outage: "open" lets pass, "closed" raises RateLimitUnavailable, "local" counts by `fallback` in this process, a
      share of each limit: its maximum divided by instances
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        deadline: float = DEADLINE,
        on_outage: str = OnOutage.OPEN,
        fallback: Policy | Limit | None = None,
        instances: int | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._flows = Flows(on_outage=on_outage, deadline=deadline, fallback=fallback, instances=instances, url=url)
        self._http = httpx2.Client(base_url=url, headers=headers_of(api_key), timeout=deadline, transport=transport)

    def check(
        self,
        resource: str,
        subject: str,
        *,
        cost: CostGiven = 1,
        plan_id: str | None = None,
        share: float | None = None,
        anchor: Anchor = None,
        wait: float = 0,
    ) -> Answer:
        """Decide a request. With wait, a refused one is tried again when the service says so, for so many seconds.

        - cost: a number, or one for each unit of the plan
        - share: the fraction of each capacity that the request may use, so that more important ones keep room
        - anchor: from when the periods of the plan's calendars are counted for this subject
        """
        check = Check(resource, subject, cost, plan_id, share, anchor)
        return self._run(self._flows.check(check, "/v1/check", wait))

    def peek(
        self,
        resource: str,
        subject: str,
        *,
        cost: CostGiven = 1,
        plan_id: str | None = None,
        share: float | None = None,
        anchor: Anchor = None,
    ) -> Answer:
        """Say what `check` would answer, and spend nothing."""
        return self._run(self._flows.check(Check(resource, subject, cost, plan_id, share, anchor), "/v1/peek", 0))

    def charge(
        self, resource: str, subject: str, *, cost: CostGiven = 1, plan_id: str | None = None, anchor: Anchor = None
    ) -> Answer:
        """Spend a cost whatever the maximum: what a request turned out to cost."""
        return self._run(self._flows.check(Check(resource, subject, cost, plan_id, None, anchor), "/v1/charge", 0))

    def refund(
        self, resource: str, subject: str, *, cost: CostGiven = 1, plan_id: str | None = None, anchor: Anchor = None
    ) -> Answer:
        """Give a cost back in the same window."""
        return self._run(self._flows.check(Check(resource, subject, cost, plan_id, None, anchor), "/v1/refund", 0))

    def check_batch(self, checks: Sequence[Check]) -> list[Answer]:
        """Decide several requests, each for itself, in one round trip."""
        return self._run(self._flows.batch(checks))

    def release(self, slot: str) -> None:
        """Free a slot that a check by a concurrency plan has answered with."""
        self._run(self._flows.slot("/v1/release", slot))

    def renew(self, slot: str) -> bool:
        """Keep a slot for as long again. Returns whether it is still held."""
        return self._run(self._flows.slot("/v1/renew", slot))

    @contextmanager
    def slot(self, resource: str, subject: str, *, plan_id: str | None = None, wait: float = 0) -> Iterator[Answer]:
        """Hold a slot for a block, which looks at `allowed`: there may be none."""
        answer = self.check(resource, subject, plan_id=plan_id, wait=wait)
        try:
            yield answer
        finally:
            if answer.slot is not None:
                self.release(answer.slot)

    @contextmanager
    def reserve(
        self,
        resource: str,
        subject: str,
        *,
        estimate: CostGiven = 1,
        plan_id: str | None = None,
        share: float | None = None,
        clamp: bool = False,
        hold: float | None = None,
        anchor: Anchor = None,
    ) -> Iterator[Reservation]:
        """Reserve an estimate for a block, and settle it when the block ends. Raises RateLimitExceeded if it does not fit.

        - clamp: reserve as much as fits, at least 1; `estimate` of the reservation says how much
        - hold: seconds for which it can be settled, 600 by default
        """
        body = reserve_body(resource, subject, estimate, plan_id, share, clamp, hold, anchor)
        reservation = admitted(self._run(self._flows.reserve(body)))
        failure: BaseException | None = None
        try:
            yield reservation
        except BaseException as error:
            failure = error
            if isinstance(error, Exception):
                reservation.fail()
            raise
        finally:
            reservation.end(ENDED)
            actual = reservation.actual()
            if actual is not None:
                with settling(failure):
                    self.settle(reservation.id, actual=actual)

    def reserve_now(
        self,
        resource: str,
        subject: str,
        *,
        estimate: CostGiven = 1,
        plan_id: str | None = None,
        share: float | None = None,
        clamp: bool = False,
        hold: float | None = None,
        anchor: Anchor = None,
        reservation: str | None = None,
    ) -> Reservation:
        """Reserve an estimate that `settle` settles later, perhaps in another process: its `id` can travel.

        reservation is an id of your own, of letters and digits: the same id again spends nothing more.
        """
        body = reserve_body(resource, subject, estimate, plan_id, share, clamp, hold, anchor, reservation)
        made = self._run(self._flows.reserve(body))
        made.end(SETTLED_BY_CLIENT)
        return made

    def settle(self, reservation: str, *, actual: CostGiven) -> Answer:
        """Settle the reservation of that id by what it has cost. A settle that is sent again changes nothing."""
        return self._run(self._flows.commit(reservation, actual))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self, flow: Flow[Result]) -> Result:
        reply: Any = None
        try:
            while True:
                step = flow.send(reply)
                if isinstance(step, Ask):
                    reply = self._ask(step)
                else:
                    time.sleep(step.seconds)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _ask(self, step: Ask) -> Reply | Outage:
        try:
            return reply_of(self._http.post(step.path, json=step.body))
        except httpx2.RequestError as error:
            return outage_of(error)


class AsyncRateKitClient:
    """Asks the check service, awaiting it. Takes what RateKitClient takes."""

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        deadline: float = DEADLINE,
        on_outage: str = OnOutage.OPEN,
        fallback: Policy | Limit | None = None,
        instances: int | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._flows = Flows(on_outage=on_outage, deadline=deadline, fallback=fallback, instances=instances, url=url)
        self._http = httpx2.AsyncClient(base_url=url, headers=headers_of(api_key), timeout=deadline, transport=transport)

    async def check(
        self,
        resource: str,
        subject: str,
        *,
        cost: CostGiven = 1,
        plan_id: str | None = None,
        share: float | None = None,
        anchor: Anchor = None,
        wait: float = 0,
    ) -> Answer:
        """Decide a request. With wait, a refused one is tried again when the service says so, for so many seconds.

        - cost: a number, or one for each unit of the plan
        - share: the fraction of each capacity that the request may use, so that more important ones keep room
        - anchor: from when the periods of the plan's calendars are counted for this subject
        """
        check = Check(resource, subject, cost, plan_id, share, anchor)
        return await self._run(self._flows.check(check, "/v1/check", wait))

    async def peek(
        self,
        resource: str,
        subject: str,
        *,
        cost: CostGiven = 1,
        plan_id: str | None = None,
        share: float | None = None,
        anchor: Anchor = None,
    ) -> Answer:
        """Say what `check` would answer, and spend nothing."""
        return await self._run(self._flows.check(Check(resource, subject, cost, plan_id, share, anchor), "/v1/peek", 0))

    async def charge(
        self, resource: str, subject: str, *, cost: CostGiven = 1, plan_id: str | None = None, anchor: Anchor = None
    ) -> Answer:
        """Spend a cost whatever the maximum: what a request turned out to cost."""
        return await self._run(self._flows.check(Check(resource, subject, cost, plan_id, None, anchor), "/v1/charge", 0))

    async def refund(
        self, resource: str, subject: str, *, cost: CostGiven = 1, plan_id: str | None = None, anchor: Anchor = None
    ) -> Answer:
        """Give a cost back in the same window."""
        return await self._run(self._flows.check(Check(resource, subject, cost, plan_id, None, anchor), "/v1/refund", 0))

    async def check_batch(self, checks: Sequence[Check]) -> list[Answer]:
        """Decide several requests, each for itself, in one round trip."""
        return await self._run(self._flows.batch(checks))

    async def release(self, slot: str) -> None:
        """Free a slot that a check by a concurrency plan has answered with."""
        await self._run(self._flows.slot("/v1/release", slot))

    async def renew(self, slot: str) -> bool:
        """Keep a slot for as long again. Returns whether it is still held."""
        return await self._run(self._flows.slot("/v1/renew", slot))

    @asynccontextmanager
    async def slot(
        self, resource: str, subject: str, *, plan_id: str | None = None, wait: float = 0
    ) -> AsyncIterator[Answer]:
        """Hold a slot for a block, which looks at `allowed`: there may be none."""
        answer = await self.check(resource, subject, plan_id=plan_id, wait=wait)
        try:
            yield answer
        finally:
            if answer.slot is not None:
                await asyncio.shield(asyncio.ensure_future(self.release(answer.slot)))

    @asynccontextmanager
    async def reserve(
        self,
        resource: str,
        subject: str,
        *,
        estimate: CostGiven = 1,
        plan_id: str | None = None,
        share: float | None = None,
        clamp: bool = False,
        hold: float | None = None,
        anchor: Anchor = None,
    ) -> AsyncIterator[Reservation]:
        """Reserve an estimate for a block, and settle it when the block ends. Raises RateLimitExceeded if it does not fit.

        - clamp: reserve as much as fits, at least 1; `estimate` of the reservation says how much
        - hold: seconds for which it can be settled, 600 by default
        """
        body = reserve_body(resource, subject, estimate, plan_id, share, clamp, hold, anchor)
        reservation = admitted(await self._reserved(body))
        failure: BaseException | None = None
        try:
            yield reservation
        except BaseException as error:
            failure = error
            if isinstance(error, Exception):
                reservation.fail()
            raise
        finally:
            reservation.end(ENDED)
            actual = reservation.actual()
            if actual is not None:
                with settling(failure):
                    await asyncio.shield(asyncio.ensure_future(self.settle(reservation.id, actual=actual)))

    async def reserve_now(
        self,
        resource: str,
        subject: str,
        *,
        estimate: CostGiven = 1,
        plan_id: str | None = None,
        share: float | None = None,
        clamp: bool = False,
        hold: float | None = None,
        anchor: Anchor = None,
        reservation: str | None = None,
    ) -> Reservation:
        """Reserve an estimate that `settle` settles later, perhaps in another process: its `id` can travel.

        reservation is an id of your own, of letters and digits: the same id again spends nothing more.
        """
        body = reserve_body(resource, subject, estimate, plan_id, share, clamp, hold, anchor, reservation)
        made = await self._reserved(body)
        made.end(SETTLED_BY_CLIENT)
        return made

    async def settle(self, reservation: str, *, actual: CostGiven) -> Answer:
        """Settle the reservation of that id by what it has cost. A settle that is sent again changes nothing."""
        return await self._run(self._flows.commit(reservation, actual))

    async def _reserved(self, body: dict[str, Any]) -> Reservation:
        """Reserve; if that is cancelled, nobody will use what was reserved, and it returns."""
        try:
            return await self._run(self._flows.reserve(body))
        except asyncio.CancelledError as error:
            with settling(error):
                await asyncio.shield(asyncio.ensure_future(self.settle(own_id(body), actual=0)))
            raise

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, flow: Flow[Result]) -> Result:
        reply: Any = None
        try:
            while True:
                step = flow.send(reply)
                if isinstance(step, Ask):
                    reply = await self._ask(step)
                else:
                    await asyncio.sleep(step.seconds)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _ask(self, step: Ask) -> Reply | Outage:
        try:
            return reply_of(await self._http.post(step.path, json=step.body))
        except httpx2.RequestError as error:
            return outage_of(error)
