"""Decisions, and what is answered: one place for statuses, header lines and bodies."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from msgspec import Struct

from ratekit.core import clock
from ratekit.core.headers import RawLine, whole_seconds
from ratekit.core.modes import RateLimitMode
from ratekit.core.protocol import CostGiven
from ratekit.core.results import RateLimitResult
from ratekit_service.configuration.records import Plan, Tenant

_ON = RateLimitMode.ON
_JSON = (b"content-type", b"application/json")
_NO_STORE = (b"cache-control", b"no-store")


class Target(NamedTuple):
    """What a request is decided by: whose, by which plan, counted where."""

    tenant: Tenant
    plan: Plan
    endpoint: str  # in the store, with the tenant's id before it
    subject: str
    resource: str  # as the caller named it

    @property
    def counter(self) -> str:
        """The resource, or the counter of its resource policy: its endpoint without the tenant."""
        return self.endpoint.partition(":")[2]


class Decision(NamedTuple):
    """What was decided about a request. result is None where the mode is off.

    would_refuse: it passes only because its plan is monitored, or the limit that refuses it is a candidate.
    """

    target: Target
    result: RateLimitResult | None
    mode: RateLimitMode
    config_version: int
    allowed: bool = True
    would_refuse: bool = False
    slot: str | None = None

    @classmethod
    def of(
        cls, target: Target, result: RateLimitResult, mode: RateLimitMode, config_version: int, slot: str | None
    ) -> Decision:
        """Return the decision that a result means in a mode."""
        admits = result.allowed
        allowed = admits or mode is not _ON
        would_refuse = allowed and (not admits or (target.plan.has_candidates and bool(result.would_violate)))
        return cls(target, result, mode, config_version, allowed, would_refuse, slot)

    @property
    def status(self) -> int:
        """The status of the answer."""
        return 200 if self.allowed else 429

    @property
    def outcome(self) -> str:
        """One word for metrics and logs."""
        if self.result is None:
            return "off"
        if not self.allowed:
            return "denied"
        if self.result.degraded is not None:
            return "degraded"
        return "would_deny" if self.would_refuse else "allowed"

    @property
    def rule(self) -> str:
        """The plan, and its limit that the figures are of."""
        return self.target.plan.rules[self.binding]

    @property
    def binding(self) -> int:
        """The position of the limit that the figures are of."""
        return 0 if self.result is None or len(self.result.limits) == 1 else self.result.binding


class LimitState(Struct, gc=False):
    """What one limit of a plan says."""

    name: str
    allowed: bool
    limit: int
    used: int
    remaining: int
    reset_at: float
    shadow: bool
    unit: str


class CheckAnswer(Struct, omit_defaults=True):
    """The body of a decision."""

    allowed: bool
    remaining: int
    reset_at: float
    retry_after_ms: int | None
    limit: int
    rule: str
    plan_id: str
    config_version: int
    degraded: str | None
    slot: str | None = None
    would_refuse: bool = False
    limits: list[LimitState] | None = None


class BatchAnswer(Struct):
    """The body of a batch."""

    results: list[CheckAnswer]


class ReservationAnswer(CheckAnswer, omit_defaults=True):
    """The body of an answer about a reservation."""

    id: str | None = None
    estimate: CostGiven | None = None
    repeated: bool = False


class RuleAnswer(Struct, omit_defaults=True, gc=False):
    """The body of a decision by a rule."""

    allowed: bool
    remaining: int
    reset_at: int
    retry_after: int | None
    limit: int
    rule: str
    config_version: int
    degraded: str | None
    slot: str | None = None


class SlotAnswer(Struct, gc=False):
    """The body of an answer about a slot."""

    held: bool
    degraded: str | None


def check_answer(decision: Decision) -> CheckAnswer:
    """Return the body of a decision."""
    target, result, _, version, allowed, would_refuse, slot = decision
    plan, rule = target.plan, decision.rule
    if result is None:
        most = plan.policy.limits[0].capacity
        return CheckAnswer(allowed, most, round(clock.now(), 3), 0, most, rule, plan.id, version, None)
    most, remaining, reset_us = result.window_us
    reset_at = round(result.decided_at + reset_us / 1_000_000, 3)
    wait = 0 if allowed else _milliseconds(result)
    limits = None if len(plan.rules) == 1 and not plan.units else limit_states(result)
    return CheckAnswer(
        allowed, remaining, reset_at, wait, most, rule, plan.id, version, result.degraded, slot, would_refuse, limits
    )


def reservation_answer(decision: Decision, settles: str | None = None, estimate: CostGiven = 0) -> ReservationAnswer:
    """Return the body of an answer about a reservation: with an id that settles it, if there is something to settle."""
    shown = check_answer(decision)
    answer = ReservationAnswer(*(getattr(shown, name) for name in CheckAnswer.__struct_fields__))
    if settles is not None:
        answer.id, answer.estimate = settles, estimate
        answer.slot = settles if decision.target.plan.policy.has_slots else None
    answer.repeated = decision.result is not None and decision.result.repeated
    return answer


def rule_answer(decision: Decision) -> RuleAnswer:
    """Return the body of a decision by a rule."""
    answer = check_answer(decision)
    wait = answer.retry_after_ms
    return RuleAnswer(
        answer.allowed,
        answer.remaining,
        ceil(answer.reset_at),
        wait if not wait else whole_seconds(wait / 1000),
        answer.limit,
        answer.rule,
        answer.config_version,
        answer.degraded,
        answer.slot,
    )


def limit_states(result: RateLimitResult) -> list[LimitState]:
    """Return what each limit says; nothing if the store could not decide."""
    return [
        LimitState(
            tier.name,
            tier.allowed,
            tier.max_requests,
            tier.used,
            tier.remaining,
            result.decided_at + tier.reset_after,
            tier.limit.shadow,
            tier.limit.unit,
        )
        for tier in result.tiers
    ]


def header_lines(decision: Decision, *, refused: bool = True) -> list[RawLine]:
    """Return the header lines of an answer, but for its length. refused: a refusal is a 429, and has Retry-After."""
    lines = plain_lines(decision.config_version)
    result = decision.result
    if result is None:
        return lines
    lines.append(decision.target.plan.rule_lines[decision.binding])
    if result.is_shown:
        lines += decision.target.tenant.style.raw_lines(result)
    if refused and not decision.allowed and result.retry_after is not None:
        lines.append((b"retry-after", b"%d" % whole_seconds(result.retry_after)))
    return lines


def plain_lines(config_version: int) -> list[RawLine]:
    """Return the header lines of an answer that is no single decision."""
    return [_JSON, _NO_STORE, _version_line(config_version)]


@lru_cache(maxsize=4)
def _version_line(config_version: int) -> RawLine:
    return b"x-ratekit-config-version", b"%d" % config_version


def _milliseconds(result: RateLimitResult) -> int | None:
    wait = result.retry_after
    return None if wait is None else ceil(wait * 1000)
