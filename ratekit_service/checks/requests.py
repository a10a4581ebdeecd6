"""What callers send, as the fast front reads it. `checks.models` has the same for the documentation."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ratekit_service.bounds import (
    LONGEST_ID,
    LONGEST_NAME,
    LONGEST_SLOT,
    LONGEST_UNIT,
    MOST_CHECKS,
    MOST_COST,
    MOST_HOLD,
    MOST_UNITS,
)

Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
Unit = Annotated[str, Meta(min_length=1, max_length=LONGEST_UNIT)]
Number = Annotated[int, Meta(ge=0, le=MOST_COST)]
Cost = Number | Annotated[dict[Unit, Number], Meta(max_length=MOST_UNITS)]  # of requests, or by unit
PlanId = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Share = Annotated[float, Meta(gt=0, le=1)]
Anchor = Annotated[int, Meta(ge=1, le=31)] | Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
SlotText = Annotated[str, Meta(min_length=1, max_length=LONGEST_SLOT)]
OwnId = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Hold = Annotated[float, Meta(gt=0, le=MOST_HOLD)]


class CheckRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A check: who asks for what, at what cost, perhaps by which plan."""

    resource: Name
    subject: Name
    cost: Cost = 1
    plan_id: PlanId | None = None
    share: Share | None = None
    anchor: Anchor | None = None


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Several checks, each decided for itself, in order."""

    checks: Annotated[list[CheckRequest], Meta(min_length=1, max_length=MOST_CHECKS)]


class RuleRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A check by the rules of a client key and an endpoint."""

    client_key: Name
    endpoint: Name
    cost: Cost = 1


class SlotRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A slot that a check has answered with, or a reservation that holds one."""

    slot: SlotText


class ReserveRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A reservation: an estimate that is spent now, and settled by a commit."""

    resource: Name
    subject: Name
    estimate: Cost = 1
    plan_id: PlanId | None = None
    share: Share | None = None
    anchor: Anchor | None = None
    clamp: bool = False
    hold: Hold | None = None
    id: OwnId | None = None


class CommitRequest(Struct, forbid_unknown_fields=True, gc=False):
    """What a reservation has cost. One whose answer was lost goes by the caller's own id, with what was asked."""

    id: SlotText
    actual: Cost
    known: Cost | None = None
    resource: Name | None = None
    subject: Name | None = None
    plan_id: PlanId | None = None
    anchor: Anchor | None = None
    hold: Hold | None = None
