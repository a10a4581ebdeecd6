"""What both clients do, written once: requests, retries, the circuit breaker, on_outage.

A flow is a generator. It yields requests and waits, and returns an answer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx2

from ratekit.client.answers import Anchor, Answer, Check, answer_of, answers_of, body_of, wait_of
from ratekit.client.reservations import Reservation, commit_of, own_id, result_of
from ratekit.core.errors import (
    ConfigurationError,
    RatekitError,
    RateLimitExceeded,
    RateLimitUnavailable,
)
from ratekit.core.lazy_log import Logger
from ratekit.core.limits import REQUESTS, Limit, Policy
from ratekit.core.outages import OnOutage, Outage, as_on_outage
from ratekit.core.protocol import CostGiven
from ratekit.limiter.limiters import RateLimiter
from ratekit.limiter.operations import new_slot
from ratekit.stores.circuit_breaker import FIRST_PROBE, Breaker
from ratekit.stores.memory import MemoryStore

_PROBE_SECONDS = FIRST_PROBE * 5  # between two requests to a service that is down
_log = Logger("ratekit.client")
Result = TypeVar("Result")


class ServiceError(RatekitError):
    """The service refuses the request itself: a wrong key, an unknown plan, a field that makes no sense."""

    def __init__(self, status: int, detail: str, field: str | None = None) -> None:
        super().__init__(f"the service answers {status}: {detail}")
        self.status, self.detail, self.field = status, detail, field

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.detail, self.field)


class Ask(NamedTuple):
    """A request to the service."""

    path: str
    body: Any


class Wait(NamedTuple):
    """A pause."""

    seconds: float


class Reply(NamedTuple):
    """An answer of the service, whatever its status."""

    status: int
    retry_after: str | None
    body: Any


Step = Ask | Wait
Flow = Generator[Step, Any, Result]


class Flows:
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
        self._breaker = Breaker(_checked(url))
        self._next_probe = 0.0

    def check(self, check: Check, path: str, wait: float) -> Flow[Answer]:
        """Ask for a decision; wait and ask again while it is refused, for so many seconds in all."""
        ends = time.monotonic() + wait
        while True:
            try:
                answer = yield from self._asked(path, check.as_body(), answer_of)
            except RateLimitUnavailable as error:
                return self._without_service([check], error)[0]
            pause = answer.retry_after
            if answer.allowed or pause is None or time.monotonic() + pause > ends:
                return answer
            yield Wait(pause + random.uniform(0, min(pause, 0.1)))  # not all at once

    def batch(self, checks: Sequence[Check]) -> Flow[list[Answer]]:
        """Ask for several decisions."""
        body = {"checks": [check.as_body() for check in checks]}
        try:
            return (yield from self._asked("/v1/check/batch", body, lambda reply: answers_of(reply, len(checks))))
        except RateLimitUnavailable as error:
            return self._without_service(checks, error)

    def reserve(self, body: dict[str, Any]) -> Flow[Reservation]:
        """Reserve an estimate. One that was not answered can be settled all the same, by the id that was sent."""
        estimate = body["estimate"]
        try:
            reply, answer = yield from self._asked("/v1/reserve", body, lambda reply: (reply, answer_of(reply)))
        except RateLimitUnavailable as error:
            check = Check(body["resource"], body["subject"], estimate)
            return Reservation(own_id(body), self._without_service([check], error)[0], estimate)
        is_known = answer.degraded is None and "estimate" in reply and not answer.would_refuse
        return Reservation(reply.get("id", ""), answer, reply["estimate"] if is_known else estimate)

    def commit(self, reservation: str, actual: CostGiven) -> Flow[Answer]:
        """Settle a reservation. If the service is away, the estimate stays until its window ends."""
        try:
            return (yield from self._asked("/v1/commit", commit_of(reservation, actual), answer_of))
        except RateLimitUnavailable as error:
            _log.warning("a reservation is not settled, and its estimate stays spent: %s", error)
            if self.on_outage is OnOutage.CLOSED:
                raise
            return Answer(allowed=True, degraded=_word(error))

    def slot(self, path: str, slot: str) -> Flow[bool]:
        """Release or renew a slot; whether it is held now. A service that is away frees it after its time."""
        try:
            return (yield from self._asked(path, {"slot": slot}, lambda reply: bool(reply["held"])))
        except RateLimitUnavailable:
            return False

    def _asked(self, path: str, body: Any, read: Callable[[Any], Result]) -> Flow[Result]:
        """Return what an answer says. Raises RateLimitUnavailable if there is none in time, ServiceError for a 4xx."""
        now = time.monotonic()
        if self._breaker.outage is not None and now < self._next_probe:
            raise RateLimitUnavailable(str(self._breaker.outage))
        self._next_probe = now + _PROBE_SECONDS
        reply = yield Ask(path, body)
        found = reply if isinstance(reply, Outage) else _read(reply, read)
        if isinstance(found, Outage):
            self._breaker.failed(found, now)
            raise RateLimitUnavailable(str(found))
        self._breaker.succeeded()
        if found is not None:
            return found
        if reply.status >= 500 or reply.status == 429:
            raise RateLimitUnavailable(f"status {reply.status}", wait_of(reply.retry_after))
        problem = reply.body if isinstance(reply.body, dict) else {}
        raise ServiceError(reply.status, str(problem.get("detail", "no reason given")), problem.get("field"))

    def _without_service(self, checks: Sequence[Check], error: RateLimitUnavailable) -> list[Answer]:
        """Answer in place of a service that is away, as on_outage says."""
        if self.on_outage is OnOutage.CLOSED:
            raise error
        reason = _word(error)
        if self._local is None or self._fallback is None:
            return [Answer(allowed=True, degraded=reason) for _ in checks]
        return [self._locally(check, reason) for check in checks]

    def _locally(self, check: Check, reason: str) -> Answer:
        assert self._local is not None  # noqa: S101 - there is a fallback
        limiter, policy = self._local
        cost = _cost_for(policy, check.cost)
        result = limiter.check(policy, check.subject, cost=cost, endpoint=check.resource, share=check.share)
        return Answer(
            allowed=result.allowed,
            remaining=result.remaining,
            limit=result.max_requests,
            reset_at=result.reset_at,
            retry_after=result.retry_after,
            degraded=reason,
        )


def _read(reply: Reply, read: Callable[[Any], Result]) -> Result | Outage | None:
    """Return what an answer says; None for a 4xx or 5xx that is no decision; an outage if it is not the service's at all."""
    if reply.status in (200, 429):
        with suppress(KeyError, TypeError, AttributeError, ValueError):
            return read(reply.body)
    if reply.status >= 400:
        return None
    return Outage("answer", f"status {reply.status} with a body that is not of the service: is a proxy in between?")


def _word(error: RateLimitUnavailable) -> str:
    return error.reason.partition(":")[0]


def _cost_for(policy: Policy, cost: CostGiven) -> CostGiven:
    """Return a cost in the units that a fallback counts, whatever units the service's plan has."""
    given = cost if isinstance(cost, Mapping) else {REQUESTS: cost}
    costs = {unit: given.get(unit, 1 if unit == REQUESTS else 0) for unit in policy.units}
    return costs[REQUESTS] if policy.units == (REQUESTS,) else costs


def reserve_body(
    resource: str,
    subject: str,
    estimate: CostGiven,
    plan_id: str | None,
    share: float | None,
    clamp: bool,
    hold: float | None,
    anchor: Anchor,
    reservation: str | None = None,
) -> dict[str, Any]:
    """Return what the service is asked to reserve, with an id that settles it even if no answer comes."""
    own = new_slot() if reservation is None else reservation
    asked = {"resource": resource, "subject": subject, "estimate": estimate, "plan_id": plan_id, "share": share}
    return body_of(**asked, clamp=clamp or None, hold=hold, anchor=anchor, id=own)


def admitted(reservation: Reservation) -> Reservation:
    """Return a reservation. Raises RateLimitExceeded if it was refused."""
    if not reservation.allowed:
        raise RateLimitExceeded(result_of(reservation.answer, time.time()))
    return reservation


@contextmanager
def settling(error: BaseException | None) -> Iterator[None]:
    """Let the block's own outcome stand if its reservation cannot be settled."""
    try:
        yield
    except RateLimitUnavailable:
        pass  # it is in the log
    except ServiceError as refused:
        if error is None:
            raise
        _log.warning("a reservation is not settled, and its estimate stays spent: %s", refused)


def headers_of(api_key: str) -> dict[str, str]:
    """Return the headers of every request."""
    if not isinstance(api_key, str) or not api_key.isascii() or not api_key.isprintable() or not api_key:
        raise ConfigurationError("api_key is not a key: it is a text of letters, digits and '_'")
    return {"x-api-key": api_key}


def reply_of(response: httpx2.Response) -> Reply:
    """Return what a flow needs of a response."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    return Reply(response.status_code, response.headers.get("retry-after"), body)


def outage_of(error: httpx2.RequestError) -> Outage:
    """Return why there is no response."""
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


def _checked(url: str) -> str:
    """Return the service's URL. Raises ConfigurationError if it has no scheme: every check would be an outage, silently."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"url {url!r} is not where a service is: write it like 'http://ratekit:8080'")
    return url
