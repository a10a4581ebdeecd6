"""Overrides that last, and their changes, as every source of them hands them on: SQLAlchemy, and Django's models."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import NamedTuple


class OverrideRow(NamedTuple):
    """An override as the database keeps it. fields are the numbers, under the names that they have in the store."""

    subject: str
    endpoint: str
    fields: Mapping[str, str]
    valid_until: datetime.datetime | None = None  # None: until it is deleted
    set_by: str | None = None
    reason: str | None = None
    set_at: datetime.datetime | None = None
    version: int = 0
    tenant: str = ""


class Change(NamedTuple):
    """One entry of an override's history."""

    action: str  # set, delete or expire
    subject: str
    endpoint: str
    fields: Mapping[str, str]
    valid_until: datetime.datetime | None
    changed_by: str | None
    reason: str | None
    changed_at: datetime.datetime
