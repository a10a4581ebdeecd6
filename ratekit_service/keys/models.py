"""API keys as administrators write and read them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from ratekit_service.models import Body, Id, Row, Time, Title

Scope = Literal["check", "read", "charge"]
Scopes = Annotated[list[Scope], Field(min_length=1, max_length=3)]


class NewKey(Body):
    """A key to be made. Its scopes: check (check, release, reserve, commit), read (peek, usage), charge (charge, refund)."""

    tenant_id: Id
    name: Title
    plan_id: Id | None = None
    kind: Literal["live", "test"] = "live"
    scopes: Scopes = Field(default=["check", "read", "charge"])
    expires_at: Time | None = None


class KeyChange(Body):
    """What changes; null takes the plan or the expiry away, and leaves the name and the scopes."""

    name: Title | None = None
    plan_id: Id | None = None
    scopes: Scopes | None = None
    expires_at: Time | None = None


class Rotation(Body):
    """For how long the old key works beside the new one: 0 if it leaked."""

    overlap_seconds: Annotated[int, Field(ge=0, le=31_622_400)] = 86_400


class Key(Row):
    """A key, without its secret."""

    id: str
    tenant_id: str
    name: str
    kind: str
    plan_id: str | None
    scopes: list[str]
    expires_at: datetime | None
    revoked_at: datetime | None
    replaced_by: str | None
    last_used_at: datetime | None = Field(description="To the minute; written every half a minute.")


class MadeKey(Key):
    """A key that was just made: the only time that `key` is shown."""

    key: str
    key_hash: str
