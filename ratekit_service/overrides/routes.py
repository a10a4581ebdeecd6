"""Administration of temporary overrides, and resets of counters."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter
from sqlalchemy import ColumnElement, Connection, func, or_, select

from ratekit.admin.override_hash import LATEST, LONGEST_NOTE, NUMBERS, Numbers, parse_override
from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import OverrideKey
from ratekit.core.limits import MOST_REQUESTS
from ratekit.database import override_table, schema
from ratekit.database.override_rows import OverrideRow
from ratekit_service.administration import ADMIN_PROBLEMS, Admin, find, find_tenant, page
from ratekit_service.database import Write
from ratekit_service.models import After, Body, Id, Items, Page, Row, Text, Time
from ratekit_service.plans.definitions import PlanError, terms_of
from ratekit_service.policies.resources import counted_as
from ratekit_service.problems import Problem, invalid, not_found

router = APIRouter(prefix="/v1/admin", tags=["overrides"], responses=ADMIN_PROBLEMS)
OverrideId = Annotated[int, Path(ge=0, le=2**53)]
Count = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
Epoch = Annotated[float, Field(gt=0, le=LATEST)]
_time: TypeAdapter[datetime.datetime] = TypeAdapter(Time)


def _as_epoch(value: object) -> object:
    """Return a time in text as seconds since the epoch; a union of both would name two fields that nobody has sent."""
    return _time.validate_python(value).timestamp() if isinstance(value, str) else value


class NewOverride(Body):
    """A subject's own numbers for a resource, or for the endpoint of a rule, until they end.

    They replace those of the plan's first limit, or of the limit that is named. 0 blocks the subject.
    """

    tenant_id: Id
    resource: Text | None = Field(None, description="Or the counter of a resource policy.")
    rule_id: Annotated[int, Field(ge=0, le=2**53)] | None = None
    subject: Text
    max_requests: Annotated[int, Field(ge=0, le=MOST_REQUESTS)] | None = None
    expiry: Annotated[float, Field(gt=0, le=315_576_000, description="The window, in seconds.")] | None = None
    burst: Count | None = None
    unlimited: bool = False
    until: Annotated[Epoch, BeforeValidator(_as_epoch, json_schema_input_type=Epoch | Time)] | None = Field(
        None, description="Everything is refused until then: seconds since the epoch, or a time. Forgotten after."
    )
    limit: Annotated[str, Field(max_length=100)] | None = Field(None, description="The name of a limit of the plan.")
    ttl: Annotated[float, Field(ge=0.001, le=3_155_760_000, description="Seconds until it ends.")] | None = None
    valid_until: Time | None = None
    reason: Annotated[Text, Field(max_length=LONGEST_NOTE)] | None = None


class LimitNumbers(BaseModel):
    """The numbers that replace those of one limit; null keeps the limit's own."""

    max_requests: int | None = None
    expiry: float | None = None
    burst: int | None = None
    unlimited: bool = False
    until: float | None = Field(None, description="Everything is refused until then, in seconds since the epoch.")


class OverrideModel(Row, LimitNumbers):
    """An override: numbers for the plan's first limit, and for limits by name."""

    override_id: int
    tenant_id: str
    resource: str
    subject: str
    limits: dict[str, LimitNumbers]
    valid_until: datetime.datetime | None
    set_by: str | None
    reason: str | None
    in_force: bool = Field(default=True, description="False: the store does not answer, and gets it as soon as it does.")


class OverrideChange(BaseModel):
    """One line of the history of overrides."""

    history_id: int
    override_id: int | None
    tenant_id: str
    resource: str | None
    subject: str
    action: str
    max_requests: int | None
    fields: dict[str, Any] | None
    valid_until: datetime.datetime | None
    changed_by: str | None
    reason: str | None
    changed_at: datetime.datetime


class Reset(Body):
    """Whose counters are forgotten."""

    tenant_id: Id
    resource: Text
    subject: Text


class ResetAnswer(BaseModel):
    """What was forgotten."""

    plans: int = Field(description="By how many plans and rules of the tenant the subject may have been counted.")


@router.put("/overrides")
async def put_override(body: NewOverride, admin: Admin) -> OverrideModel:
    """Write an override, in place of the one that the subject has there. The next check uses it."""
    _check_target(body)
    made = await admin.write(lambda write: _put(write, body))
    return made.model_copy(update={"in_force": await admin.service.copy_overrides()})


@router.get("/overrides")
async def list_overrides(
    admin: Admin,
    tenant_id: Annotated[Id | None, Query()] = None,
    resource: Annotated[Text | None, Query()] = None,
    subject: Annotated[Text | None, Query()] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[OverrideModel]:
    """List overrides that have not ended."""
    columns = schema.overrides.c
    place = None if resource is None else counted_as(resource)
    of_rule = select(schema.rules.c.endpoint).where(schema.rules.c.rule_id == columns.rule_id).scalar_subquery()
    endpoint = func.coalesce(columns.endpoint, of_rule)
    wanted = ((columns.tenant_id, tenant_id), (endpoint, place), (columns.client_key, subject))
    now = datetime.datetime.now(datetime.UTC)
    conditions = [column == value for column, value in wanted if value is not None]
    conditions.append(or_(columns.valid_until.is_(None), columns.valid_until > now))
    return await admin.read(lambda connection: _page(connection, conditions, after, limit))


@router.get("/overrides/history")
async def list_override_history(
    admin: Admin,
    tenant_id: Annotated[Id | None, Query()] = None,
    subject: Annotated[Text | None, Query()] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[OverrideChange]:
    """List the changes of overrides, the newest first."""
    table = schema.override_history
    wanted = ((table.c.tenant_id, tenant_id), (table.c.client_key, subject))
    conditions = [column == value for column, value in wanted if value is not None]
    rows, following = await admin.read(
        lambda connection: page(connection, table, conditions, after, limit, newest_first=True)
    )
    items = [{**row, "resource": row["endpoint"], "subject": row["client_key"]} for row in rows]
    return Page(items=[OverrideChange.model_validate(item) for item in items], next=following)


@router.get("/overrides/{override_id}")
async def read_override(override_id: OverrideId, admin: Admin) -> OverrideModel:
    """Read an override."""
    return await admin.read(lambda connection: _read(connection, override_id))


@router.delete("/overrides/{override_id}", status_code=204)
async def delete_override(override_id: OverrideId, admin: Admin) -> None:
    """End an override now."""
    await admin.write(lambda write: _delete(write, override_id))
    await admin.service.copy_overrides()


@router.post("/reset")
async def reset_counters(body: Reset, admin: Admin) -> ResetAnswer:
    """Forget what a subject has used of a resource. Its override stays."""
    await admin.write(lambda write: _note_reset(write, body))
    service = admin.service
    configuration = service.refresher.configuration
    try:
        plans = await service.decider.reset(configuration, body.tenant_id, body.resource, body.subject)
    except Problem as problem:
        raise Problem(503, "the counters cannot be reset now: the store does not answer", retry_after=1) from problem
    return ResetAnswer(plans=plans)


def _check_target(body: NewOverride) -> None:
    if (body.resource is None) == (body.rule_id is None):
        raise invalid("give either a resource or a rule_id", "resource")
    if body.ttl is not None and body.valid_until is not None:
        raise invalid("give either ttl or valid_until", "ttl")


def _put(write: Write, body: NewOverride) -> OverrideModel:
    find_tenant(write.connection, body.tenant_id)
    endpoint = counted_as(body.resource or _endpoint_of_rule(write, body))
    _check_limit(write.connection, body)
    ends = _end(body)
    _refuse_past(write, body.until)
    row = OverrideRow(body.subject, endpoint, _fields(body), ends, write.actor, body.reason, tenant=body.tenant_id)
    override_table.put(write.connection, row, write.now)
    columns = schema.overrides.c
    place = [columns.tenant_id == body.tenant_id, columns.client_key == body.subject]
    ids = write.connection.execute(select(columns.override_id).where(*place, columns.updated_at == write.now)).scalars()
    made = next(one for one in (_read(write.connection, key) for key in ids) if one.resource == endpoint)
    write.audit("set", "override", made.override_id, body.model_dump(exclude_none=True))
    return made


def _check_limit(connection: Connection, body: NewOverride) -> None:
    """Raise Problem if no plan of the tenant has a limit of that name: the override would do nothing."""
    if body.limit is None or body.rule_id is not None:
        return
    query = select(schema.plans.c.name, schema.plans.c.definition).where(schema.plans.c.tenant_id == body.tenant_id)
    names: set[str] = set()
    for name, definition in connection.execute(query):
        with contextlib.suppress(PlanError):
            names |= {limit.name for limit in terms_of(name, definition).policy.limits}
    if body.limit not in names:
        known = ", ".join(sorted(names)[:20]) or "none"
        raise invalid(f"limit {body.limit!r} is in no plan of the tenant, whose limits are {known}", "limit")


def _fields(body: NewOverride) -> dict[str, str]:
    """Return the numbers under the names that they have in the store."""
    try:
        numbers = Numbers(body.max_requests, body.expiry, body.burst, body.unlimited, body.until)
        return numbers.check_given().as_fields(body.limit)
    except ConfigurationError as error:
        raise invalid(str(error), "max_requests") from None


def _end(body: NewOverride) -> datetime.datetime | None:
    now = datetime.datetime.now(datetime.UTC)
    if body.ttl is not None:
        return now + datetime.timedelta(seconds=body.ttl)
    if body.valid_until is not None and body.valid_until <= now:
        raise invalid(f"valid_until {body.valid_until.isoformat()} is over", "valid_until")
    return body.valid_until


def _refuse_past(write: Write, until: float | None) -> None:
    if until is not None and until <= write.now.timestamp():
        raise invalid(f"until {datetime.datetime.fromtimestamp(until, datetime.UTC).isoformat()} is over", "until")


def _endpoint_of_rule(write: Write, body: NewOverride) -> str:
    rule = find(write.connection, schema.rules, "rule", str(body.rule_id), field="rule_id")
    if rule["tenant_id"] != body.tenant_id:
        raise not_found("rule", field="rule_id")
    return str(rule["endpoint"])


def _delete(write: Write, override_id: int) -> None:
    row = _read(write.connection, override_id)
    override_table.remove(write.connection, row.tenant_id, row.subject, row.resource, write.actor, None, write.now)
    write.audit("delete", "override", override_id, {"tenant_id": row.tenant_id})


def _note_reset(write: Write, body: Reset) -> None:
    find_tenant(write.connection, body.tenant_id)
    write.audit("reset", "counter", body.resource, body.model_dump())


def _read(connection: Connection, override_id: int) -> OverrideModel:
    return _model(connection, find(connection, schema.overrides, "override", str(override_id)))


def _page(connection: Connection, conditions: Sequence[ColumnElement[bool]], after: str, limit: int) -> Page[OverrideModel]:
    rows, following = page(connection, schema.overrides, conditions, after, limit)
    return Page(items=[_model(connection, row) for row in rows], next=following)


def _model(connection: Connection, row: Mapping[str, Any]) -> OverrideModel:
    """Return the override of a row. One of a rule, as others write them, has the endpoint of its rule."""
    if row["endpoint"] is None and row["rule_id"] is not None:
        row = {**row, "endpoint": find(connection, schema.rules, "rule", str(row["rule_id"]))["endpoint"]}
    own = {} if row["max_requests"] is None else {"max_requests": str(row["max_requests"])}
    given = row["fields"] if isinstance(row["fields"], Mapping) else {}
    fields = own | {name: str(value) for name, value in given.items()}
    resource = row["endpoint"] or "*"
    override = parse_override(OverrideKey(resource, row["client_key"]), fields, None)
    numbers = {name: getattr(override, name) for name in NUMBERS}
    limits = {name: {one: getattr(value, one) for one in NUMBERS} for name, value in override.limits.items()}
    shown = {"resource": resource, "subject": row["client_key"], "limits": limits}
    return OverrideModel.model_validate({**row, **numbers, **shown})
