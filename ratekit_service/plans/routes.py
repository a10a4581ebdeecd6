"""Administration of plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection, select

from ratekit.database import schema
from ratekit_service.administration import ADMIN_PROBLEMS, Admin, check_free, find, find_tenant, new_id, page
from ratekit_service.database import Write
from ratekit_service.models import After, Id, Items, Page, Text
from ratekit_service.plans.definitions import NUMBERS, PlanError, Terms, terms_of
from ratekit_service.plans.models import NewPlan, Plan, PlanChange
from ratekit_service.problems import Problem, invalid

router = APIRouter(prefix="/v1/admin/plans", tags=["plans"], responses=ADMIN_PROBLEMS)
PlanId = Annotated[Id, Path()]
_USERS = (
    (schema.api_keys, schema.api_keys.c.plan_id, "key"),
    (schema.resource_policies, schema.resource_policies.c.plan_id, "resource policy"),
    (schema.tenants, schema.tenants.c.default_plan_id, "tenant"),
)


@router.post("", status_code=201)
async def create_plan(body: NewPlan, admin: Admin) -> Plan:
    """Make a plan for a tenant."""
    return await admin.write(lambda write: _create(write, body))


@router.get("")
async def list_plans(
    admin: Admin,
    tenant_id: Annotated[Id | None, Query()] = None,
    name: Annotated[Text | None, Query()] = None,
    contains: Annotated[Text | None, Query(description="A part of the name, in any case.")] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[Plan]:
    """List plans, all or those of a tenant, in the order of their creation."""
    columns = schema.plans.c
    conditions = [column == value for column, value in ((columns.tenant_id, tenant_id), (columns.name, name)) if value]
    conditions += [] if contains is None else [columns.name.icontains(contains, autoescape=True)]
    rows, following = await admin.read(lambda connection: page(connection, schema.plans, conditions, after, limit))
    return Page(items=[_plan(row) for row in rows], next=following)


@router.get("/{plan_id}")
async def read_plan(plan_id: PlanId, admin: Admin) -> Plan:
    """Read a plan."""
    return await admin.read(lambda connection: _read(connection, plan_id))


@router.patch("/{plan_id}")
async def change_plan(plan_id: PlanId, body: PlanChange, admin: Admin) -> Plan:
    """Change a plan. Counters go on: a new maximum counts at once."""
    return await admin.write(lambda write: _change(write, plan_id, body))


@router.delete("/{plan_id}", status_code=204)
async def delete_plan(plan_id: PlanId, admin: Admin) -> None:
    """Delete a plan that nothing points to."""
    await admin.write(lambda write: _delete(write, plan_id))


def _create(write: Write, body: NewPlan) -> Plan:
    find_tenant(write.connection, body.tenant_id)
    definition = body.model_dump(exclude_none=True, exclude={"tenant_id", "name"})
    _checked(body.name, definition)
    check_free(write.connection, schema.plans.c.name, "plan", body.name, schema.plans.c.tenant_id == body.tenant_id)
    values = {"id": new_id("plan"), "tenant_id": body.tenant_id, "name": body.name, "definition": definition}
    return _read(write.connection, write.insert(schema.plans, "plan", values))


def _change(write: Write, plan_id: str, body: PlanChange) -> Plan:
    row = find(write.connection, schema.plans, "plan", plan_id)
    given = body.model_dump(exclude_unset=True)
    name = given.pop("name", None) or row["name"]
    kept = dict(row["definition"])
    if given.get("limits") is not None or given.get("algorithm") is not None:
        kept = {field: value for field, value in kept.items() if field not in {*NUMBERS, "limits", "algorithm"}}
    definition = {field: value for field, value in {**kept, **given}.items() if value is not None}
    _checked(name, definition)
    others = (schema.plans.c.tenant_id == row["tenant_id"], schema.plans.c.id != plan_id)
    check_free(write.connection, schema.plans.c.name, "plan", name, *others)
    write.update(schema.plans, "plan", plan_id, {"name": name, "definition": definition})
    return _read(write.connection, plan_id)


def _delete(write: Write, plan_id: str) -> None:
    row = find(write.connection, schema.plans, "plan", plan_id)
    for table, column, kind in _USERS:
        user = write.connection.execute(select(table.c.id).where(column == plan_id).limit(1)).scalar()
        if user is not None:
            raise Problem(409, f"{kind} {user!r} points to this plan: give it another one first")
    write.delete(schema.plans, "plan", plan_id, row["tenant_id"])


def _checked(name: str, definition: Mapping[str, Any]) -> Terms:
    try:
        return terms_of(name, definition)
    except PlanError as error:
        raise invalid(str(error), error.field) from None


def _read(connection: Connection, plan_id: str) -> Plan:
    return _plan(find(connection, schema.plans, "plan", plan_id))


def _plan(row: Mapping[str, Any]) -> Plan:
    definition = row["definition"]
    try:
        terms = terms_of(row["name"], definition)
    except PlanError as error:  # written by somebody else: it is shown, and not in force
        return Plan.model_validate({**row, "algorithm": f"refused: {error}", "limits": [], "mode": "on"})
    made = {"algorithm": definition.get("algorithm") or terms.algorithm, "mode": terms.mode.value}
    return Plan.model_validate({**definition, **row, **made, "limits": [str(limit) for limit in terms.policy.limits]})
