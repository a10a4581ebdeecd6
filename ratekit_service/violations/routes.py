"""Violations, for administrators."""

from __future__ import annotations

import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ratekit.database import schema
from ratekit_service.administration import ADMIN_PROBLEMS, Admin, page
from ratekit_service.models import After, Id, Items, Page, Text, Time

router = APIRouter(prefix="/v1/admin/violations", tags=["violations"], responses=ADMIN_PROBLEMS)


class Violation(BaseModel):
    """A request that was refused."""

    violation_id: int
    tenant_id: str
    client_key: str
    endpoint: str
    limit_name: str | None
    violated_at: datetime.datetime
    request_count: int
    limit_value: int


@router.get("")
async def list_violations(
    admin: Admin,
    tenant_id: Annotated[Id | None, Query()] = None,
    client_key: Annotated[Text | None, Query()] = None,
    endpoint: Annotated[Text | None, Query()] = None,
    since: Annotated[Time | None, Query()] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[Violation]:
    """List refused requests, the newest first. They are written once a second."""
    table = schema.violations
    wanted = ((table.c.tenant_id, tenant_id), (table.c.client_key, client_key), (table.c.endpoint, endpoint))
    conditions = [column == value for column, value in wanted if value is not None]
    if since is not None:
        conditions.append(table.c.violated_at >= since)
    rows, following = await admin.read(
        lambda connection: page(connection, table, conditions, after, limit, newest_first=True)
    )
    return Page(items=[Violation.model_validate(row) for row in rows], next=following)
