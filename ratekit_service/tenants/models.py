"""Tenants as administrators write and read them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ratekit_service.configuration.records import requests_policy
from ratekit_service.models import Body, Id, Row, Title

Mode = Literal["on", "off", "monitor"]
HeaderStyle = Literal["x-ratelimit", "ratelimit", "draft-11", "none"]


def _limit(text: str) -> str:
    requests_policy("tenant", text)
    return text


LimitText = Annotated[str, Field(max_length=100, examples=["2000/s"]), AfterValidator(_limit)]


class TenantSettings(Body):
    """What a tenant can be told: its mode, the headers of its answers, and what it may ask of one instance."""

    mode: Mode | None = None
    headers: list[HeaderStyle] | None = Field(None, min_length=1, max_length=4)
    service_limit: LimitText | None = None


class NewTenant(TenantSettings):
    """A tenant to be made."""

    name: Title


class TenantChange(TenantSettings):
    """What changes; null goes back to the default."""

    name: Title | None = None
    default_plan_id: Id | None = None


class Tenant(Row):
    """A tenant."""

    id: str
    name: str
    default_plan_id: str | None
    mode: Mode
    headers: list[HeaderStyle]
    service_limit: str | None
