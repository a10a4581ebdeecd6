"""Administration of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection, delete

from ratekit.database import schema
from ratekit_service.administration import ADMIN_PROBLEMS, Admin, check_free, check_plan, find, new_id, page
from ratekit_service.database import Write
from ratekit_service.models import After, Id, Items, Page, Text
from ratekit_service.tenants.models import NewTenant, Tenant, TenantChange

router = APIRouter(prefix="/v1/admin/tenants", tags=["tenants"], responses=ADMIN_PROBLEMS)
TenantId = Annotated[Id, Path()]
_SETTINGS = ("mode", "headers", "service_limit")


@router.post("", status_code=201)
async def create_tenant(body: NewTenant, admin: Admin) -> Tenant:
    """Make a tenant."""
    return await admin.write(lambda write: _create(write, body))


@router.get("")
async def list_tenants(
    admin: Admin,
    name: Annotated[Text | None, Query()] = None,
    contains: Annotated[Text | None, Query(description="A part of the name, in any case.")] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[Tenant]:
    """List tenants, in the order of their creation."""
    conditions = [] if name is None else [schema.tenants.c.name == name]
    conditions += [] if contains is None else [schema.tenants.c.name.icontains(contains, autoescape=True)]
    rows, following = await admin.read(lambda connection: page(connection, schema.tenants, conditions, after, limit))
    return Page(items=[_tenant(row) for row in rows], next=following)


@router.get("/{tenant_id}")
async def read_tenant(tenant_id: TenantId, admin: Admin) -> Tenant:
    """Read a tenant."""
    return await admin.read(lambda connection: _read(connection, tenant_id))


@router.patch("/{tenant_id}")
async def change_tenant(tenant_id: TenantId, body: TenantChange, admin: Admin) -> Tenant:
    """Change a tenant."""
    return await admin.write(lambda write: _change(write, tenant_id, body))


@router.delete("/{tenant_id}", status_code=204)
async def delete_tenant(tenant_id: TenantId, admin: Admin) -> None:
    """Delete a tenant with all that is its own."""
    await admin.write(lambda write: _delete(write, tenant_id))


def _create(write: Write, body: NewTenant) -> Tenant:
    check_free(write.connection, schema.tenants.c.name, "tenant", body.name)
    settings = body.model_dump(include=set(_SETTINGS), exclude_none=True)
    tenant_id = write.insert(schema.tenants, "tenant", {"id": new_id("ten"), "name": body.name, "settings": settings})
    return _read(write.connection, tenant_id)


def _change(write: Write, tenant_id: str, body: TenantChange) -> Tenant:
    row = find(write.connection, schema.tenants, "tenant", tenant_id)
    given = body.model_dump(exclude_unset=True)
    settings = {**(row["settings"] or {}), **{name: given[name] for name in _SETTINGS if name in given}}
    values: dict[str, Any] = {"settings": {name: value for name, value in settings.items() if value is not None}}
    if given.get("name"):
        check_free(write.connection, schema.tenants.c.name, "tenant", given["name"], schema.tenants.c.id != tenant_id)
        values["name"] = given["name"]
    if "default_plan_id" in given:
        check_plan(write.connection, tenant_id, given["default_plan_id"], "default_plan_id")
        values["default_plan_id"] = given["default_plan_id"]
    write.update(schema.tenants, "tenant", tenant_id, values)
    return _read(write.connection, tenant_id)


def _delete(write: Write, tenant_id: str) -> None:
    find(write.connection, schema.tenants, "tenant", tenant_id)
    for table in (schema.overrides, schema.rules, schema.override_history, schema.violations):
        write.connection.execute(delete(table).where(table.c.tenant_id == tenant_id))
    write.delete(schema.tenants, "tenant", tenant_id, tenant_id)


def _read(connection: Connection, tenant_id: str) -> Tenant:
    return _tenant(find(connection, schema.tenants, "tenant", tenant_id))


def _tenant(row: Mapping[str, Any]) -> Tenant:
    settings = {"mode": "on", "headers": ["x-ratelimit"], "service_limit": None} | (row["settings"] or {})
    return Tenant.model_validate({**row, **settings})
