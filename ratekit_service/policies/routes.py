"""Administration of resource policies."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field
from sqlalchemy import ColumnElement, Connection

from ratekit.core.errors import ConfigurationError
from ratekit.database import schema
from ratekit_service.administration import (
    ADMIN_PROBLEMS,
    Admin,
    check_free,
    check_plan,
    find,
    find_tenant,
    new_id,
    page,
    without_null,
)
from ratekit_service.database import Write
from ratekit_service.models import After, Body, Id, Items, Page, Row, Text
from ratekit_service.policies.resources import ResourcePattern, counted_as
from ratekit_service.problems import invalid

router = APIRouter(prefix="/v1/admin/policies", tags=["resource policies"], responses=ADMIN_PROBLEMS)
PolicyId = Annotated[Id, Path()]


class NewPolicy(Body):
    """Which plan applies to the resources of a pattern. With a counter, all of them are counted together, under its name."""

    tenant_id: Id
    pattern: Text = Field(examples=["GET:/orders/{id}", "/reports/*", "*"])
    plan_id: Id
    counter: Text | None = None


class PolicyChange(Body):
    """What changes; null takes the counter away, and leaves the pattern and the plan."""

    pattern: Text | None = None
    plan_id: Id | None = None
    counter: Text | None = None


class Policy(Row):
    """A resource policy."""

    id: str
    tenant_id: str
    pattern: str
    plan_id: str
    counter: str | None


@router.post("", status_code=201)
async def create_policy(body: NewPolicy, admin: Admin) -> Policy:
    """Make a resource policy for a tenant."""
    return await admin.write(lambda write: _create(write, body))


@router.get("")
async def list_policies(
    admin: Admin,
    tenant_id: Annotated[Id | None, Query()] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[Policy]:
    """List resource policies, all or those of a tenant."""
    table = schema.resource_policies
    conditions = [] if tenant_id is None else [table.c.tenant_id == tenant_id]
    rows, following = await admin.read(lambda connection: page(connection, table, conditions, after, limit))
    return Page(items=[Policy.model_validate(row) for row in rows], next=following)


@router.get("/{policy_id}")
async def read_policy(policy_id: PolicyId, admin: Admin) -> Policy:
    """Read a resource policy."""
    return await admin.read(lambda connection: _read(connection, policy_id))


@router.patch("/{policy_id}")
async def change_policy(policy_id: PolicyId, body: PolicyChange, admin: Admin) -> Policy:
    """Change a resource policy."""
    return await admin.write(lambda write: _change(write, policy_id, body))


@router.delete("/{policy_id}", status_code=204)
async def delete_policy(policy_id: PolicyId, admin: Admin) -> None:
    """Delete a resource policy."""
    await admin.write(lambda write: _delete(write, policy_id))


def _create(write: Write, body: NewPolicy) -> Policy:
    find_tenant(write.connection, body.tenant_id)
    check_plan(write.connection, body.tenant_id, body.plan_id)
    values = {"id": new_id("pol"), **body.model_dump(), "pattern": _checked(body.pattern)}
    _check_free(write.connection, body.tenant_id, values["pattern"])
    return _read(write.connection, write.insert(schema.resource_policies, "policy", values))


def _change(write: Write, policy_id: str, body: PolicyChange) -> Policy:
    row = find(write.connection, schema.resource_policies, "resource policy", policy_id)
    given = without_null(body.model_dump(exclude_unset=True), "pattern", "plan_id")
    check_plan(write.connection, row["tenant_id"], given.get("plan_id"))
    if "pattern" in given:
        given["pattern"] = _checked(given["pattern"])
        _check_free(write.connection, row["tenant_id"], given["pattern"], schema.resource_policies.c.id != policy_id)
    write.update(schema.resource_policies, "policy", policy_id, given)
    return _read(write.connection, policy_id)


def _delete(write: Write, policy_id: str) -> None:
    row = find(write.connection, schema.resource_policies, "resource policy", policy_id)
    write.delete(schema.resource_policies, "policy", policy_id, row["tenant_id"])


def _check_free(connection: Connection, tenant_id: str, pattern: str, *others: ColumnElement[bool]) -> None:
    columns = schema.resource_policies.c
    check_free(connection, columns.pattern, "resource policy", pattern, columns.tenant_id == tenant_id, *others)


def _checked(pattern: str) -> str:
    """Return a pattern as it is kept, its method in capitals. Raises Problem if it makes no sense."""
    try:
        return counted_as(ResourcePattern(pattern).text)
    except ConfigurationError as error:
        raise invalid(str(error), "pattern") from None


def _read(connection: Connection, policy_id: str) -> Policy:
    return Policy.model_validate(find(connection, schema.resource_policies, "resource policy", policy_id))
