"""The hot paths: from a key and a decoded request to a status, header lines and a body. Both fronts call these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ratekit.core.headers import RawLine
from ratekit.core.protocol import CHECK, Operation
from ratekit_service.checks import answers, quotas
from ratekit_service.checks.answers import Decision
from ratekit_service.checks.decide import Decider
from ratekit_service.checks.requests import (
    BatchRequest,
    CheckRequest,
    CommitRequest,
    ReserveRequest,
    RuleRequest,
    SlotRequest,
)
from ratekit_service.checks.reservations import Reservations
from ratekit_service.configuration.records import Key
from ratekit_service.configuration.refresher import Refresher
from ratekit_service.problems import invalid


class Answer(NamedTuple):
    """What is sent back: a status, header lines without the length, and a body that is still to be encoded."""

    status: int
    headers: list[RawLine]
    body: Any
    decisions: tuple[Decision, ...] = ()


Handle = Callable[[Key, Any], Awaitable[Answer]]


class HotPath(NamedTuple):
    """One hot path: what it reads, the scope that a key needs for it, and what it does."""

    path: str
    request: type[Any]
    scope: str
    handle: Handle


def answer_of(decision: Decision) -> Answer:
    """Return the answer to a check."""
    return Answer(decision.status, answers.header_lines(decision), answers.check_answer(decision), (decision,))


def rule_answer_of(decision: Decision) -> Answer:
    """Return the answer to a check by a rule."""
    return Answer(decision.status, answers.header_lines(decision), answers.rule_answer(decision), (decision,))


class Handlers:
    """What each hot path does."""

    def __init__(self, decider: Decider, refresher: Refresher) -> None:
        self._decider = decider
        self._refresher = refresher
        self._reservations = Reservations(decider)

    def check(self, key: Key, request: CheckRequest) -> Awaitable[Answer]:
        """Decide a request by a plan."""
        decider = self._decider
        target = decider.target(key, decider.tenant_of(key), request)
        return decider.decide_then(target, answer_of, CHECK, request.cost, quotas.with_share(request.share))

    async def peek(self, key: Key, request: CheckRequest) -> Answer:
        """Say what a check would answer, and spend nothing: always a 200."""
        return await self._operate(key, request, Operation.PEEK)

    async def charge(self, key: Key, request: CheckRequest) -> Answer:
        """Spend a cost whatever the maximum."""
        return await self._operate(key, request, Operation.CHARGE)

    async def refund(self, key: Key, request: CheckRequest) -> Answer:
        """Give a cost back."""
        return await self._operate(key, request, Operation.REFUND)

    async def batch(self, key: Key, request: BatchRequest) -> Answer:
        """Decide several requests, each for itself. Nothing is decided if one of them makes no sense."""
        decider, checks = self._decider, request.checks
        tenant = decider.tenant_of(key, len(checks))
        targets = [decider.target(key, tenant, one, f"checks[{index}].") for index, one in enumerate(checks)]
        decisions = await decider.decide_many(targets, checks)
        body = answers.BatchAnswer([answers.check_answer(decision) for decision in decisions])
        return Answer(200, answers.plain_lines(self._refresher.configuration.version), body, tuple(decisions))

    def check_rule(self, key: Key, request: RuleRequest) -> Awaitable[Answer]:
        """Decide a request by the rules of a client key and an endpoint."""
        decider = self._decider
        target = decider.rule_target(key, decider.tenant_of(key), request.client_key, request.endpoint, request.cost)
        return decider.decide_then(target, rule_answer_of, CHECK, request.cost)

    async def release(self, key: Key, request: SlotRequest) -> Answer:
        """Free a slot; no matter if it is not held any more."""
        return self._slot_answer(await self._decider.slot(key, request.slot, Operation.RELEASE))

    async def renew(self, key: Key, request: SlotRequest) -> Answer:
        """Keep a slot for longer."""
        return self._slot_answer(await self._decider.slot(key, request.slot, Operation.RENEW))

    async def reserve(self, key: Key, request: ReserveRequest) -> Answer:
        """Spend an estimate that a commit settles."""
        booked = await self._reservations.reserve(key, request)
        decision = booked.decision
        body = answers.reservation_answer(decision, booked.id, booked.estimate)
        return Answer(decision.status, answers.header_lines(decision), body, (decision,))

    async def commit(self, key: Key, request: CommitRequest) -> Answer:
        """Settle a reservation by what it has cost: always a 200."""
        decision = await self._reservations.commit(key, request)
        return Answer(200, answers.header_lines(decision, refused=False), answers.reservation_answer(decision))

    def table(self) -> dict[str, HotPath]:
        """Return the hot paths."""
        rows = [
            HotPath("/v1/check", CheckRequest, "check", self.check),
            HotPath("/v1/check/batch", BatchRequest, "check", self.batch),
            HotPath("/check", RuleRequest, "check", self.check_rule),
            HotPath("/v1/peek", CheckRequest, "read", self.peek),
            HotPath("/v1/charge", CheckRequest, "charge", self.charge),
            HotPath("/v1/refund", CheckRequest, "charge", self.refund),
            HotPath("/v1/release", SlotRequest, "check", self.release),
            HotPath("/v1/renew", SlotRequest, "check", self.renew),
            HotPath("/v1/reserve", ReserveRequest, "check", self.reserve),
            HotPath("/v1/commit", CommitRequest, "check", self.commit),
        ]
        return {row.path: row for row in rows}

    async def _operate(self, key: Key, request: CheckRequest, operation: Operation) -> Answer:
        decider = self._decider
        target = decider.target(key, decider.tenant_of(key), request)
        if request.share is not None and operation is not Operation.PEEK:
            raise invalid(f"share {request.share} makes no sense: a {operation} is not judged", "share")
        decision = await decider.decide(target, operation, request.cost, quotas.with_share(request.share))
        return Answer(200, answers.header_lines(decision, refused=False), answers.check_answer(decision))

    def _slot_answer(self, body: answers.SlotAnswer) -> Answer:
        return Answer(200, answers.plain_lines(self._refresher.configuration.version), body)
