"""From what a limiter says of its charge to a check: callables of the application are asked for cost, share and anchor.

Every front uses this flow, which is driven by `web.drivers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from datetime import date
from typing import Any

from ratekit.core.errors import ConfigurationError, RatekitError, WrongTypeError
from ratekit.core.limits import Policy
from ratekit.core.modes import RateLimitMode
from ratekit.core.outages import OnOutage
from ratekit.core.protocol import CostGiven
from ratekit.limiter.reservations import checked_share
from ratekit.web.arguments import cost_of, untold, wrong_type
from ratekit.web.charging import Charging, other_units, spent_by
from ratekit.web.checks import Check
from ratekit.web.plans import Cost
from ratekit.web.steps import Ask, Step

Asking = Callable[[Callable[[Any], Any]], Ask]  # makes the step that asks a callable about the request
_log = logging.getLogger("ratekit.web")


def charged_check(
    policy: Policy,
    subject: str,
    endpoint: str,
    prefix: str,
    cost: Cost,
    charging: Charging | None,
    mode: RateLimitMode,
    on_outage: OnOutage | None,
    ask: Asking,
    units: Sequence[str] | None = None,
) -> Generator[Step, Any, Check]:
    """Make the check of a limiter, and ask for what depends on the request. An answer that makes no sense is a bug.

    units are those of all plans, if the policy was asked for; None if the limiter has fixed limits.
    """
    if charging is None:
        amount = yield from _asked_cost("cost", cost, ask)
        return _check(policy, subject, endpoint, prefix, amount, mode, on_outage, None, None, units)
    if charging.estimate is None:
        amount = yield from _asked_cost("cost", cost, ask)
    else:
        amount = yield from _asked_cost("estimate", charging.estimate, ask)
    share = yield from _asked_share(charging, ask)
    policy = yield from _anchored(policy, charging, ask, is_asked=units is not None)
    return _check(policy, subject, endpoint, prefix, amount, mode, on_outage, charging, share, units)


def _asked_cost(name: str, cost: Cost, ask: Asking) -> Generator[Step, Any, CostGiven]:
    if not callable(cost):
        return cost
    value = yield from _asked("what it costs", cost, ask)
    return cost_of(value, None, name)


def _asked_share(charging: Charging, ask: Asking) -> Generator[Step, Any, float | None]:
    if not callable(charging.share):
        return charging.share
    answer = yield from _asked("its share", charging.share, ask)
    try:
        return None if answer is None else checked_share(answer)
    except ConfigurationError as error:
        if isinstance(answer, int | float):
            raise _bug(error) from None
        raise wrong_type("share", answer, "a fraction above 0 and not above 1, or None") from None


def _anchored(policy: Policy, charging: Charging, ask: Asking, *, is_asked: bool) -> Generator[Step, Any, Policy]:
    anchor = charging.anchor
    if is_asked and all(limit.calendar is None for limit in policy.limits):
        return policy  # another plan has calendars
    if callable(anchor):
        anchor = yield from _asked("its anchor", anchor, ask)
        if anchor is not None and not isinstance(anchor, date) and type(anchor) is not int:
            raise wrong_type("anchor", anchor, "a day of 1 to 31, a date, or None")
    try:
        return policy.anchored(anchor)
    except ConfigurationError as error:
        raise _bug(error) from None


def _asked(what: str, function: Callable[[Any], Any], ask: Asking) -> Generator[Step, Any, Any]:
    """Ask the application's own code. A ValueError of it is a 400."""
    try:
        return (yield ask(function))
    except RatekitError:
        raise
    except ValueError as error:
        raise untold(what, error) from None


def _check(
    policy: Policy,
    subject: str,
    endpoint: str,
    prefix: str,
    amount: CostGiven,
    mode: RateLimitMode,
    on_outage: OnOutage | None,
    charging: Charging | None,
    share: float | None,
    units: Sequence[str] | None,
) -> Check:
    try:
        others = other_units(policy, amount, units)
        cost = spent_by(policy, amount, charging, others)
        return Check.of(policy, subject, endpoint, prefix, cost, mode, on_outage, charging, share, others)
    except ConfigurationError as error:
        raise _bug(error) from None


def _bug(error: ConfigurationError) -> WrongTypeError:
    """Return the error for an answer that no policy can be charged by, such as an unknown unit. It is logged."""
    _log.error("%s", error)
    return WrongTypeError(str(error))
