"""Why a request would pass or be refused now: rule, limits, override, mode and state, without spending anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ratekit.errors import RateLimitUnavailable
from ratekit.fleet import SOURCE, FleetMode, get_fleet_mode
from ratekit.limiter import AsyncRateLimiter, RateLimiter
from ratekit.limits import Limit, Policy, plain_seconds
from ratekit.modes import RateLimitMode, as_mode, mode_sources, weakest
from ratekit.overrides import Override, get_rate_limit_override
from ratekit.plans import as_policy
from ratekit.results import RateLimitResult, Tier

OWN_MODE = "the limiter's own mode"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What decides a subject's next request on an endpoint. `modes` has what each source says; the weakest counts."""

    endpoint: str
    subject: str
    cost: int
    policy: Policy
    rule: str | None  # the pattern that the endpoint was found by, if it was
    override: Override | None
    modes: Mapping[str, RateLimitMode]
    result: RateLimitResult

    @property
    def mode(self) -> RateLimitMode:
        """The mode that applies."""
        return weakest(*self.modes.values())

    @property
    def mode_source(self) -> str | None:
        """Who says so; None if nobody says anything but on."""
        return next((name for name, mode in self.modes.items() if mode is self.mode is not RateLimitMode.ON), None)

    @property
    def is_refused(self) -> bool:
        """Whether a request now would be refused."""
        return self.result.is_over_limit and self.mode is RateLimitMode.ON

    @property
    def outcome(self) -> str:
        """Say in one sentence what would happen to a request now."""
        if self.mode is RateLimitMode.OFF:
            return "passes, and is not counted: the mode is off"
        if self.is_refused:
            return f"is refused: {self.result.describe()}"
        if self.result.is_over_limit:
            return f"passes, as the mode is monitor; on would refuse it: {self.result.describe()}"
        return "passes: every limit is lifted" if self.result.unlimited else f"passes: {self.result.describe()}"

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as values that JSON knows."""
        return {
            "endpoint": self.endpoint,
            "subject": self.subject,
            "cost": self.cost,
            "policy": self.policy.name,
            "rule": self.rule,
            "mode": str(self.mode),
            "mode_source": self.mode_source,
            "modes": {name: str(mode) for name, mode in self.modes.items()},
            "override": None if self.override is None else asdict(self.override),
            "limits": [tier_as_dict(tier) for tier in self.result.tiers],
            "binding": self.result.limit,
            "refused": self.is_refused,
            "outcome": self.outcome,
        }

    def __str__(self) -> str:
        lines = [f"{shown(self.subject)} on {shown(self.endpoint)}: a request that costs {self.cost} {self.outcome}"]
        lines += [f"rule      {shown(self.rule)}"] if self.rule else []
        lines.append(f"policy    {shown(self.policy.name)}, {len(self.policy.limits)} limit(s), decided together")
        lines += [f"limit     {describe_tier(tier)}" for tier in self.result.tiers]
        lines.append(f"override  {describe_override(self.override) if self.override else 'none'}")
        said = ", ".join(f"{name}: {mode}" for name, mode in self.modes.items()) or "nobody says otherwise"
        lines.append(f"mode      {self.mode} ({said})")
        return "\n".join(lines)


def explain(
    limiter: RateLimiter | AsyncRateLimiter,
    policy: Policy | Limit,
    subject: str,
    *,
    endpoint: str | None = None,
    cost: int = 1,
    rule: str | None = None,
    mode: str | None = None,
) -> Any:
    """Return the Explanation of a subject's next request, to be awaited if the limiter is asynchronous.

    Nothing is spent. mode is the limiter's own one, if it has one. The mode of the fleet is read from the store, whether
    this process follows it or not. Raises RateLimitUnavailable if the store cannot tell.
    """
    question = _Question(as_policy(policy), subject, endpoint, cost, rule, None if mode is None else as_mode(mode))
    if isinstance(limiter, AsyncRateLimiter):
        return question.awaited(limiter)
    return question.answer(question.peek(limiter), question.override(limiter), get_fleet_mode(limiter))


@dataclass(frozen=True, slots=True)
class _Question:
    policy: Policy
    subject: str
    given: str | None
    cost: int
    rule: str | None
    mode: RateLimitMode | None

    @property
    def endpoint(self) -> str:
        return self.policy.name if self.given is None else self.given

    def peek(self, limiter: Any) -> Any:
        return limiter.peek(self.policy, self.subject, cost=self.cost, endpoint=self.endpoint)

    def override(self, limiter: Any) -> Any:
        return get_rate_limit_override(limiter, endpoint=self.endpoint, subject=self.subject)

    async def awaited(self, limiter: AsyncRateLimiter) -> Explanation:
        return self.answer(await self.peek(limiter), await self.override(limiter), await get_fleet_mode(limiter))

    def answer(self, result: RateLimitResult, override: Override | None, fleet: FleetMode | None) -> Explanation:
        if result.degraded is not None:
            raise RateLimitUnavailable(result.degraded)
        said = dict(mode_sources())
        if fleet is not None:
            said[SOURCE] = as_mode(fleet.mode, SOURCE)
        if self.mode is not None:
            said[OWN_MODE] = self.mode
        return Explanation(self.endpoint, self.subject, self.cost, self.policy, self.rule, override, said, result)


def tier_as_dict(tier: Tier) -> dict[str, Any]:
    """Return what a limit says as values that JSON knows."""
    limit = tier.limit
    own = {"max_requests": limit.max_requests, "window": limit.window, "burst": limit.burst}
    said = {name: getattr(tier, name) for name in Tier._fields if name != "limit"}
    return {"name": tier.name, "algorithm": str(limit.algorithm), "shadow": limit.shadow, "own": own} | said


def describe_tier(tier: Tier) -> str:
    """Say in one line what a limit says."""
    limit = tier.limit
    burst = f" burst {limit.burst}" if limit.burst is not None else ""
    own = f"{limit.max_requests}/{plain_seconds(limit.window)}s{burst} {limit.algorithm}{' shadow' if limit.shadow else ''}"
    if tier.unlimited:
        return f"{tier.name} ({own}): lifted"
    changed = " by override" if tier.overridden else ""
    state = f"{tier.used} of {tier.max_requests}{changed} used, {tier.remaining} left"
    resets = f", resets in {_seconds(tier.reset_after)} s" if tier.reset_after else ""
    return f"{tier.name} ({own}): {state}{resets}{'' if tier.allowed else ', would refuse' if limit.shadow else ', refuses'}"


def describe_override(override: Override) -> str:
    """Say in one line what an override says."""
    first = _numbers(override)
    parts = [first] if first else []
    parts += [f"{name}: {_numbers(numbers)}" for name, numbers in override.limits.items()]
    parts += [f"unreadable: {', '.join(override.unreadable)}"] if override.unreadable else []
    parts += [f"note {override.note!r}"] if override.note else []
    parts += [f"by {shown(override.set_by)}"] if override.set_by else []
    parts += [f"ends in {_seconds(override.expires_in)} s"] if override.expires_in is not None else []
    return ", ".join(parts)


def shown(text: str) -> str:
    """Return a text for people: what cannot be printed is escaped, as it might talk to their terminal."""
    return text if text.isprintable() else ascii(text)


def _seconds(value: float) -> str:
    return plain_seconds(round(value, 3))


def _numbers(numbers: Any) -> str:
    said = [f"{name} {getattr(numbers, name)}" for name in ("max_requests", "burst") if getattr(numbers, name) is not None]
    said += [f"expiry {plain_seconds(numbers.expiry)}"] if numbers.expiry is not None else []
    return " ".join([*said, "unlimited"] if numbers.unlimited else said)
