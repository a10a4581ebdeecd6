"""What callers send, as the fast front reads it. `checks.models` has the same for the documentation."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ratekit_service.bounds import LONGEST_ID, LONGEST_NAME, LONGEST_SLOT, MOST_CHECKS, MOST_COST

Name = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
Cost = Annotated[int, Meta(ge=0, le=MOST_COST)]
PlanId = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]


class CheckRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A check: who asks for what, at what cost, perhaps by which plan."""

    resource: Name
    subject: Name
    cost: Cost = 1
    plan_id: PlanId | None = None


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Several checks, each decided for itself, in order."""

    checks: Annotated[list[CheckRequest], Meta(min_length=1, max_length=MOST_CHECKS)]


class RuleRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A check by the rules of a client key and an endpoint."""

    client_key: Name
    endpoint: Name
    cost: Cost = 1


class SlotRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A slot that a check has answered with."""

    slot: Annotated[str, Meta(min_length=1, max_length=LONGEST_SLOT)]
