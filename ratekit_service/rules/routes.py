"""Administration of rules by client key and endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field
from sqlalchemy import Connection

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import MOST_REQUESTS
from ratekit.database import schema
from ratekit.database.rows import limit_of_rule
from ratekit_service.administration import ADMIN_PROBLEMS, Admin, check_free, find, find_tenant, page
from ratekit_service.database import Write
from ratekit_service.models import After, Body, Id, Items, Page, Row, Text
from ratekit_service.plans.models import OnOutageName
from ratekit_service.policies.resources import counted_as
from ratekit_service.problems import invalid
from ratekit_service.tenants.models import Mode

router = APIRouter(prefix="/v1/admin/rules", tags=["rules"], responses=ADMIN_PROBLEMS)
RuleId = Annotated[int, Path(ge=0, le=2**53)]
AlgorithmName = Literal["token_bucket", "sliding_window_log", "sliding_window_counter", "fixed_window"]
Count = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
Window = Annotated[int, Field(ge=1, le=315_576_000)]
Burst = Annotated[int, Field(ge=0, le=MOST_REQUESTS, description="0: none. Of a token_bucket.")]


class NewRule(Body):
    """A limit for a client key on an endpoint; "*" stands for each client key, and for all endpoints together."""

    tenant_id: Id
    client_key: Text
    endpoint: Text = "*"
    algorithm: AlgorithmName
    max_requests: Count
    window_secs: Window
    burst_size: Burst = 0
    enabled: bool = True
    mode: Mode | None = None
    on_outage: OnOutageName | None = None


class RuleChange(Body):
    """What changes."""

    algorithm: AlgorithmName = Field(default="fixed_window")
    max_requests: Count = Field(default=1)
    window_secs: Window = Field(default=1)
    burst_size: Burst = 0
    enabled: bool = True
    mode: Mode | None = None
    on_outage: OnOutageName | None = None


class Rule(Row):
    """A rule."""

    rule_id: int
    tenant_id: str
    client_key: str
    endpoint: str
    algorithm: str
    max_requests: int
    window_secs: int
    burst_size: int
    enabled: bool
    mode: str | None
    on_outage: str | None


@router.post("", status_code=201)
async def create_rule(body: NewRule, admin: Admin) -> Rule:
    """Make a rule for a tenant."""
    return await admin.write(lambda write: _create(write, body))


@router.get("")
async def list_rules(
    admin: Admin,
    tenant_id: Annotated[Id | None, Query()] = None,
    client_key: Annotated[Text | None, Query()] = None,
    endpoint: Annotated[Text | None, Query()] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[Rule]:
    """List rules, by tenant, client key and endpoint."""
    columns = schema.rules.c
    place = None if endpoint is None else counted_as(endpoint)
    wanted = ((columns.tenant_id, tenant_id), (columns.client_key, client_key), (columns.endpoint, place))
    conditions = [column == value for column, value in wanted if value is not None]
    rows, following = await admin.read(lambda connection: page(connection, schema.rules, conditions, after, limit))
    return Page(items=[Rule.model_validate(row) for row in rows], next=following)


@router.get("/{rule_id}")
async def read_rule(rule_id: RuleId, admin: Admin) -> Rule:
    """Read a rule."""
    return await admin.read(lambda connection: _read(connection, rule_id))


@router.patch("/{rule_id}")
async def change_rule(rule_id: RuleId, body: RuleChange, admin: Admin) -> Rule:
    """Change a rule."""
    return await admin.write(lambda write: _change(write, rule_id, body))


@router.delete("/{rule_id}", status_code=204)
async def delete_rule(rule_id: RuleId, admin: Admin) -> None:
    """Delete a rule. The overrides of its endpoint stay, as a plan may apply now."""
    await admin.write(lambda write: _delete(write, rule_id))


def _create(write: Write, body: NewRule) -> Rule:
    find_tenant(write.connection, body.tenant_id)
    values = {**body.model_dump(), "endpoint": counted_as(body.endpoint)}
    _check(values)
    columns = schema.rules.c
    same = (columns.tenant_id == body.tenant_id, columns.client_key == body.client_key)
    check_free(write.connection, columns.endpoint, f"rule for {body.client_key!r}", values["endpoint"], *same)
    return _read(write.connection, write.insert(schema.rules, "rule", values))


def _change(write: Write, rule_id: int, body: RuleChange) -> Rule:
    row = find(write.connection, schema.rules, "rule", str(rule_id))
    given = body.model_dump(exclude_unset=True)
    _check({**row, **given})
    write.update(schema.rules, "rule", rule_id, given)
    return _read(write.connection, rule_id)


def _delete(write: Write, rule_id: int) -> None:
    row = find(write.connection, schema.rules, "rule", str(rule_id))
    write.delete(schema.rules, "rule", rule_id, row["tenant_id"])


def _check(values: Mapping[str, Any]) -> None:
    try:
        limit_of_rule(values["algorithm"], values["max_requests"], values["window_secs"], values["burst_size"])
    except ConfigurationError as error:
        raise invalid(str(error), "burst_size" if values["burst_size"] else "max_requests") from None


def _read(connection: Connection, rule_id: int) -> Rule:
    return Rule.model_validate(find(connection, schema.rules, "rule", str(rule_id)))
