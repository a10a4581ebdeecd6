"""check, inspect and reset: one subject on one endpoint."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ratekit.cli.session import Session, coloured, known, question, table, with_limits, with_store
from ratekit.counters import CounterState, delete_counters, list_counters
from ratekit.explanations import describe_override, describe_tier, shown, tier_as_dict
from ratekit.limits import plain_seconds
from ratekit.overrides import Override, get_rate_limit_override
from ratekit.results import RateLimitResult


@click.command(short_help="Decide a request, and spend its cost.")
@click.argument("endpoint")
@click.argument("subject")
@click.option("--cost", default=1, show_default=True, help="How much the request spends.")
@with_limits
@with_store
def check(session: Session, endpoint: str, subject: str, cost: int, rates: tuple[str, ...], rules: str | None) -> int:
    """Decide a request of SUBJECT on ENDPOINT, and spend its cost if it may pass. The exit code is 1 if it is refused.

    \b
    Examples:
      ratekit check /search user:42 --limit 100/min
      ratekit check /search 1:42 --limit 20/s --limit 1000/h --cost 5 --json
    """
    asked = question(endpoint, rates, rules)
    result = session.limiter.check(known(asked), subject, cost=cost, endpoint=asked.endpoint)
    word = "allowed" if result.allowed else "refused"
    lines = [f"{coloured(word)}: {shown(subject)} on {shown(asked.endpoint)}, {result.describe()}"]
    session.tell(_told(asked.endpoint, subject, result), lines)
    return 0 if result.allowed else 1


@click.command(short_help="Show what a subject has used.")
@click.argument("endpoint")
@click.argument("subject")
@with_limits
@with_store
def inspect(session: Session, endpoint: str, subject: str, rates: tuple[str, ...], rules: str | None) -> None:
    """Show what SUBJECT has used on ENDPOINT, and its override, without spending.

    Without --limit or --rules, the counters are shown that are found in the store.

    \b
    Examples:
      ratekit inspect /search user:42
      ratekit inspect /search user:42 --limit 100/min --json
    """
    asked = question(endpoint, rates, rules)
    override = get_rate_limit_override(session.limiter, endpoint=asked.endpoint, subject=subject)
    told: dict[str, Any] = {"endpoint": asked.endpoint, "subject": subject}
    if asked.policy is None:
        counters = list_counters(session.limiter, endpoint=endpoint, subject=subject)
        told["counters"], lines = [asdict(counter) for counter in counters], counter_lines(counters)
    else:
        result = session.limiter.peek(asked.policy, subject, endpoint=asked.endpoint)
        told |= _told(asked.endpoint, subject, result)
        lines = [f"limit     {describe_tier(tier)}" for tier in result.tiers]
    session.tell(told | {"override": override and asdict(override)}, [*lines, override_line(override)])


@click.command(short_help="Forget what a subject has used.")
@click.argument("endpoint")
@click.argument("subject")
@with_limits
@with_store
def reset(session: Session, endpoint: str, subject: str, rates: tuple[str, ...], rules: str | None) -> None:
    """Forget what SUBJECT has used on ENDPOINT; its override stays.

    Without --limit or --rules, every counter is forgotten that is found in the store.

    \b
    Examples:
      ratekit reset /search user:42
      ratekit reset /search user:42 --limit 100/min
    """
    asked = question(endpoint, rates, rules)
    if asked.policy is None:
        count = delete_counters(session.limiter, endpoint=endpoint, subject=subject)
    else:
        session.limiter.reset(asked.policy, subject, endpoint=asked.endpoint)
        count = len(asked.policy.limits)
    told = {"endpoint": asked.endpoint, "subject": subject, "counters": count}
    session.tell(told, [f"forgotten: {count} counter(s) of {shown(subject)} on {shown(asked.endpoint)}"])


def counter_lines(counters: list[CounterState]) -> list[str]:
    """Return what is shown of counters that were found by their keys."""
    if not counters:
        return ["counters  none"]
    rows = [
        (counter.limit, counter.algorithm, "yes" if counter.shadow else None, _left(counter.expires_in))
        for counter in counters
    ]
    return table(("limit", "algorithm", "shadow", "expires in"), rows)


def override_line(override: Override | None) -> str:
    """Return what is shown of an override."""
    return f"override  {describe_override(override) if override else 'none'}"


def _left(seconds: float | None) -> str | None:
    return None if seconds is None else f"{plain_seconds(round(seconds, 3))} s"


def _told(endpoint: str, subject: str, result: RateLimitResult) -> dict[str, Any]:
    names = ("allowed", "limit", "max_requests", "request_count", "remaining", "retry_after", "reset_after")
    told = {"endpoint": endpoint, "subject": subject} | {name: getattr(result, name) for name in names}
    return told | {"would_violate": list(result.would_violate), "limits": [tier_as_dict(tier) for tier in result.tiers]}
