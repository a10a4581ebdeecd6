"""What callers send and get, for the documentation and for the reference routes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ratekit_service.bounds import LONGEST_ID, LONGEST_NAME, LONGEST_SLOT, MOST_CHECKS, MOST_COST

Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Cost = Annotated[int, Field(ge=0, le=MOST_COST)]
PlanId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]


class Body(BaseModel):
    """A request's body: unknown fields and values of a wrong type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class CheckBody(Body):
    """Who asks for what, at what cost. Without plan_id, the resource, the key or the tenant says which plan applies."""

    resource: Name = Field(examples=["GET:/orders"])
    subject: Name = Field(examples=["user:42"])
    cost: Cost = 1
    plan_id: PlanId | None = None


class BatchBody(Body):
    """Several checks, each decided for itself, in order, in one round trip to the store."""

    checks: list[CheckBody] = Field(min_length=1, max_length=MOST_CHECKS)


class RuleBody(Body):
    """Who asks for what, at what cost; the rules of the client key and the endpoint decide."""

    client_key: Name = Field(examples=["user:42"])
    endpoint: Name = Field(examples=["/api/v1/search"])
    cost: Cost = 1


class SlotBody(Body):
    """The slot that a check by a concurrency plan has answered with."""

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
    limits: list[LimitState] | None = Field(None, description="Every limit of a plan that has several.")


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
