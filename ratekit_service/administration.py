"""What the routes of administration share: who asks, transactions, lists in pages, answers that are errors."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Header, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Column, ColumnElement, Connection, Table, literal, select, tuple_
from sqlalchemy.exc import DataError, IntegrityError

from ratekit.database import schema
from ratekit_service.checks.front import address_of
from ratekit_service.database import MisfitError, Write
from ratekit_service.keys.secrets import random_text
from ratekit_service.models import Text
from ratekit_service.problems import Problem, invalid, not_found

if TYPE_CHECKING:
    from ratekit_service.service import Service

Answer = TypeVar("Answer")
_bearer = HTTPBearer(auto_error=False, description="RATEKIT_ADMIN_TOKEN")
_PROBLEM = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of answers that are problems."""
    return {status: {"description": _SAYS[status], **_PROBLEM} for status in statuses}


_SAYS = {
    400: "The request cannot be read.",
    401: "The key or the token is missing or wrong.",
    403: "The key is not for this, or administration is off.",
    404: "There is no such thing, or it is another tenant's.",
    408: "The body took too long to arrive.",
    409: "It contradicts what is there.",
    413: "The body is too large.",
    422: "A field makes no sense.",
    429: "Too many requests.",
    503: "The database or the store does not answer.",
}
ADMIN_PROBLEMS = problems(400, 401, 403, 404, 408, 409, 413, 422, 429, 503)


class Administrator:
    """Somebody with the token of administration."""

    def __init__(self, service: Service, actor: str) -> None:
        self.service = service
        self.actor = actor

    async def read(self, query: Callable[[Connection], Answer]) -> Answer:
        """Return what a query answers."""
        return await self.service.database.read(query)

    async def write(self, change: Callable[[Write], Answer]) -> Answer:
        """Run a change, and have it in force in this instance when it is answered."""
        try:
            answer = await self.service.database.write(change, self.actor)
        except IntegrityError:
            raise Problem(409, "it contradicts what is there: a name is taken, or what it refers to is gone") from None
        except (DataError, OverflowError):
            raise Problem(422, "a value does not fit into the database") from None
        except MisfitError as error:
            raise invalid(str(error), error.field) from None
        await self.service.refresher.take_over()
        return answer


async def administrator(
    request: Request,
    response: Response,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    x_ratekit_actor: Annotated[Text | None, Header(description="Who it is, for the audit log.")] = None,
) -> Administrator:
    """Return who asks. Raises Problem without the token."""
    service: Service = request.app.state.service
    given = request.headers.get("authorization") if credentials is None else f"Bearer {credentials.credentials}"
    service.authentication.administrator(given, address_of(request.scope))
    refuse_unknown_query(request)
    response.headers["cache-control"] = "no-store"
    return Administrator(service, x_ratekit_actor or "admin")


def refuse_unknown_query(request: Request) -> None:
    """Raise Problem for a parameter that a path does not have: a filter that is not applied shows what nobody asked for."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        raise invalid(f"{unknown} is no parameter of this path, which has {', '.join(known) or 'none'}", unknown)


Admin = Annotated[Administrator, Depends(administrator)]


def new_id(kind: str) -> str:
    """Make an id."""
    return f"{kind}_{random_text(16)}"


def page(
    connection: Connection,
    table: Table,
    conditions: Sequence[ColumnElement[bool]],
    after: str,
    limit: int,
    *,
    newest_first: bool = False,
) -> tuple[list[Any], str | None]:
    """Return some rows in the order of their creation, and the place to ask for more with; None at the end.

    A place is the key of a row, after the second of its creation where keys do not count up. It outlives its row.
    """
    columns = _order(table)
    query = select(table).where(*conditions).order_by(*(one.desc() if newest_first else one for one in columns))
    if after:
        place, row = tuple_(*_place(columns, after)), tuple_(*columns)
        query = query.where(row < place if newest_first else row > place)
    rows = list(connection.execute(query.limit(limit + 1)).mappings())
    following = _place_of(rows[limit - 1], columns) if len(rows) > limit else None
    return rows[:limit], following


def _order(table: Table) -> list[Column[Any]]:
    key = next(iter(table.primary_key))
    return [key] if key.type.python_type is int else [table.c.created_at, key]


def _place_of(row: Any, columns: Sequence[Column[Any]]) -> str:
    *created, key = (row[column.name] for column in columns)
    return "-".join([*(str(int(moment.timestamp())) for moment in created), str(key)])


def _place(columns: Sequence[Column[Any]], after: str) -> list[Any]:
    """Return the values of a place. Raises Problem for a text that is none."""
    if len(columns) == 1:
        return [literal(_key_value(columns[0], after), columns[0].type)]
    seconds, _, key = after.partition("-")
    if not (seconds.isdecimal() and len(seconds) <= 10 and key):
        raise invalid(f"after {after!r} is not the next of a page", "after")
    created = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    return [literal(created, columns[0].type), literal(key, columns[1].type)]


def find(connection: Connection, table: Table, kind: str, key: str, field: str = "id") -> Any:
    """Return the row of a key. Raises Problem if there is none."""
    column = next(iter(table.primary_key))
    row = connection.execute(select(table).where(column == _key_value(column, key))).mappings().first()
    if row is None:
        raise not_found(kind, field=field)
    return row


def find_tenant(connection: Connection, tenant_id: str) -> Any:
    """Return the row of a tenant that a body names. Raises Problem if there is none."""
    return find(connection, schema.tenants, "tenant", tenant_id, field="tenant_id")


def check_plan(connection: Connection, tenant_id: str, plan_id: str | None, field: str = "plan_id") -> None:
    """Raise Problem unless a plan is the tenant's."""
    if plan_id is None:
        return
    row = find(connection, schema.plans, "plan", plan_id, field=field)
    if row["tenant_id"] != tenant_id:
        raise not_found("plan", field=field)


def check_free(connection: Connection, column: Column[str], kind: str, value: str, *others: ColumnElement[bool]) -> None:
    """Raise Problem if a value of a column is taken, among the rows that fulfil other conditions."""
    field = str(column.name)
    if connection.execute(select(column).where(column == value, *others).limit(1)).first() is not None:
        raise Problem(409, f"there is a {kind} with the {field} {value!r} already", field=field)


def without_null(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return values without those of some names that are null: they cannot be taken away."""
    return {name: value for name, value in values.items() if value is not None or name not in names}


def _key_value(column: Any, text: str) -> Any:
    """Return the value of a key; a number for a key that is one, and one that nobody has if it is not."""
    if column.type.python_type is not int:
        return text
    return int(text) if text.isdecimal() and len(text) < 18 else -1
