"""The commands check, inspect and reset: the counters of one subject on one endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from ratekit.admin.counters import CounterState, ReservationState, delete_counters, list_reservations, measure_counters
from ratekit.admin.explain import describe_override, describe_tier, printable, tier_as_dict
from ratekit.admin.overrides import Override, get_rate_limit_override
from ratekit.cli.questions import UNCLEAR, Asked, Question, question_of
from ratekit.cli.session import COST_HELP, Costs, Session, coloured, table, warn_of_hash, with_limits, with_store
from ratekit.core.errors import RateLimitUnavailable
from ratekit.core.keys import ALL_ENDPOINTS
from ratekit.core.limit_text import format_seconds
from ratekit.core.protocol import CostGiven
from ratekit.core.results import RateLimitResult, Tier
from ratekit.limiter.limiters import RateLimiter
from ratekit.web.answers import ResponseWriter
from ratekit.web.checks import Check, grouped
from ratekit.web.decide import decide
from ratekit.web.drivers import run
from ratekit.web.ledger import Ledger

_SHOWN = 5  # reservations whose estimates are named


@click.command(short_help="Decide a request, and spend its cost.")
@click.argument("endpoint")
@click.argument("subject")
@click.option("--cost", type=Costs(), help=f"{COST_HELP} 0 passes: to look, use inspect.")
@with_limits
@with_store
def check(
    session: Session, endpoint: str, subject: str, cost: CostGiven | None, rates: tuple[str, ...], rules: str | None
) -> int:
    """Decide a request of SUBJECT on ENDPOINT, and spend its cost if it passes. The exit code is 1 if it is refused.

    \b
    Examples:
      ratekit check /search user:42 --limit 100/min
      ratekit check /search 1:42 --limit 20/s --limit 1000/h --cost 5 --json
      ratekit check /chat org:7 --limit 60/min --limit '90000 tokens/min' --cost tokens=800
    """
    warn_of_hash(subject)
    question = question_of(endpoint, rates, rules, subject)
    asked = question.told()
    results = _decided(session.limiter, asked, subject, question.costs(cost))
    deciding = next((result for result in results if result.is_over_limit), results[0])
    word = "allowed" if deciding.allowed else "refused"
    where = " and ".join(dict.fromkeys(printable(one.endpoint) for one in asked))
    lines = [f"{coloured(word)}: {printable(subject)} on {where}, {deciding.describe()}"]
    session.answer(_values(question.endpoint, subject, deciding, results), lines)
    return 0 if deciding.allowed else 1


def _decided(
    limiter: RateLimiter, asked: Sequence[Asked], subject: str, costs: Sequence[CostGiven]
) -> list[RateLimitResult]:
    """Decide a request as a front does: all or nothing. Returns a result for each call, up to the first that refuses."""
    if any(one.policy.has_slots for one in asked):
        raise click.UsageError("a concurrency limit holds its slot while a request runs, and no command does: use inspect")
    policies = [one.policy.anchored(one.anchor) for one in asked]
    checks = [
        Check.of(policy, subject, one.endpoint, limiter.prefix, cost, share=one.share)
        for one, policy, cost in zip(asked, policies, costs, strict=True)
    ]
    ledger, place = Ledger(), limiter.store.place
    verdict = run(decide(grouped(checks, one_slot=limiter.store.one_slot), ledger, ResponseWriter(), place), limiter)
    if verdict.error is not None and not ledger.results:
        raise verdict.error
    return ledger.results


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
    warn_of_hash(subject)
    question = question_of(endpoint, rates, rules, subject)
    values: dict[str, Any] = {"endpoint": question.endpoint, "subject": subject}
    if not question.asked:
        counters = measure_counters(session.limiter, endpoint=question.endpoint, subject=subject)
        values["counters"], lines = [asdict(counter) for counter in counters], counter_lines(counters)
    else:
        results = [_looked(session.limiter, one, subject) for one in question.asked]
        values |= _values(question.endpoint, subject, results[0], results)
        tiers = [(one, tier) for one, result in zip(question.asked, results, strict=True) for tier in result.tiers]
        values["limits"] = [tier_as_dict(tier) | {"by": one.by, "endpoint": one.endpoint} for one, tier in tiers]
        lines = [] if question.is_clear else [UNCLEAR]
        lines += [_limit_line(one, tier, question) for one, tier in tiers]
    reserved = _reserved(session.limiter, question.endpoints, subject)
    overrides, override_lines = overrides_of(session.limiter, question.endpoints, subject)
    values |= {"reservations": [asdict(one) for one in reserved]} | overrides
    session.answer(values, [*lines, *question.unknown_lines, *reservation_lines(reserved), *override_lines])


def _limit_line(asked: Asked, tier: Tier, question: Question) -> str:
    """Return the line of a limit; what it counts under is said where that differs."""
    under = f", counted under {printable(asked.endpoint)}" if len(question.endpoints) > 1 else ""
    return f"limit     {describe_tier(tier)}{f', by {asked.by}' if asked.by else ''}{under}"


def _reserved(limiter: RateLimiter, endpoints: Sequence[str], subject: str) -> list[ReservationState]:
    return [one for endpoint in endpoints for one in list_reservations(limiter, endpoint=endpoint, subject=subject)]


def overrides_of(limiter: RateLimiter, endpoints: Sequence[str], subject: str) -> tuple[dict[str, Any], list[str]]:
    """Return the overrides of a subject on some endpoints and on all, as values and as lines."""
    found = {one: get_rate_limit_override(limiter, endpoint=one, subject=subject) for one in endpoints}
    wide = get_rate_limit_override(limiter, endpoint=ALL_ENDPOINTS, subject=subject)
    as_values = {one: override and asdict(override) for one, override in found.items()}
    values: dict[str, Any] = {"override": as_values[endpoints[0]], "wide_override": wide and asdict(wide)}
    values |= {"overrides": as_values} if len(found) > 1 else {}
    where = {one: f"on {printable(one)}: " if len(found) > 1 else "" for one in found}
    told = [f"{where[one]}{describe_override(override)}" for one, override in found.items() if override]
    told += [f"on all endpoints: {describe_override(wide)}"] if wide else []
    return values, [f"override  {one}" for one in told or ["none"]]


def _looked(limiter: RateLimiter, asked: Asked, subject: str) -> RateLimitResult:
    """Return what is used of limits. Nothing is spent."""
    cost, share, anchor = asked.looking, asked.share, asked.anchor
    result = limiter.peek(asked.policy, subject, cost=cost, endpoint=asked.endpoint, share=share, anchor=anchor)
    if result.degraded is not None:
        raise RateLimitUnavailable(result.degraded)
    return result


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
    warn_of_hash(subject)
    question = question_of(endpoint, rates, rules, subject)
    if not question.asked:
        count = delete_counters(session.limiter, endpoint=question.endpoint, subject=subject)
    else:
        names: set[tuple[str, str]] = set()
        for one in question.asked:
            session.limiter.reset(one.policy, subject, endpoint=one.endpoint)
            names |= {(one.endpoint, limit.name) for limit in one.policy.limits}
        count = len(names)
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
    """Return a line about the reservations that nothing was returned of; none if there are none."""
    waiting = [one for one in reservations if not one.is_settled]
    if not waiting:
        return []
    # One that is over stays until it expires: what counted, or an estimate that nobody corrected, is never settled.
    estimates = ", ".join("+".join(map(str, one.estimate)) for one in waiting[:_SHOWN])
    more = "" if len(waiting) <= _SHOWN else f" and {len(waiting) - _SHOWN} more"
    return [
        f"reserved  {len(waiting)} under way, or over with nothing to return, of {estimates}{more}: part of what is used"
    ]


def override_line(override: Override | None) -> str:
    """Return the line of an override."""
    return f"override  {describe_override(override) if override else 'none'}"


def _counter_row(counter: CounterState) -> list[str | None]:
    used = None if counter.used is None else f"{'' if counter.is_exact else 'at most '}{counter.used}"
    shadow = "yes" if counter.shadow else None
    return [counter.limit, counter.algorithm, shadow, used, _seconds(counter.resets_in), _seconds(counter.expires_in)]


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{format_seconds(round(seconds, 3))} s"


def _values(endpoint: str, subject: str, deciding: RateLimitResult, results: Sequence[RateLimitResult]) -> dict[str, Any]:
    """Return the figures of the result that decides, with the limits of all."""
    names = ("allowed", "limit", "max_requests", "request_count", "remaining", "retry_after", "reset_after")
    values = {"endpoint": endpoint, "subject": subject} | {name: getattr(deciding, name) for name in names}
    would_violate = [name for result in results for name in result.would_violate]
    limits = [tier_as_dict(tier) for result in results for tier in result.tiers]
    return values | {"would_violate": would_violate, "limits": limits}
