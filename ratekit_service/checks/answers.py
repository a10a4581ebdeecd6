"""Decisions, and what is answered: one place for statuses, header lines and bodies."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from msgspec import Struct

from ratekit.core import clock
from ratekit.core.headers import RawLine, whole_seconds
from ratekit.core.modes import RateLimitMode
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
        would_refuse = allowed and (not admits or bool(_candidates(result)))
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
        plan = self.target.plan
        name = plan.policy.limits[0].name if self.result is None else self.result.limit
        return f"{plan.name}/{name}"


class LimitState(Struct, gc=False):
    """What one limit of a plan says."""

    name: str
    allowed: bool
    limit: int
    used: int
    remaining: int
    reset_at: float
    shadow: bool


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


class RuleAnswer(Struct, gc=False):
    """The body of a decision by a rule."""

    allowed: bool
    remaining: int
    reset_at: int
    retry_after: int | None
    limit: int
    rule: str
    config_version: int
    degraded: str | None


class SlotAnswer(Struct, gc=False):
    """The body of an answer about a slot."""

    held: bool
    degraded: str | None


def check_answer(decision: Decision) -> CheckAnswer:
    """Return the body of a decision."""
    result, plan = decision.result, decision.target.plan
    if result is None:
        most = plan.policy.limits[0].capacity
        now, version = round(clock.now(), 3), decision.config_version
        return CheckAnswer(decision.allowed, most, now, 0, most, decision.rule, plan.id, version, None)
    answer = CheckAnswer(
        decision.allowed,
        result.remaining,
        round(result.reset_at, 3),
        0 if decision.allowed else _milliseconds(result),
        result.max_requests,
        decision.rule,
        plan.id,
        decision.config_version,
        result.degraded,
        decision.slot,
        decision.would_refuse,
    )
    if len(plan.policy.limits) > 1:
        answer.limits = limit_states(result)
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
        )
        for tier in result.tiers
    ]


def header_lines(decision: Decision, *, refused: bool = True) -> list[RawLine]:
    """Return the header lines of an answer, but for its length. refused: a refusal is a 429, and has Retry-After."""
    lines = [_JSON, _NO_STORE, (b"x-ratekit-config-version", b"%d" % decision.config_version)]
    result = decision.result
    if result is None:
        return lines
    lines.append((b"x-ratekit-rule", _ascii(decision.rule)))
    if result.is_shown:
        lines += decision.target.tenant.style.raw_lines(result)
    if refused and not decision.allowed and result.retry_after is not None:
        lines.append((b"retry-after", b"%d" % whole_seconds(result.retry_after)))
    return lines


def plain_lines(config_version: int) -> list[RawLine]:
    """Return the header lines of an answer that is no single decision."""
    return [_JSON, _NO_STORE, (b"x-ratekit-config-version", b"%d" % config_version)]


def _milliseconds(result: RateLimitResult) -> int | None:
    wait = result.retry_after
    return None if wait is None else ceil(wait * 1000)


def _candidates(result: RateLimitResult) -> tuple[str, ...]:
    return result.would_violate if any(limit.shadow for limit in result.limits) else ()


def _ascii(text: str) -> bytes:
    """Return a text as a header carries it: what is not printable ASCII is escaped."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return text.encode("unicode_escape").replace(b"\n", b"\\n")
