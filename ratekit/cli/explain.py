"""explain: why a request would pass or be refused now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ratekit import explanations
from ratekit.cli.checks import counter_lines, override_line
from ratekit.cli.session import Session, coloured, question, with_limits, with_store
from ratekit.counters import list_counters
from ratekit.fleet import SOURCE, get_fleet_mode
from ratekit.overrides import get_rate_limit_override


@click.command(short_help="Say why a request would pass or be refused.")
@click.argument("endpoint")
@click.argument("subject")
@click.option("--cost", default=1, show_default=True, help="How much the request would spend.")
@with_limits
@with_store
def explain(session: Session, endpoint: str, subject: str, cost: int, rates: tuple[str, ...], rules: str | None) -> None:
    """Say which rule, limit, override, mode and state decide a request of SUBJECT on ENDPOINT now. Nothing is spent.

    Limits are known to the application: tell them by --limit or --rules. Without, it says what the store knows.

    \b
    Examples:
      ratekit explain /search user:42 --limit 100/min --limit hour=5000/h
      ratekit explain /items/7 user:42 --rules shop.limits:RULES
    """
    asked = question(endpoint, rates, rules)
    if asked.policy is None:
        _tell_of_the_store(session, endpoint, subject)
        return
    explanation = explanations.explain(
        session.limiter, asked.policy, subject, endpoint=asked.endpoint, cost=cost, rule=asked.rule
    )
    word = coloured("refused" if explanation.is_refused else "allowed")
    session.tell(explanation.as_dict(), [word, str(explanation)])


def _tell_of_the_store(session: Session, endpoint: str, subject: str) -> None:
    counters = list_counters(session.limiter, endpoint=endpoint, subject=subject)
    override = get_rate_limit_override(session.limiter, endpoint=endpoint, subject=subject)
    fleet = get_fleet_mode(session.limiter)
    told: dict[str, Any] = {"endpoint": endpoint, "subject": subject, "override": override and asdict(override)}
    told |= {"counters": [asdict(counter) for counter in counters], "fleet_mode": fleet and asdict(fleet)}
    lines = ["which limits apply is known to the application: give --limit or --rules for what would happen now"]
    lines += [*counter_lines(counters), override_line(override), f"{SOURCE}  {coloured(fleet.mode) if fleet else 'none'}"]
    session.tell(told, lines)
