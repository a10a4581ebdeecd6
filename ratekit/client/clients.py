"""The clients: two thin edges, waiting and awaiting, around one flow.

A flow is a generator. It yields requests and waits, and returns an answer. So retries, the circuit breaker and on_outage are
written once.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from ratekit.client.answers import Answer, Check, answer_of, wait_of
from ratekit.core.errors import ConfigurationError, MissingExtraError, RatekitError, RateLimitUnavailable
from ratekit.core.limits import Limit, Policy
from ratekit.core.outages import OnOutage, Outage, as_on_outage
from ratekit.limiter.limiters import RateLimiter
from ratekit.stores.circuit_breaker import FIRST_PROBE, Breaker
from ratekit.stores.memory import MemoryStore

try:
    import httpx2
except ImportError:
    raise MissingExtraError("ratekit.client", "client") from None

DEADLINE = 0.25  # seconds that the service has for an answer
_PROBE_SECONDS = FIRST_PROBE * 5  # between two requests to a service that is down
Result = TypeVar("Result")


class ServiceError(RatekitError):
    """The service refuses the request itself: a wrong key, an unknown plan, a field that makes no sense."""

    def __init__(self, status: int, detail: str, field: str | None = None) -> None:
        super().__init__(f"the service answers {status}: {detail}")
        self.status, self.detail, self.field = status, detail, field

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.detail, self.field)


class _Ask(NamedTuple):
    path: str
    body: Any


class _Wait(NamedTuple):
    seconds: float


class _Reply(NamedTuple):
    status: int
    retry_after: str | None
    body: Any


Step = _Ask | _Wait
Flow = Generator[Step, Any, Result]


class _Flows:
    """What both clients do: requests, retries, breaker, fallback."""

    def __init__(
        self, *, on_outage: str, deadline: float, fallback: Policy | Limit | None, instances: int | None, url: str
    ) -> None:
        self.on_outage = as_on_outage(on_outage)
        if not isinstance(deadline, int | float) or not 0 < deadline <= 3600:
            raise ConfigurationError(f"deadline {deadline!r} is not a number of seconds above 0")
        if (self.on_outage is OnOutage.LOCAL) != (fallback is not None):
            raise ConfigurationError("on_outage 'local' needs a fallback, and only it does: a Limit or a Policy to count by")
        self._fallback = fallback
        self._instances = instances
        self._local = None if fallback is None else _local(fallback, instances)
        self._breaker = Breaker(url)
        self._next_probe = 0.0

    def check(self, check: Check, path: str, wait: float) -> Flow[Answer]:
        """Ask for a decision; wait and ask again while it is refused, for so many seconds in all."""
        ends = time.monotonic() + wait
        while True:
            try:
                reply = yield from self._asked(path, check.as_body())
            except RateLimitUnavailable as error:
                return self._without_service([check], error)[0]
            answer = answer_of(reply)
            pause = answer.retry_after
            if answer.allowed or pause is None or time.monotonic() + pause > ends:
                return answer
            yield _Wait(pause + random.uniform(0, min(pause, 0.1)))  # not all at once

    def batch(self, checks: Sequence[Check]) -> Flow[list[Answer]]:
        """Ask for several decisions."""
        try:
            reply = yield from self._asked("/v1/check/batch", {"checks": [check.as_body() for check in checks]})
        except RateLimitUnavailable as error:
            return self._without_service(checks, error)
        return [answer_of(one) for one in reply["results"]]

    def slot(self, path: str, slot: str) -> Flow[bool]:
        """Release or renew a slot; whether it is held now. A service that is away frees it after its time."""
        try:
            reply = yield from self._asked(path, {"slot": slot})
        except RateLimitUnavailable:
            return False
        return bool(reply["held"])

    def _asked(self, path: str, body: Any) -> Flow[Any]:
        """Return the body of an answer. Raises RateLimitUnavailable if there is none in time, ServiceError for a 4xx."""
        now = time.monotonic()
        if self._breaker.outage is not None and now < self._next_probe:
            raise RateLimitUnavailable(str(self._breaker.outage))
        self._next_probe = now + _PROBE_SECONDS
        reply = yield _Ask(path, body)
        if isinstance(reply, Outage):
            self._breaker.failed(reply, now)
            raise RateLimitUnavailable(str(reply))
        self._breaker.succeeded()
        if (
            reply.status in (200, 429)
            and isinstance(reply.body, dict)
            and reply.body.keys() & {"allowed", "results", "held"}
        ):
            return reply.body
        if reply.status >= 500 or reply.status == 429:
            raise RateLimitUnavailable(f"status {reply.status}", wait_of(reply.retry_after))
        problem = reply.body if isinstance(reply.body, dict) else {}
        raise ServiceError(reply.status, str(problem.get("detail", "no reason given")), problem.get("field"))

    def _without_service(self, checks: Sequence[Check], error: RateLimitUnavailable) -> list[Answer]:
        """Answer in place of a service that is away, as on_outage says."""
        if self.on_outage is OnOutage.CLOSED:
            raise error
        reason = error.reason.partition(":")[0]
        if self._local is None or self._fallback is None:
            return [Answer(allowed=True, degraded=reason) for _ in checks]
        return [self._locally(check, reason) for check in checks]

    def _locally(self, check: Check, reason: str) -> Answer:
        assert self._local is not None  # noqa: S101 - there is a fallback
        limiter, policy = self._local
        result = limiter.check(policy, check.subject, cost=check.cost, endpoint=check.resource)
        return Answer(
            allowed=result.allowed,
            remaining=result.remaining,
            limit=result.max_requests,
            reset_at=result.reset_at,
            retry_after=result.retry_after,
            degraded=reason,
        )


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
        self._flows = _Flows(on_outage=on_outage, deadline=deadline, fallback=fallback, instances=instances, url=url)
        self._http = httpx2.Client(base_url=url, headers=_headers(api_key), timeout=deadline, transport=transport)

    def check(self, resource: str, subject: str, *, cost: int = 1, plan_id: str | None = None, wait: float = 0) -> Answer:
        """Decide a request. With wait, a refused one is tried again when the service says so, for so many seconds."""
        return self._run(self._flows.check(Check(resource, subject, cost, plan_id), "/v1/check", wait))

    def peek(self, resource: str, subject: str, *, cost: int = 1, plan_id: str | None = None) -> Answer:
        """Say what `check` would answer, and spend nothing."""
        return self._run(self._flows.check(Check(resource, subject, cost, plan_id), "/v1/peek", 0))

    def charge(self, resource: str, subject: str, *, cost: int = 1, plan_id: str | None = None) -> Answer:
        """Spend a cost whatever the maximum: what a request turned out to cost."""
        return self._run(self._flows.check(Check(resource, subject, cost, plan_id), "/v1/charge", 0))

    def refund(self, resource: str, subject: str, *, cost: int = 1, plan_id: str | None = None) -> Answer:
        """Give a cost back in the same window."""
        return self._run(self._flows.check(Check(resource, subject, cost, plan_id), "/v1/refund", 0))

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
                if isinstance(step, _Ask):
                    reply = self._ask(step)
                else:
                    time.sleep(step.seconds)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _ask(self, step: _Ask) -> _Reply | Outage:
        try:
            return _reply(self._http.post(step.path, json=step.body))
        except httpx2.TransportError as error:
            return _outage(error)


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
        self._flows = _Flows(on_outage=on_outage, deadline=deadline, fallback=fallback, instances=instances, url=url)
        self._http = httpx2.AsyncClient(base_url=url, headers=_headers(api_key), timeout=deadline, transport=transport)

    async def check(
        self, resource: str, subject: str, *, cost: int = 1, plan_id: str | None = None, wait: float = 0
    ) -> Answer:
        """Decide a request. With wait, a refused one is tried again when the service says so, for so many seconds."""
        return await self._run(self._flows.check(Check(resource, subject, cost, plan_id), "/v1/check", wait))

    async def peek(self, resource: str, subject: str, *, cost: int = 1, plan_id: str | None = None) -> Answer:
        """Say what `check` would answer, and spend nothing."""
        return await self._run(self._flows.check(Check(resource, subject, cost, plan_id), "/v1/peek", 0))

    async def charge(self, resource: str, subject: str, *, cost: int = 1, plan_id: str | None = None) -> Answer:
        """Spend a cost whatever the maximum: what a request turned out to cost."""
        return await self._run(self._flows.check(Check(resource, subject, cost, plan_id), "/v1/charge", 0))

    async def refund(self, resource: str, subject: str, *, cost: int = 1, plan_id: str | None = None) -> Answer:
        """Give a cost back in the same window."""
        return await self._run(self._flows.check(Check(resource, subject, cost, plan_id), "/v1/refund", 0))

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
                if isinstance(step, _Ask):
                    reply = await self._ask(step)
                else:
                    await asyncio.sleep(step.seconds)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _ask(self, step: _Ask) -> _Reply | Outage:
        try:
            return _reply(await self._http.post(step.path, json=step.body))
        except httpx2.TransportError as error:
            return _outage(error)


def _headers(api_key: str) -> dict[str, str]:
    if not isinstance(api_key, str) or not api_key.isascii() or not api_key.isprintable() or not api_key:
        raise ConfigurationError("api_key is not a key: it is a text of letters, digits and '_'")
    return {"x-api-key": api_key}


def _reply(response: httpx2.Response) -> _Reply:
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = None
    return _Reply(response.status_code, response.headers.get("retry-after"), body)


def _outage(error: httpx2.TransportError) -> Outage:
    reason = "timeout" if isinstance(error, httpx2.TimeoutException) else "connection"
    return Outage(reason, str(error) or type(error).__name__)


def _local(fallback: Policy | Limit, instances: int | None) -> tuple[RateLimiter, Policy]:
    """Return what counts in this process: a share of each limit."""
    from ratekit.core.compiled import as_policy
    from ratekit.limiter.fallback import checked_instances
    from ratekit.limiter.local_share import part_of

    policy, count = as_policy(fallback), checked_instances(instances)
    shares = [part_of(limit, limit.max_requests, count) for limit in policy.limits]
    return RateLimiter(MemoryStore(for_one=False)), Policy(policy.name, shares)
