"""What a client asks and is answered: values, and pure functions that read answers."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar

from ratekit.core.headers import whole_seconds
from ratekit.core.protocol import CostGiven

Kind = TypeVar("Kind")
Anchor = int | datetime.date | None


class Check(NamedTuple):
    """One check of a batch."""

    resource: str
    subject: str
    cost: CostGiven = 1  # a number, or one for each unit
    plan_id: str | None = None
    share: float | None = None  # of each capacity that it may use
    anchor: Anchor = None  # from when periods of calendars are counted

    def as_body(self) -> dict[str, Any]:
        """Return the check as the service reads it."""
        return body_of(**self._asdict())


class LimitState(NamedTuple):
    """What one limit of a plan says."""

    name: str
    allowed: bool
    limit: int
    used: int
    remaining: int
    reset_at: float
    shadow: bool
    unit: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision of the service, or what on_outage made of its absence: then `degraded` says why.

    reset_at is in seconds since the epoch, retry_after in seconds: 0 if allowed, None if the cost can never fit.
    """

    allowed: bool
    remaining: int = 0
    limit: int = 0
    reset_at: float = 0.0
    retry_after: float | None = 0.0
    rule: str = ""
    plan_id: str = ""
    config_version: int = 0
    degraded: str | None = None
    slot: str | None = None
    would_refuse: bool = False
    limits: tuple[LimitState, ...] = ()  # of a plan that has several limits, or units
    repeated: bool = False  # a reservation was made, or settled, before: nothing has changed

    def to_headers(self) -> dict[str, str]:
        """Return header lines for the answer to your own caller: the numbers, and Retry-After on a refusal.

        There are no numbers while the service is away.
        """
        lines = {}
        if self.degraded is None:
            lines = {"X-RateLimit-Limit": str(self.limit), "X-RateLimit-Remaining": str(self.remaining)}
            lines["X-RateLimit-Reset"] = str(math.ceil(self.reset_at))
        if not self.allowed and self.retry_after is not None:
            lines["Retry-After"] = str(whole_seconds(self.retry_after))
        return lines


def body_of(**fields: Any) -> dict[str, Any]:
    """Return what the service is asked, without what is not given."""
    given = {name: value for name, value in fields.items() if value is not None}
    anchor = given.get("anchor")
    return given | ({"anchor": anchor.isoformat()} if isinstance(anchor, datetime.date) else {})


def answer_of(body: Mapping[str, Any]) -> Answer:
    """Return the answer of a body. Fields that a newer service has are ignored.

    Raises TypeError, KeyError, AttributeError or ValueError for a body that is not of the service.
    """
    wait = body.get("retry_after_ms", 0)
    return Answer(
        allowed=_of_kind(bool, body["allowed"]),
        remaining=_of_kind(int, body["remaining"]),
        limit=_of_kind(int, body["limit"]),
        reset_at=_of_kind(float, body["reset_at"]),
        retry_after=None if wait is None else _of_kind(int, wait) / 1000,
        rule=body.get("rule", ""),
        plan_id=body.get("plan_id", ""),
        config_version=body.get("config_version", 0),
        degraded=body.get("degraded"),
        slot=body.get("slot"),
        would_refuse=body.get("would_refuse", False),
        limits=tuple(LimitState(*(limit.get(name) for name in LimitState._fields)) for limit in body.get("limits") or ()),
        repeated=body.get("repeated", False),
    )


def answers_of(body: Mapping[str, Any], count: int) -> list[Answer]:
    """Return so many answers of a body. Raises as answer_of does."""
    found = [answer_of(one) for one in body["results"]]
    if len(found) != count:
        raise ValueError(f"{len(found)} answers to {count} checks")
    return found


def _of_kind(kind: type[Kind], value: Any) -> Kind:
    """Return a value as it is. Raises TypeError if it is of another kind; a whole number is a float, too."""
    if type(value) is kind or (kind is float and type(value) is int):
        return value  # type: ignore[return-value]
    raise TypeError(f"{value!r} is not {kind.__name__}")


def wait_of(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header, a number or a date; 1 if it says nothing."""
    if not retry_after:
        return 1.0
    try:
        seconds = float(retry_after)
        return max(seconds, 0.0) if math.isfinite(seconds) else 1.0
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(retry_after)
    except ValueError:
        return 1.0
    at = at if at.tzinfo else at.replace(tzinfo=datetime.UTC)  # "-0000" is UTC, from who knows where
    return max((at - datetime.datetime.now(datetime.UTC)).total_seconds(), 0.0)
