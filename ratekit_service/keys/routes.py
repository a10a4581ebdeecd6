"""Administration of API keys."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection, bindparam, or_, update

from ratekit.database import schema
from ratekit_service.administration import ADMIN_PROBLEMS, Admin, check_plan, find, find_tenant, page, without_null
from ratekit_service.database import Write
from ratekit_service.keys.models import Key, KeyChange, MadeKey, NewKey, Rotation
from ratekit_service.keys.secrets import make_key
from ratekit_service.models import After, Id, Items, Page
from ratekit_service.problems import Problem, invalid

router = APIRouter(prefix="/v1/admin/keys", tags=["keys"], responses=ADMIN_PROBLEMS)
KeyId = Annotated[Id, Path()]
_A_DAY = Rotation()


@router.post("", status_code=201)
async def create_key(body: NewKey, admin: Admin) -> MadeKey:
    """Make a key for a tenant. Its text is in this answer, and never again."""
    pepper = admin.service.settings.key_pepper
    return await admin.write(lambda write: _create(write, body.model_dump(), pepper))


@router.get("")
async def list_keys(
    admin: Admin,
    tenant_id: Annotated[Id | None, Query()] = None,
    revoked: Annotated[bool | None, Query()] = None,
    after: Annotated[After, Query()] = "",
    limit: Annotated[Items, Query()] = 50,
) -> Page[Key]:
    """List keys, all or those of a tenant, in the order of their creation."""
    columns = schema.api_keys.c
    conditions = [] if tenant_id is None else [columns.tenant_id == tenant_id]
    if revoked is not None:
        conditions.append(columns.revoked_at.is_not(None) if revoked else columns.revoked_at.is_(None))
    rows, following = await admin.read(lambda connection: page(connection, schema.api_keys, conditions, after, limit))
    return Page(items=[Key.model_validate(row) for row in rows], next=following)


@router.get("/{key_id}")
async def read_key(key_id: KeyId, admin: Admin) -> Key:
    """Read a key, without its secret."""
    return await admin.read(lambda connection: _read(connection, key_id))


@router.patch("/{key_id}")
async def change_key(key_id: KeyId, body: KeyChange, admin: Admin) -> Key:
    """Change a key's name, plan, scopes or expiry."""
    return await admin.write(lambda write: _change(write, key_id, body))


@router.post("/{key_id}/rotate", status_code=201)
async def rotate_key(key_id: KeyId, admin: Admin, body: Rotation = _A_DAY) -> MadeKey:
    """Make a new key with the settings of an old one, which works until the overlap is over."""
    pepper = admin.service.settings.key_pepper
    return await admin.write(lambda write: _rotate(write, key_id, body.overlap_seconds, pepper))


@router.delete("/{key_id}", status_code=204)
async def revoke_key(key_id: KeyId, admin: Admin) -> None:
    """Revoke a key: every instance refuses it within a second."""
    await admin.write(lambda write: _revoke(write, key_id))


def note_uses(connection: Connection, used: Mapping[str, int]) -> None:
    """Write when keys were last used, by their ids: the minute since the epoch. A later time stays."""
    table = schema.api_keys
    times = [
        {"key": key, "time": datetime.datetime.fromtimestamp(minute * 60, datetime.UTC)} for key, minute in used.items()
    ]
    is_later = or_(table.c.last_used_at.is_(None), table.c.last_used_at < bindparam("time"))
    statement = update(table).where(table.c.id == bindparam("key"), is_later).values(last_used_at=bindparam("time"))
    connection.execute(statement.values(updated_at=table.c.updated_at), times)


def _create(write: Write, values: dict[str, Any], pepper: str) -> MadeKey:
    find_tenant(write.connection, values["tenant_id"])
    check_plan(write.connection, values["tenant_id"], values["plan_id"])
    if values["expires_at"] is not None and values["expires_at"] <= write.now:
        raise invalid(f"expires_at {values['expires_at'].isoformat()} is over", "expires_at")
    made = make_key(values["kind"], pepper)
    kept = {"id": made.id, "salt": made.salt, "key_hash": made.key_hash}
    write.insert(schema.api_keys, "key", {**values, **kept})
    row = find(write.connection, schema.api_keys, "key", made.id)
    return MadeKey.model_validate({**row, "key": made.text})


def _change(write: Write, key_id: str, body: KeyChange) -> Key:
    row = find(write.connection, schema.api_keys, "key", key_id)
    given = without_null(body.model_dump(exclude_unset=True), "name", "scopes")
    check_plan(write.connection, row["tenant_id"], given.get("plan_id"))
    write.update(schema.api_keys, "key", key_id, given)
    return _read(write.connection, key_id)


def _rotate(write: Write, key_id: str, overlap: int, pepper: str) -> MadeKey:
    row = find(write.connection, schema.api_keys, "key", key_id)
    if row["revoked_at"] is not None or row["replaced_by"] is not None:
        raise Problem(409, "this key is revoked or was rotated before: make a new one")
    if row["expires_at"] is not None and row["expires_at"] <= write.now:
        raise Problem(409, "this key has expired: make a new one")
    inherited = {name: row[name] for name in ("tenant_id", "name", "plan_id", "kind", "scopes", "expires_at")}
    made = _create(write, inherited, pepper)
    ends = write.now + datetime.timedelta(seconds=overlap)
    ends = ends if row["expires_at"] is None else min(ends, row["expires_at"])
    revoked = {} if overlap else {"revoked_at": write.now}  # at once everywhere, whatever the clock of an instance says
    write.update(schema.api_keys, "key", key_id, {"expires_at": ends, "replaced_by": made.id, **revoked})
    return made


def _revoke(write: Write, key_id: str) -> None:
    row = find(write.connection, schema.api_keys, "key", key_id)
    if row["revoked_at"] is None:
        write.update(schema.api_keys, "key", key_id, {"revoked_at": write.now})


def _read(connection: Connection, key_id: str) -> Key:
    return Key.model_validate(find(connection, schema.api_keys, "key", key_id))
