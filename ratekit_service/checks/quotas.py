"""What a plan's units, calendars and slots ask of a request: costs by unit, shares, anchors."""

from __future__ import annotations

import datetime
from dataclasses import replace

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import REQUESTS
from ratekit.core.protocol import CostGiven, Extra, cost_of
from ratekit_service.configuration.records import Plan
from ratekit_service.problems import invalid


def refuse_bad_cost(plan: Plan, cost: CostGiven, field: str) -> None:
    """Raise Problem if a plan cannot be checked for a cost: it does not name the plan's units, or the plan counts slots."""
    if plan.policy.has_slots and not plan.units and cost not in (1, {}, {REQUESTS: 1}):
        raise invalid(f"cost {cost} is not 1: plan {plan.name!r} counts slots", field)
    refuse_other_units(plan, cost, field)


def refuse_other_units(plan: Plan, cost: CostGiven, field: str) -> None:
    """Raise Problem if a cost does not name the units that a plan counts."""
    try:
        cost_of(plan.units, cost, name=field.rpartition(".")[2])
    except ConfigurationError as error:
        raise invalid(str(error), field) from None


def anchored(plan: Plan, anchor: int | str, field: str) -> Plan:
    """Return a plan whose periods are counted from an anchor: the day of a month, or a date or time in ISO 8601."""
    try:
        return replace(plan, policy=plan.policy.anchored(_anchor(anchor)))
    except (ConfigurationError, ValueError) as error:
        raise invalid(str(error), field) from None


def _anchor(anchor: int | str) -> int | datetime.date:
    if isinstance(anchor, int):
        return anchor
    try:
        is_date = len(anchor) <= len("2026-12-31")
        return datetime.date.fromisoformat(anchor) if is_date else datetime.datetime.fromisoformat(anchor)
    except ValueError:
        raise ConfigurationError(f"anchor {anchor!r} is neither a date nor a time, such as 2026-01-31T09:00:00Z") from None


def with_share(share: float | None) -> Extra | None:
    """Return what a share adds to a call; nothing if there is none."""
    return None if share is None else Extra(share=share)


def nothing(plan: Plan) -> CostGiven:
    """Return the cost that looks without asking for anything."""
    if plan.units:
        return dict.fromkeys(plan.units, 0)
    return 1 if plan.policy.has_slots else 0
