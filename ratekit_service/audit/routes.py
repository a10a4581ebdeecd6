"""The audit log, for administrators."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ratekit.database import schema
from ratekit_service.administration import ADMIN_PROBLEMS, Admin, page
from ratekit_service.models import After, Id, Items, Page, Text, Word

router = APIRouter(prefix="/v1/admin/audit", tags=["audit log"], responses=ADMIN_PROBLEMS)


class AuditLine(BaseModel):
    """One change."""

    id: int
    at: datetime.datetime
    actor: str
    action: str
    kind: str
    object_id: str
    tenant_id: str
    details: dict[str, Any] | None


@router.get("")
async def list_audit_log(
    admin: Admin,
    tenant_id: Annotated[Id | None, Query()] = None,
    kind: Annotated[Word | None, Query()] = None,
    object_id: Annotated[Text | None, Query()] = None,
    actor: Annotated[Text | None, Query()] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[AuditLine]:
    """List changes, the newest first."""
    table = schema.audit_log
    wanted = (
        (table.c.tenant_id, tenant_id), (table.c.kind, kind), (table.c.object_id, object_id), (table.c.actor, actor)
    )  # fmt: skip
    conditions = [column == value for column, value in wanted if value is not None]
    rows, following = await admin.read(
        lambda connection: page(connection, table, conditions, after, limit, newest_first=True)
    )
    return Page(items=[AuditLine.model_validate(row) for row in rows], next=following)
