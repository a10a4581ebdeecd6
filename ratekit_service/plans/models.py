"""Plans as administrators write and read them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ratekit.core.limits import MOST_LIMITS, MOST_REQUESTS
from ratekit_service.models import Body, Id, Row, Title
from ratekit_service.tenants.models import Mode

AlgorithmName = Literal[
    "token_bucket", "fixed_window", "sliding_window", "sliding_window_log", "sliding_window_counter", "concurrency"
]
OnOutageName = Literal["open", "closed", "local"]
Count = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
Rate = Annotated[float, Field(gt=0, le=MOST_REQUESTS)]
Seconds = Annotated[float, Field(gt=0, le=315_576_000)]
LimitItem = Annotated[str, Field(max_length=200)] | dict[Annotated[str, Field(max_length=32)], Any]


class Definition(Body):
    """One algorithm with its numbers, or limits: texts ("100/min burst 200") and objects with the fields of a Limit."""

    algorithm: AlgorithmName | None = None
    bucket_capacity: Count | None = Field(None, description="Of a token_bucket.")
    refill_rate_per_sec: Annotated[float, Field(gt=0, le=MOST_REQUESTS)] | None = Field(
        None, description="Of a token_bucket."
    )
    limit: Count | None = Field(None, description="Of a window, or how many slots there are.")
    window_seconds: Seconds | None = Field(None, description="Of a window.")
    stale_after_seconds: Seconds | None = Field(None, description="When a forgotten slot is free again.")
    limits: list[LimitItem] | None = Field(
        None, min_length=1, max_length=MOST_LIMITS, examples=[["100/s", "10000/h shadow"]]
    )
    mode: Mode | None = None
    on_outage: OnOutageName | None = Field(None, description="What happens when the store cannot tell.")


class NewPlan(Definition):
    """A plan to be made."""

    tenant_id: Id
    name: Title


class PlanChange(Definition):
    """What changes. A new algorithm, or new limits, replace all numbers of the old one."""

    name: Title | None = None


class Plan(Row):
    """A plan, with its limits as texts."""

    id: str
    tenant_id: str
    name: str
    algorithm: str
    bucket_capacity: int | None = None
    refill_rate_per_sec: float | None = None
    limit: int | None = None
    window_seconds: float | None = None
    stale_after_seconds: float | None = None
    limits: list[str]
    mode: Mode
    on_outage: OnOutageName | None = None
