"""The command explain: why a request would pass or be refused now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ratekit.admin import explain as admin_explain
from ratekit.admin.counters import list_reservations, measure_counters
from ratekit.admin.explain import Explanation, printable
from ratekit.admin.fleet_mode import SOURCE, get_fleet_mode
from ratekit.cli.counters import counter_lines, overrides_of, reservation_lines
from ratekit.cli.questions import UNCLEAR, Asked, question_of
from ratekit.cli.session import COST_HELP, Costs, Session, coloured, warn_of_hash, with_limits, with_store
from ratekit.core.protocol import CostGiven

_NOT_TOLD = "the limits are known to the application: give --limit or --rules to see what would happen now"


@click.command(short_help="Explain why a request would pass or be refused.")
@click.argument("endpoint")
@click.argument("subject")
@click.option("--cost", type=Costs(), help=COST_HELP)
@with_limits
@with_store
def explain(
    session: Session, endpoint: str, subject: str, cost: CostGiven | None, rates: tuple[str, ...], rules: str | None
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
    warn_of_hash(subject)
    question = question_of(endpoint, rates, rules, subject)
    if not question.asked:
        values, lines = _in_store(session, question.endpoint, subject)
        session.answer(values, [_NOT_TOLD, *question.unknown_lines, *lines])
        return
    explanations = [
        _explained(session, one, subject, amount) for one, amount in zip(question.asked, question.costs(cost), strict=True)
    ]
    deciding = next((one for one in explanations if one.is_refused), explanations[0])
    values = deciding.as_dict()
    if len(explanations) > 1:
        every = [one.as_dict() for one in explanations]
        values |= {"limits": [limit for one in every for limit in one["limits"]], "explanations": every}
    if not question.is_clear:
        values |= {"refused": None, "outcome": UNCLEAR}
    stored = [_in_store(session, one, subject) for one in question.unknown_endpoints]
    values |= {"unknown": [one for one, _ in stored]} if stored else {}
    word = "refused" if deciding.is_refused else "allowed"
    lines = [coloured(word) if question.is_clear else UNCLEAR, *map(str, explanations), *question.unknown_lines]
    lines += [line for _, some in stored for line in some]
    session.answer(values, lines)


def _explained(session: Session, asked: Asked, subject: str, cost: CostGiven) -> Explanation:
    return admin_explain.explain(
        session.limiter,
        asked.policy,
        subject,
        endpoint=asked.endpoint,
        cost=cost,
        rule=asked.rule,
        mode=asked.mode,
        share=asked.share,
        anchor=asked.anchor,
        by=asked.by,
        asked=asked.asked,
    )


def _in_store(session: Session, endpoint: str, subject: str) -> tuple[dict[str, Any], list[str]]:
    """Return what the store has of a subject on an endpoint whose limits are not known, as values and as lines."""
    counters = measure_counters(session.limiter, endpoint=endpoint, subject=subject)
    overrides, override_lines = overrides_of(session.limiter, [endpoint], subject)
    fleet = get_fleet_mode(session.limiter)
    reserved = list_reservations(session.limiter, endpoint=endpoint, subject=subject)
    values: dict[str, Any] = {"endpoint": endpoint, "subject": subject} | overrides
    values |= {"counters": [asdict(counter) for counter in counters], "fleet_mode": fleet and asdict(fleet)}
    values["reservations"] = [asdict(one) for one in reserved]
    return values, [
        f"endpoint  {printable(endpoint)}",
        *counter_lines(counters),
        *reservation_lines(reserved),
        *override_lines,
        f"{SOURCE}  {coloured(fleet.mode) if fleet else 'none'}",
    ]
