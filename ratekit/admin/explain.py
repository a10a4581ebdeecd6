"""Explanations: which rule, limits, override, mode and counters decide a subject's next request. Nothing is spent."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, overload

from ratekit.admin.fleet_mode import SOURCE, FleetMode, get_fleet_mode
from ratekit.admin.override_hash import Numbers
from ratekit.admin.overrides import Override, get_rate_limit_override
from ratekit.core.compiled import as_policy
from ratekit.core.errors import RateLimitUnavailable
from ratekit.core.keys import ALL_ENDPOINTS
from ratekit.core.limit_text import format_seconds
from ratekit.core.limits import REQUESTS, Limit, Policy
from ratekit.core.modes import RateLimitMode, as_mode, mode_sources, weakest
from ratekit.core.protocol import CostGiven
from ratekit.core.results import RateLimitResult, Tier
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.limiter.operations import Anchor

OWN_MODE = "the limiter's own mode"
_ASKED = {
    "cost": "here it is as above",
    "estimate": "here it is as above",
    "share": "here all of each limit may be used",
    "anchor": "here periods are as the limits say",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What decides a subject's next request on an endpoint.

    `modes` has the mode of each source that gives one, by the source's name; the weakest counts.
    """

    endpoint: str
    subject: str
    cost: CostGiven
    policy: Policy
    rule: str | None  # the pattern that matched the endpoint, if there was one
    override: Override | None  # of the subject on the endpoint
    modes: Mapping[str, RateLimitMode]
    result: RateLimitResult
    wide_override: Override | None = None  # of the subject on all endpoints
    share: float | None = None  # the fraction of each capacity that the request may use
    anchor: Anchor = None  # from when the periods of calendars are counted
    by: str | None = None  # whom the limits count, if that is known
    asked: tuple[str, ...] = ()  # arguments that the application answers for each request

    @property
    def mode(self) -> RateLimitMode:
        """The mode that applies."""
        return weakest(*self.modes.values())

    @property
    def mode_source(self) -> str | None:
        """The name of the source of a mode other than on; None if the mode is on."""
        return next((name for name, mode in self.modes.items() if mode is self.mode is not RateLimitMode.ON), None)

    @property
    def is_refused(self) -> bool:
        """Whether a request would be refused now."""
        return self.result.is_over_limit and self.mode is RateLimitMode.ON

    @property
    def outcome(self) -> str:
        """What would happen to a request now, in one sentence."""
        if self.mode is RateLimitMode.OFF:
            return "passes, and is not counted: the mode is off"
        if self.is_refused:
            return f"is refused: {self.result.describe()}"
        if self.result.is_over_limit:
            return f"passes, as the mode is monitor; on would refuse it: {self.result.describe()}"
        return "passes: every limit is lifted" if self.result.unlimited else f"passes: {self.result.describe()}"

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as values for JSON."""
        return {
            "endpoint": self.endpoint,
            "subject": self.subject,
            "cost": dict(self.cost) if isinstance(self.cost, Mapping) else self.cost,
            "policy": self.policy.name,
            "rule": self.rule,
            "mode": str(self.mode),
            "mode_source": self.mode_source,
            "modes": {name: str(mode) for name, mode in self.modes.items()},
            "override": None if self.override is None else asdict(self.override),
            "wide_override": None if self.wide_override is None else asdict(self.wide_override),
            "limits": [tier_as_dict(tier) for tier in self.result.tiers],
            "binding": self.result.limit,
            "refused": self.is_refused,
            "outcome": self.outcome,
            "by": self.by,
            "share": self.share,
            "anchor": None if self.anchor is None else str(self.anchor),
            "asked": list(self.asked),
        }

    def __str__(self) -> str:
        who = f"{printable(self.subject)} on {printable(self.endpoint)}"
        lines = [f"{who}: a request that costs {_cost(self.cost)} {self.outcome}"]
        lines += [f"rule      {printable(self.rule)}"] if self.rule else []
        lines += [f"by        {printable(self.by)}"] if self.by else []
        lines.append(f"policy    {printable(self.policy.name)}, {len(self.policy.limits)} limit(s), decided together")
        lines += [f"limit     {describe_tier(tier)}" for tier in self.result.tiers]
        lines += [f"share     {self.share:g} of each limit, which is the maximum above"] if self.share is not None else []
        lines += [f"anchor    {self.anchor}"] if self.anchor is not None else []
        lines += [f"asked     the application says {name} for each request: {_ASKED[name]}" for name in self.asked]
        lines += [f"override  {line}" for line in self._overrides()]
        sources = ", ".join(f"{name}: {mode}" for name, mode in self.modes.items())
        lines.append(f"mode      {self.mode} ({sources or 'neither this process nor the store sets one'})")
        return "\n".join(lines)

    def _overrides(self) -> list[str]:
        wide = self.wide_override
        lines = [] if self.override is None else [describe_override(self.override)]
        return [*lines, *([] if wide is None else [f"on all endpoints: {describe_override(wide)}"])] or ["none"]


@overload
def explain(
    limiter: AsyncRateLimiter,
    policy: Policy | Limit,
    subject: str,
    *,
    endpoint: str | None = None,
    cost: CostGiven = 1,
    rule: str | None = None,
    mode: str | None = None,
    share: float | None = None,
    anchor: Anchor = None,
    by: str | None = None,
    asked: tuple[str, ...] = (),
) -> Coroutine[Any, Any, Explanation]: ...


@overload
def explain(
    limiter: RateLimiter,
    policy: Policy | Limit,
    subject: str,
    *,
    endpoint: str | None = None,
    cost: CostGiven = 1,
    rule: str | None = None,
    mode: str | None = None,
    share: float | None = None,
    anchor: Anchor = None,
    by: str | None = None,
    asked: tuple[str, ...] = (),
) -> Explanation: ...


def explain(
    limiter: RateLimiter | AsyncRateLimiter,
    policy: Policy | Limit,
    subject: str,
    *,
    endpoint: str | None = None,
    cost: CostGiven = 1,
    rule: str | None = None,
    mode: str | None = None,
    share: float | None = None,
    anchor: Anchor = None,
    by: str | None = None,
    asked: tuple[str, ...] = (),
) -> Explanation | Coroutine[Any, Any, Explanation]:
    """Return the Explanation of a subject's next request; with an AsyncRateLimiter, it is awaited.

    Nothing is spent. mode is the limiter's own mode, if it has one; share and anchor are as for a check. rule, by and asked
    are told as they are given: the rule that matched, whom it counts, and which arguments the application answers for each
    request. The fleet mode is read from the store, whether this process follows it or not. Raises RateLimitUnavailable if
    the store does not answer.
    """
    own_mode = None if mode is None else as_mode(mode)
    question = _Question(as_policy(policy), subject, endpoint, cost, rule, own_mode, share, anchor, by, asked)
    return question.ask_async(limiter) if isinstance(limiter, AsyncRateLimiter) else question.ask(limiter)


@dataclass(frozen=True, slots=True)
class _Question:
    policy: Policy
    subject: str
    given_endpoint: str | None
    cost: CostGiven
    rule: str | None
    mode: RateLimitMode | None
    share: float | None
    anchor: Anchor
    by: str | None
    asked: tuple[str, ...]

    @property
    def endpoint(self) -> str:
        return self.policy.name if self.given_endpoint is None else self.given_endpoint

    def ask(self, limiter: RateLimiter) -> Explanation:
        result = limiter.peek(
            self.policy, self.subject, cost=self.cost, endpoint=self.endpoint, share=self.share, anchor=self.anchor
        )
        own = get_rate_limit_override(limiter, endpoint=self.endpoint, subject=self.subject)
        wide = get_rate_limit_override(limiter, endpoint=ALL_ENDPOINTS, subject=self.subject)
        return self._answer(result, own, wide, get_fleet_mode(limiter))

    def ask_async(self, limiter: AsyncRateLimiter) -> Coroutine[Any, Any, Explanation]:
        peek = limiter.peek(  # checks the arguments now
            self.policy, self.subject, cost=self.cost, endpoint=self.endpoint, share=self.share, anchor=self.anchor
        )
        return self._awaited(limiter, peek)

    async def _awaited(self, limiter: AsyncRateLimiter, peek: Coroutine[Any, Any, RateLimitResult]) -> Explanation:
        result = await peek
        own = await get_rate_limit_override(limiter, endpoint=self.endpoint, subject=self.subject)
        wide = await get_rate_limit_override(limiter, endpoint=ALL_ENDPOINTS, subject=self.subject)
        return self._answer(result, own, wide, await get_fleet_mode(limiter))

    def _answer(
        self, result: RateLimitResult, own: Override | None, wide: Override | None, fleet: FleetMode | None
    ) -> Explanation:
        if result.degraded is not None:
            raise RateLimitUnavailable(result.degraded)
        modes = {name: mode for name, mode in mode_sources() if mode is not None}
        if fleet is not None:
            modes[SOURCE] = as_mode(fleet.mode, SOURCE)
        if self.mode is not None:
            modes[OWN_MODE] = self.mode
        told = (wide, self.share, self.anchor, self.by, self.asked)
        return Explanation(self.endpoint, self.subject, self.cost, self.policy, self.rule, own, modes, result, *told)


def tier_as_dict(tier: Tier) -> dict[str, Any]:
    """Return a limit's part of a result as values for JSON."""
    limit = tier.limit
    own: dict[str, Any] = {"max_requests": limit.max_requests, "window": limit.window, "burst": limit.burst}
    own |= {"unit": limit.unit, "calendar": None if limit.calendar is None else str(limit.calendar)}
    figures = {name: getattr(tier, name) for name in Tier._fields if name != "limit"}
    return {"name": tier.name, "algorithm": str(limit.algorithm), "shadow": limit.shadow, "own": own} | figures


def describe_tier(tier: Tier) -> str:
    """Return a limit's part of a result in one line."""
    limit = tier.limit
    name = f"{tier.name} ({str(limit).rpartition('=')[2]})"
    if tier.unlimited:
        return f"{name}: lifted"
    if tier.banned:
        return f"{name}: an override refuses everything for {_seconds(tier.retry_after or 0)} s, {tier.used} used"
    unit = "" if limit.unit == REQUESTS else f" {limit.unit}"
    most = f"{tier.max_requests}{unit}{' by override' if tier.overridden else ''}"
    state = f"{tier.used} of {most} used, {tier.remaining} left"
    resets = f", resets in {_seconds(tier.reset_after)} s" if tier.reset_after else ""
    refuses = ", would refuse" if limit.shadow else ", refuses"
    return f"{name}: {state}{resets}{'' if tier.allowed else refuses}{' at random, as it is soft' if tier.softly else ''}"


def describe_override(override: Override) -> str:
    """Return an override in one line."""
    first = _numbers(override.numbers)
    parts = [first] if first else []
    parts += [f"{name}: {_numbers(numbers)}" for name, numbers in override.limits.items()]
    parts += [f"unreadable: {', '.join(override.unreadable)}"] if override.unreadable else []
    parts += [f"note {override.note!r}"] if override.note else []
    parts += [f"by {printable(override.set_by)}"] if override.set_by else []
    parts += [f"ends in {_seconds(override.expires_in)} s"] if override.expires_in is not None else []
    return ", ".join(parts)


def _cost(cost: CostGiven) -> str:
    return " and ".join(f"{number} {unit}" for unit, number in cost.items()) if isinstance(cost, Mapping) else str(cost)


def printable(text: str) -> str:
    """Return a text for a terminal: one with unprintable characters is escaped, as they could control the terminal."""
    return text if text.isprintable() else ascii(text)


def _seconds(value: float) -> str:
    return format_seconds(round(value, 3))


def _as_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _numbers(numbers: Numbers) -> str:
    words = [f"{name} {getattr(numbers, name)}" for name in ("max_requests", "burst") if getattr(numbers, name) is not None]
    words += [f"expiry {format_seconds(numbers.expiry)}"] if numbers.expiry is not None else []
    words += [f"refused until {_as_time(numbers.until)}"] if numbers.until is not None else []
    return " ".join([*words, "unlimited"] if numbers.unlimited else words)
