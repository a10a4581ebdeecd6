"""The command explain: why a request would pass or be refused now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ratekit.admin import explain as admin_explain
from ratekit.admin.counters import list_reservations, measure_counters
from ratekit.admin.explain import printable
from ratekit.admin.fleet_mode import SOURCE, get_fleet_mode
from ratekit.admin.overrides import get_rate_limit_override
from ratekit.cli.counters import counter_lines, override_line, reservation_lines
from ratekit.cli.session import COST_HELP, Costs, Session, coloured, question_of, with_limits, with_store
from ratekit.core.protocol import CostGiven


@click.command(short_help="Explain why a request would pass or be refused.")
@click.argument("endpoint")
@click.argument("subject")
@click.option("--cost", type=Costs(), default=1, show_default=True, help=COST_HELP)
@with_limits
@with_store
def explain(
    session: Session, endpoint: str, subject: str, cost: CostGiven, rates: tuple[str, ...], rules: str | None
) -> None:
    """Explain which rule, limit, override, mode and counters decide a request of SUBJECT on ENDPOINT now. Nothing is spent.

    The limits are known to the application: give them by --limit or --rules. Without them, it shows what is in the store.
    The mode is the weakest of those in this process's environment, in the store, and of the rule. The application's
    environment may have another one.

    \b
    Examples:
      ratekit explain /search user:42 --limit 100/min --limit hour=5000/h
      ratekit explain /items/7 user:42 --rules shop.limits:RULES
      ratekit explain /chat org:7 --limit 60/min --limit '90000 tokens/min' --cost tokens=800
    """
    question = question_of(endpoint, rates, rules, subject)
    if question.policy is None:
        _show_store(session, question.endpoint, subject)
        return
    explanation = admin_explain.explain(
        session.limiter,
        question.policy,
        subject,
        endpoint=question.endpoint,
        cost=cost,
        rule=question.rule,
        mode=question.mode,
    )
    word = coloured("refused" if explanation.is_refused else "allowed")
    session.answer(explanation.as_dict(), [word, str(explanation)])


def _show_store(session: Session, endpoint: str, subject: str) -> None:
    counters = measure_counters(session.limiter, endpoint=endpoint, subject=subject)
    override = get_rate_limit_override(session.limiter, endpoint=endpoint, subject=subject)
    fleet = get_fleet_mode(session.limiter)
    reserved = list_reservations(session.limiter, endpoint=endpoint, subject=subject)
    values: dict[str, Any] = {"endpoint": endpoint, "subject": subject, "override": override and asdict(override)}
    values |= {"counters": [asdict(counter) for counter in counters], "fleet_mode": fleet and asdict(fleet)}
    values["reservations"] = [asdict(one) for one in reserved]
    lines = ["the limits are known to the application: give --limit or --rules to see what would happen now"]
    lines += [f"endpoint  {printable(endpoint)}"]
    lines += [
        *counter_lines(counters),
        *reservation_lines(reserved),
        override_line(override),
        f"{SOURCE}  {coloured(fleet.mode) if fleet else 'none'}",
    ]
    session.answer(values, lines)
