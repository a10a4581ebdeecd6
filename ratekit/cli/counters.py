"""The commands check, inspect and reset: the counters of one subject on one endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from ratekit.admin.counters import CounterState, ReservationState, delete_counters, list_reservations, measure_counters
from ratekit.admin.explain import describe_override, describe_tier, printable, tier_as_dict
from ratekit.admin.overrides import Override, get_rate_limit_override
from ratekit.cli.session import COST_HELP, Costs, Session, coloured, policy_of, question_of, table, with_limits, with_store
from ratekit.core.limit_text import format_seconds
from ratekit.core.limits import REQUESTS, Policy
from ratekit.core.protocol import CostGiven
from ratekit.core.results import RateLimitResult

_SHOWN = 5  # reservations whose estimates are named


@click.command(short_help="Decide a request, and spend its cost.")
@click.argument("endpoint")
@click.argument("subject")
@click.option("--cost", type=Costs(), default=1, show_default=True, help=f"{COST_HELP} 0 passes: to look, use inspect.")
@with_limits
@with_store
def check(session: Session, endpoint: str, subject: str, cost: CostGiven, rates: tuple[str, ...], rules: str | None) -> int:
    """Decide a request of SUBJECT on ENDPOINT, and spend its cost if it passes. The exit code is 1 if it is refused.

    \b
    Examples:
      ratekit check /search user:42 --limit 100/min
      ratekit check /search 1:42 --limit 20/s --limit 1000/h --cost 5 --json
      ratekit check /chat org:7 --limit 60/min --limit '90000 tokens/min' --cost tokens=800
    """
    question = question_of(endpoint, rates, rules, subject)
    result = session.limiter.check(policy_of(question), subject, cost=cost, endpoint=question.endpoint)
    word = "allowed" if result.allowed else "refused"
    lines = [f"{coloured(word)}: {printable(subject)} on {printable(question.endpoint)}, {result.describe()}"]
    session.answer(_values(question.endpoint, subject, result), lines)
    return 0 if result.allowed else 1


@click.command(short_help="Show what a subject has used.")
@click.argument("endpoint")
@click.argument("subject")
@with_limits
@with_store
def inspect(session: Session, endpoint: str, subject: str, rates: tuple[str, ...], rules: str | None) -> None:
    """Show what SUBJECT has used on ENDPOINT, and its override. Nothing is spent.

    Without --limit or --rules, it shows the counters that are in the store. Their maximum is known to the application only.

    \b
    Examples:
      ratekit inspect /search user:42
      ratekit inspect /search user:42 --limit 100/min --json
    """
    question = question_of(endpoint, rates, rules, subject)
    override = get_rate_limit_override(session.limiter, endpoint=question.endpoint, subject=subject)
    values: dict[str, Any] = {"endpoint": question.endpoint, "subject": subject}
    if question.policy is None:
        counters = measure_counters(session.limiter, endpoint=question.endpoint, subject=subject)
        values["counters"], lines = [asdict(counter) for counter in counters], counter_lines(counters)
    else:
        result = session.limiter.peek(question.policy, subject, cost=looking(question.policy), endpoint=question.endpoint)
        values |= _values(question.endpoint, subject, result)
        lines = [f"limit     {describe_tier(tier)}" for tier in result.tiers]
    reserved = list_reservations(session.limiter, endpoint=question.endpoint, subject=subject)
    values |= {"reservations": [asdict(one) for one in reserved], "override": override and asdict(override)}
    session.answer(values, [*lines, *reservation_lines(reserved), override_line(override)])


@click.command(short_help="Delete the counters of a subject.")
@click.argument("endpoint")
@click.argument("subject")
@with_limits
@with_store
def reset(session: Session, endpoint: str, subject: str, rates: tuple[str, ...], rules: str | None) -> None:
    """Delete what SUBJECT has used on ENDPOINT; its override stays.

    Without --limit or --rules, it deletes every counter of SUBJECT on ENDPOINT that is in the store.

    \b
    Examples:
      ratekit reset /search user:42
      ratekit reset /search user:42 --limit 100/min
    """
    question = question_of(endpoint, rates, rules, subject)
    if question.policy is None:
        count = delete_counters(session.limiter, endpoint=question.endpoint, subject=subject)
    else:
        session.limiter.reset(question.policy, subject, endpoint=question.endpoint)
        count = len(question.policy.limits)
    values = {"endpoint": question.endpoint, "subject": subject, "counters": count}
    where = f"{printable(subject)} on {printable(question.endpoint)}"
    session.answer(values, [f"deleted: {count} counter(s) of {where}"])


def counter_lines(counters: list[CounterState]) -> list[str]:
    """Return the table of counters that were found by their keys."""
    if not counters:
        return ["counters  none"]
    names = ("limit", "algorithm", "shadow", "used", "resets in", "expires in")
    return table(names, [_counter_row(counter) for counter in counters])


def reservation_lines(reservations: Sequence[ReservationState]) -> list[str]:
    """Return a line about the reservations that are not settled yet; none if there are none."""
    waiting = [one for one in reservations if not one.is_settled]
    if not waiting:
        return []
    estimates = ", ".join("+".join(map(str, one.estimate)) for one in waiting[:_SHOWN])
    more = "" if len(waiting) <= _SHOWN else f" and {len(waiting) - _SHOWN} more"
    return [f"reserved  {len(waiting)} not settled yet, of {estimates}{more}: part of what is used"]


def looking(policy: Policy) -> CostGiven:
    """Return the cost that looks: 1, as a request would cost; nothing of other units, whose cost is not known."""
    others = [unit for unit in policy.units if unit != REQUESTS]
    return dict.fromkeys(others, 0) if others else 1


def override_line(override: Override | None) -> str:
    """Return the line of an override."""
    return f"override  {describe_override(override) if override else 'none'}"


def _counter_row(counter: CounterState) -> list[str | None]:
    used = None if counter.used is None else f"{'' if counter.is_exact else 'at most '}{counter.used}"
    shadow = "yes" if counter.shadow else None
    return [counter.limit, counter.algorithm, shadow, used, _seconds(counter.resets_in), _seconds(counter.expires_in)]


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{format_seconds(round(seconds, 3))} s"


def _values(endpoint: str, subject: str, result: RateLimitResult) -> dict[str, Any]:
    names = ("allowed", "limit", "max_requests", "request_count", "remaining", "retry_after", "reset_after")
    values = {"endpoint": endpoint, "subject": subject} | {name: getattr(result, name) for name in names}
    return values | {"would_violate": list(result.would_violate), "limits": [tier_as_dict(tier) for tier in result.tiers]}
