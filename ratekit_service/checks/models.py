"""What callers send and get, for the documentation and for the reference routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ratekit_service.bounds import (
    LONGEST_ID,
    LONGEST_NAME,
    LONGEST_SLOT,
    LONGEST_UNIT,
    MOST_CHECKS,
    MOST_COST,
    MOST_HOLD,
    MOST_UNITS,
    is_unicode,
)


def _cost(value: object) -> object:
    """Refuse what is no cost in one sentence, in place of one for each form of it."""
    numbers = list(value.values()) if isinstance(value, dict) and len(value) <= MOST_UNITS else [value]
    if any(type(number) is not int or not 0 <= number <= MOST_COST for number in numbers):
        raise ValueError(f"is neither a whole number between 0 and {MOST_COST}, nor such numbers by unit")
    if isinstance(value, dict) and not all(0 < len(unit) <= LONGEST_UNIT and is_unicode(unit) for unit in value):
        raise ValueError(f"has a unit whose name is not a text of 1 to {LONGEST_UNIT} characters")
    return value


def _anchor(value: object) -> object:
    is_day = type(value) is int and 1 <= value <= 31
    is_text = isinstance(value, str) and 0 < len(value) <= LONGEST_ID and is_unicode(value)
    if is_day or is_text or value is None:
        return value
    raise ValueError("is neither the day of a month, nor a date or a time in ISO 8601")


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Unit = Annotated[str, Field(min_length=1, max_length=LONGEST_UNIT)]
Number = Annotated[int, Field(ge=0, le=MOST_COST)]
Cost = Annotated[Number | Annotated[dict[Unit, Number], Field(max_length=MOST_UNITS)], BeforeValidator(_cost)]
PlanId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]
Share = Annotated[
    float, Field(gt=0, le=1, description="The part of each capacity that the request may use, so that others keep room.")
]
Anchor = Annotated[
    Annotated[int, Field(ge=1, le=31)] | Annotated[str, Field(min_length=1, max_length=LONGEST_ID)] | None,
    BeforeValidator(_anchor),
    Field(description="From when periods of calendars are counted: the day of a month, or a date or time."),
]
Hold = Annotated[float, Field(gt=0, le=MOST_HOLD, description="Seconds for which it can be settled; 600 by default.")]


class Body(BaseModel):
    """A request's body: unknown fields and values of a wrong type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class CheckBody(Body):
    """Who asks for what, at what cost. Without plan_id, the resource, the key or the tenant says which plan applies."""

    resource: Name = Field(examples=["GET:/orders"])
    subject: Name = Field(examples=["user:42"])
    cost: Cost = Field(1, examples=[1, {"tokens": 800}], description="Of requests; or by unit, where requests cost 1.")
    plan_id: PlanId | None = None
    share: Share | None = None
    anchor: Anchor = None


class BatchBody(Body):
    """Several checks, each decided for itself, in order, in one round trip to the store."""

    checks: list[CheckBody] = Field(min_length=1, max_length=MOST_CHECKS)


class RuleBody(Body):
    """Who asks for what, at what cost; the rules of the client key and the endpoint decide."""

    client_key: Name = Field(examples=["user:42"])
    endpoint: Name = Field(examples=["/api/v1/search"])
    cost: Cost = 1


class ReserveBody(Body):
    """Who asks for what, and what it is estimated to cost. The same id again spends nothing more."""

    resource: Name = Field(examples=["POST:/chat"])
    subject: Name = Field(examples=["org:7"])
    estimate: Cost = Field(1, examples=[{"tokens": 800}])
    plan_id: PlanId | None = None
    share: Share | None = None
    anchor: Anchor = None
    clamp: bool = Field(default=False, description="Reserve as much as fits, at least 1, if the estimate does not.")
    hold: Hold | None = None
    id: Annotated[str, Field(min_length=1, max_length=LONGEST_ID)] | None = Field(
        None, description="An id of your own, of letters and digits, for a request that may have to be sent again."
    )


class CommitBody(Body):
    """What a reservation has cost. A unit that is not named costs what was reserved.

    `id` is that of the answer. A reservation whose answer was lost goes by the id that was sent, with the same resource,
    subject, plan_id, anchor and hold.
    """

    id: str = Field(min_length=1, max_length=LONGEST_SLOT)
    actual: Cost = Field(examples=[{"tokens": 523}])
    known: Cost | None = Field(None, description="The estimate, if the id is your own and an answer came.")
    resource: Name | None = None
    subject: Name | None = None
    plan_id: PlanId | None = None
    anchor: Anchor = None
    hold: Hold | None = None


class SlotBody(Body):
    """The slot that a check by a concurrency plan has answered with, or the id of a reservation, which holds one."""

    slot: str = Field(min_length=1, max_length=LONGEST_SLOT)


class LimitState(BaseModel):
    """What one limit of a plan says."""

    name: str
    allowed: bool
    limit: int
    used: int
    remaining: int
    reset_at: float
    shadow: bool
    unit: str = Field(description="What it counts.")


class CheckAnswer(BaseModel):
    """A decision. The figures are those of the limit that refuses, else of the one that is closest to its maximum."""

    allowed: bool
    remaining: int
    reset_at: float = Field(description="When the window ends or the bucket is full, in seconds since the epoch.")
    retry_after_ms: int | None = Field(description="0 if allowed; null if the cost can never fit.")
    limit: int
    rule: str = Field(description="The plan and its limit that the figures are of.")
    plan_id: str
    config_version: int
    degraded: str | None = Field(description="Why the store could not decide, if it could not.")
    slot: str | None = Field(None, description="Of a concurrency plan: to be released.")
    would_refuse: bool = Field(default=False, description="It passes, as its plan is monitored, or a candidate refuses it.")
    limits: list[LimitState] | None = Field(None, description="Every limit of a plan that has several, or units.")


class ReservationAnswer(CheckAnswer):
    """What became of a reservation."""

    id: str | None = Field(None, description="That settles it; if the plan has a concurrency limit, it is the slot, too.")
    estimate: Cost | None = Field(None, description="What was reserved, by unit if the plan has units; 0 if not known.")
    repeated: bool = Field(default=False, description="It was reserved, or settled, before: nothing changes.")


class BatchAnswer(BaseModel):
    """The decisions of a batch, in its order."""

    results: list[CheckAnswer]


class RuleAnswer(BaseModel):
    """A decision by a rule."""

    allowed: bool
    remaining: int
    reset_at: int
    retry_after: int | None = Field(description="Seconds, 0 if allowed; null if the cost can never fit.")
    limit: int
    rule: str
    config_version: int
    degraded: str | None
    slot: str | None = Field(None, description="If no rule applies, and the plan counts slots: to be released.")


class SlotAnswer(BaseModel):
    """What became of a slot."""

    held: bool = Field(description="Whether the slot is held now.")
    degraded: str | None


class ProblemModel(BaseModel):
    """What is wrong with a request, as application/problem+json."""

    model_config = ConfigDict(extra="allow", title="Problem")
    type: str
    title: str
    status: int
    detail: str
    field: str | None = Field(None, description="The part of the request that it is about.")
    errors: list[dict[str, Any]] | None = None
