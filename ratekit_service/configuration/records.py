"""What the configuration is made of: one record for each row, ready for checks."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ratekit.core.compiled import compiled
from ratekit.core.errors import ConfigurationError
from ratekit.core.headers import RawLine, Style, check_style, combined
from ratekit.core.limits import REQUESTS, Policy
from ratekit.core.modes import RateLimitMode, as_mode
from ratekit.core.outages import OnOutage
from ratekit.database.rows import limit_of_rule
from ratekit_service.plans.definitions import terms_of

DEFAULT_STYLE = "x-ratelimit"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant. `style` says which headers its answers have; `limit` bounds what it asks of one instance."""

    id: str
    name: str
    default_plan_id: str | None
    mode: RateLimitMode
    style: Style
    limit: Policy | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What decides: a plan, or a rule, which is a plan for one client key and endpoint."""

    id: str
    tenant_id: str
    name: str
    policy: Policy
    algorithm: str
    mode: RateLimitMode
    on_outage: OnOutage | None
    is_rule: bool = False
    has_candidates: bool = field(init=False)  # limits that do not refuse, but say whether they would
    rules: tuple[str, ...] = field(init=False)  # the plan's name with that of each of its limits, for answers
    rule_lines: tuple[RawLine, ...] = field(init=False)  # the same as header lines
    units: tuple[str, ...] = field(init=False)  # that a cost has to name; empty if only requests are counted

    def __post_init__(self) -> None:
        rules = tuple(f"{self.name}/{limit.name}" for limit in self.policy.limits)
        object.__setattr__(self, "has_candidates", any(limit.shadow for limit in self.policy.limits))
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "rule_lines", tuple((b"x-ratekit-rule", _ascii(rule)) for rule in rules))
        object.__setattr__(self, "units", compiled(self.policy, overrides=True).units)


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. `expires` is in seconds since the epoch."""

    id: str
    tenant_id: str
    plan_id: str | None
    salt: bytes
    key_hash: bytes
    scopes: frozenset[str]
    expires: float | None
    is_revoked: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by client key and endpoint; "*" stands for any."""

    id: str
    tenant_id: str
    client_key: str
    endpoint: str
    plan: Plan | None  # None: it is not enabled


def requests_policy(name: str, text: str) -> Policy:
    """Return the policy of a limit of the service itself. Raises ConfigurationError if it counts other than requests."""
    policy = Policy(name, text)
    if policy.units != (REQUESTS,):
        raise ConfigurationError(f"limit {text!r} counts {', '.join(policy.units)}: only requests can be counted here")
    return policy


def tenant_of(row: Mapping[str, Any], default_limit: Policy | None) -> Tenant:
    """Return the tenant of a row."""
    settings = row["settings"] or {}
    limit = settings.get("service_limit")
    return Tenant(
        id=row["id"],
        name=row["name"],
        default_plan_id=row["default_plan_id"],
        mode=as_mode(settings.get("mode") or "on"),
        style=combined([check_style(style) for style in settings.get("headers") or [DEFAULT_STYLE]]),
        limit=requests_policy("tenant", limit) if limit else default_limit,
    )


def plan_of(row: Mapping[str, Any]) -> Plan:
    """Return the plan of a row."""
    policy, algorithm, mode, on_outage = terms_of(row["name"], row["definition"])
    return Plan(row["id"], row["tenant_id"], row["name"], policy, algorithm, mode, on_outage)


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the key of a row."""
    return Key(
        id=row["id"],
        tenant_id=row["tenant_id"],
        plan_id=row["plan_id"],
        salt=bytes.fromhex(row["salt"]),
        key_hash=bytes.fromhex(row["key_hash"]),
        scopes=frozenset(row["scopes"]),
        expires=_epoch(row["expires_at"]),
        is_revoked=row["revoked_at"] is not None,
    )


def rule_of(row: Mapping[str, Any]) -> Rule:
    """Return the rule of a row."""
    name = f"{row['client_key']} on {row['endpoint']}"
    limit = limit_of_rule(row["algorithm"], row["max_requests"], row["window_secs"], row["burst_size"])
    plan = Plan(
        id=f"rule_{row['rule_id']}",
        tenant_id=row["tenant_id"],
        name=name,
        policy=Policy(name, limit),
        algorithm=str(limit.algorithm),
        mode=as_mode(row["mode"] or "on"),
        on_outage=None if row["on_outage"] is None else OnOutage(row["on_outage"]),
        is_rule=True,
    )
    enabled = plan if row["enabled"] else None
    return Rule(str(row["rule_id"]), row["tenant_id"], row["client_key"], row["endpoint"], enabled)


def _epoch(time: datetime.datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _ascii(text: str) -> bytes:
    """Return a text as a header carries it: what is not printable ASCII is escaped."""
    if text.isascii() and text.isprintable():
        return text.encode()
    return text.encode("unicode_escape").replace(b"\n", b"\\n")
