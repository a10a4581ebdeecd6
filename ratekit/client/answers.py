"""What a client asks and is answered: values, and pure functions that read answers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple


class Check(NamedTuple):
    """One check of a batch."""

    resource: str
    subject: str
    cost: int = 1
    plan_id: str | None = None

    def as_body(self) -> dict[str, Any]:
        """Return the check as the service reads it."""
        body = {"resource": self.resource, "subject": self.subject, "cost": self.cost}
        return body if self.plan_id is None else body | {"plan_id": self.plan_id}


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


def answer_of(body: Mapping[str, Any]) -> Answer:
    """Return the answer of a body. Fields that a newer service has are ignored."""
    wait = body.get("retry_after_ms", 0)
    return Answer(
        allowed=bool(body["allowed"]),
        remaining=body["remaining"],
        limit=body["limit"],
        reset_at=body["reset_at"],
        retry_after=None if wait is None else wait / 1000,
        rule=body.get("rule", ""),
        plan_id=body.get("plan_id", ""),
        config_version=body.get("config_version", 0),
        degraded=body.get("degraded"),
        slot=body.get("slot"),
        would_refuse=body.get("would_refuse", False),
    )


def wait_of(retry_after: str | None) -> float:
    """Return the seconds of a Retry-After header, a number or a date; 1 if it says nothing."""
    if not retry_after:
        return 1.0
    try:
        return max(float(retry_after), 0.0)
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(retry_after)
    except ValueError:
        return 1.0
    return max((at - datetime.datetime.now(datetime.UTC)).total_seconds(), 0.0)
