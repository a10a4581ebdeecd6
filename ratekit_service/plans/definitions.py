"""Plans as they are written: checked, and made into the policy that limiters decide by.

A plan is one algorithm with its numbers, or `limits`: texts ("100/min burst 200", "90000 tokens/min", "10000/month") and
objects with the fields of a Limit. Whatever a limit of ratekit can say, a plan can.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from ratekit.core.errors import ConfigurationError
from ratekit.core.limit_text import parse_window
from ratekit.core.limits import MOST_REQUESTS, Algorithm, Limit, Policy, as_limits
from ratekit.core.modes import RateLimitMode, as_mode
from ratekit.core.outages import OnOutage, as_on_outage
from ratekit.database.rows import algorithm_of

_BY_WINDOW = "calendar"  # a plan writes it as the window: "month Europe/Berlin"
LIMIT_FIELDS = frozenset(
    one.name for one in dataclasses.fields(Limit) if one.init and not one.name.startswith("_") and one.name != _BY_WINDOW
)
Made = TypeVar("Made")
_WINDOWED = ("limit", "window_seconds")
_NEEDED = {
    Algorithm.TOKEN_BUCKET: ("bucket_capacity", "refill_rate_per_sec"),
    Algorithm.FIXED_WINDOW: _WINDOWED,
    Algorithm.SLIDING_WINDOW_LOG: _WINDOWED,
    Algorithm.SLIDING_WINDOW_COUNTER: _WINDOWED,
    Algorithm.CONCURRENCY: ("limit", "stale_after_seconds"),
}
NUMBERS = ("bucket_capacity", "refill_rate_per_sec", "limit", "window_seconds", "stale_after_seconds")
_FINEST_RATE = 10**6  # a rate is kept as so many tokens in so many seconds, up to this many seconds


class PlanError(ConfigurationError):
    """A plan that makes no sense. `field` is the part of it that does not."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Terms(NamedTuple):
    """What a plan says, as limiters take it."""

    policy: Policy
    algorithm: str  # that of its first limit
    mode: RateLimitMode
    on_outage: OnOutage | None  # None: what the service does


def terms_of(name: str, definition: Mapping[str, Any]) -> Terms:
    """Return what a definition says. Raises PlanError if it makes no sense."""
    if not isinstance(definition, Mapping):  # somebody else has written it to the database
        raise PlanError("definition", f"definition {definition!r:.80} is not an object")
    policy = _policy(name, definition)
    mode = _field("mode", lambda: as_mode(definition.get("mode") or "on"))
    chosen = definition.get("on_outage")
    on_outage = _field("on_outage", lambda: None if chosen is None else as_on_outage(chosen))
    return Terms(policy, str(policy.limits[0].algorithm), mode, on_outage)


def _policy(name: str, definition: Mapping[str, Any]) -> Policy:
    limits, algorithm = definition.get("limits"), definition.get("algorithm")
    if (limits is None) == (algorithm is None):
        raise PlanError("algorithm", "a plan has either an algorithm with its numbers, or limits")
    if limits is None:
        return Policy(name, [_one_limit(str(algorithm), definition)])
    if given := [field for field in NUMBERS if definition.get(field) is not None]:
        raise PlanError(given[0], f"{given[0]} belongs to an algorithm, and this plan has limits")
    if not limits:
        raise PlanError("limits", "limits is empty: nothing would be limited")
    made = [limit for index, item in enumerate(limits) for limit in _listed(index, item)]
    return _field("limits", lambda: Policy(name, made))


def _one_limit(algorithm: str, definition: Mapping[str, Any]) -> Limit:
    kind = _field("algorithm", lambda: algorithm_of(algorithm))
    needed = _NEEDED[kind]
    for field in NUMBERS:
        if field in needed and definition.get(field) is None:
            raise PlanError(field, f"{field} is missing: a {algorithm} has {' and '.join(needed)}")
        if field not in needed and definition.get(field) is not None:
            raise PlanError(field, f"{field} is not for a {algorithm}, which has {' and '.join(needed)}")
    if kind is Algorithm.TOKEN_BUCKET:
        return _bucket(definition)
    name = "slots" if kind is Algorithm.CONCURRENCY else ""
    window = definition[needed[1]]
    return _field(needed[0], lambda: Limit(definition["limit"], float(window), algorithm=kind, name=name))


def _bucket(definition: Mapping[str, Any]) -> Limit:
    """Return a bucket of some capacity and rate: so many tokens in so many whole seconds."""
    rate, capacity = definition["refill_rate_per_sec"], definition["bucket_capacity"]
    if not 0 < rate <= MOST_REQUESTS:
        raise PlanError("refill_rate_per_sec", f"refill_rate_per_sec {rate!r} is not between 0 and {MOST_REQUESTS}")
    fraction = Fraction(rate).limit_denominator(_FINEST_RATE)
    if fraction == 0:
        raise PlanError("refill_rate_per_sec", f"refill_rate_per_sec {rate!r} is less than one token in {_FINEST_RATE} s")
    tokens, seconds = fraction.numerator, float(fraction.denominator)
    kind = Algorithm.TOKEN_BUCKET
    return _field("bucket_capacity", lambda: Limit(tokens, seconds, algorithm=kind, burst=capacity, name="bucket"))


def _listed(index: int, item: object) -> list[Limit]:
    field = f"limits[{index}]"
    if isinstance(item, str):
        return _field(field, lambda: as_limits(item))
    if not isinstance(item, Mapping):
        raise PlanError(field, f"{field} {item!r} is neither a text nor an object")
    if unknown := sorted(item.keys() - LIMIT_FIELDS):
        raise PlanError(
            f"{field}.{unknown[0]}", f"{field}.{unknown[0]} is no field of a limit: {', '.join(sorted(LIMIT_FIELDS))}"
        )
    if not isinstance(item.get("name"), str | None):
        raise PlanError(f"{field}.name", f"{field}.name {item['name']!r:.80} is not a text")
    if missing := sorted({"max_requests", "window"} - item.keys()):
        raise PlanError(f"{field}.{missing[0]}", f"{field}.{missing[0]} is missing")
    return [_field(field, lambda: Limit(**{**item, "window": _window(item["window"])}))]


def _window(value: Any) -> Any:
    return parse_window(value) if isinstance(value, str) else value


def _field(field: str, make: Callable[[], Made]) -> Made:
    """Return what is made of a field; an error names the field."""
    try:
        return make()
    except PlanError:
        raise
    except (ConfigurationError, TypeError, OverflowError) as error:
        raise PlanError(field, str(error)) from None
