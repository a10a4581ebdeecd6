"""Overrides that last: kept in a database, and copied to the store that decides.

A store may come back empty: a Redis that is run for speed keeps nothing over a restart. So the database is the original.
A change is committed there first, then copied to the store before the call returns, so that the next request uses it. A
process that follows the database copies what the store lacks: after a restart of the store, after a change that could not
be copied, and when somebody else has written to the database.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ratekit.admin.override_copies import INTERVAL, Copied, Follower, OverrideCopies, has_ended, now, seconds_left
from ratekit.admin.override_hash import NUMBERS, Numbers, Override, as_epoch, field_name, parse_override, remarks
from ratekit.admin.overrides import as_place
from ratekit.admin.targets import SyncTarget
from ratekit.core.errors import ConfigurationError, MissingExtraError, RateLimitUnavailable
from ratekit.core.keys import OverrideKey
from ratekit.database.override_rows import Change, OverrideRow
from ratekit.limiter.limiters import RateLimiter

try:
    from sqlalchemy import Connection, Engine

    from ratekit.database import override_table
    from ratekit.database.engines import open_engine, telling_outages
    from ratekit.database.versions import current_version
except ImportError:
    raise MissingExtraError("overrides that last", "sql") from None

__all__ = ["Change", "Copied", "DurableOverride", "DurableOverrides", "Follower"]

_log = logging.getLogger("ratekit.overrides")


@dataclass(frozen=True, slots=True)
class DurableOverride:
    """An override as the database keeps it: its numbers, until when, who set it and why."""

    override: Override
    valid_until: datetime.datetime | None
    version: int
    is_copied: bool = True  # False: the store could not be reached, and gets it as soon as it can


class DurableOverrides:
    """Overrides in a database, and their copies in a store.

    database is a URL (by default RATEKIT_DATABASE_URL) or an Engine of SQLAlchemy; `ratekit db upgrade` makes the tables.
    store is a URL, a limiter, a store or a client that waits. Calls wait for both: in an event loop, use a thread.
    """

    def __init__(
        self,
        database: str | Engine | None = None,
        store: SyncTarget | str | None = None,
        *,
        prefix: str | None = None,
        tenant: str = "",
    ) -> None:
        self._engine = database if isinstance(database, Engine) else open_engine(database)
        self._owns = not isinstance(database, Engine)
        target = RateLimiter(store, on_outage="closed", deadline=5) if isinstance(store, str | None) else store
        self._copies = OverrideCopies(target, prefix=prefix, tenant=tenant)
        self.tenant = tenant

    def set(
        self,
        *,
        endpoint: str,
        org_id: object = None,
        project_id: object = None,
        subject: str | None = None,
        max_requests: int | None = None,
        expiry: float | None = None,
        burst: int | None = None,
        unlimited: bool = False,
        until: datetime.datetime | float | None = None,
        limit: str | None = None,
        valid_until: datetime.datetime | float | None = None,
        reason: str | None = None,
        set_by: str | None = None,
        key_suffix: str | None = None,
    ) -> DurableOverride:
        """Write the numbers of one limit, in place of those that the override had for it; numbers of other limits stay.

        valid_until, a datetime or seconds since the epoch, is when the whole override ends; None for never. The other
        arguments are those of set_rate_limit_override.
        """
        place = as_place(self._copies.prefix, endpoint, org_id, project_id, subject, key_suffix)
        numbers = Numbers(max_requests, expiry, burst, unlimited, as_epoch(until)).check_given().as_fields(limit)
        remarks(reason, set_by, None)
        ends = _checked_until(valid_until)
        with self._writing() as connection:
            known = override_table.find(connection, self.tenant, place.subject, place.endpoint)
            kept = {} if known is None else _without(known.fields, limit)
            row = OverrideRow(place.subject, place.endpoint, kept | numbers, ends, set_by, reason, tenant=self.tenant)
            row = override_table.put(connection, row, now())
        return self._answer(row, is_copied=self._copy_change())

    def delete(
        self,
        *,
        endpoint: str,
        org_id: object = None,
        project_id: object = None,
        subject: str | None = None,
        limit: str | None = None,
        reason: str | None = None,
        deleted_by: str | None = None,
        key_suffix: str | None = None,
    ) -> bool:
        """Delete an override, or its numbers for one limit. Returns whether there was anything to delete."""
        place = as_place(self._copies.prefix, endpoint, org_id, project_id, subject, key_suffix)
        with self._writing() as connection:
            known = override_table.find(connection, self.tenant, place.subject, place.endpoint)
            rest = {} if limit is None or known is None else _without(known.fields, limit)
            if known is None or (limit is not None and rest == known.fields):
                return False
            if rest:
                row = known._replace(fields=rest, set_by=deleted_by, reason=reason)
                override_table.put(connection, row, now())
            else:
                override_table.remove(connection, self.tenant, place.subject, place.endpoint, deleted_by, reason, now())
        self._copy_change()
        return True

    def get(
        self,
        *,
        endpoint: str,
        org_id: object = None,
        project_id: object = None,
        subject: str | None = None,
        key_suffix: str | None = None,
    ) -> DurableOverride | None:
        """Return the override of a subject on an endpoint as the database has it, or None. One that has ended is none."""
        place = as_place(self._copies.prefix, endpoint, org_id, project_id, subject, key_suffix)
        with self._reading() as connection:
            row = override_table.find(connection, self.tenant, place.subject, place.endpoint)
        return None if row is None or has_ended(row) else self._answer(row)

    def list(
        self, *, subject: str | None = None, endpoint: str | None = None, after: int = 0, most: int | None = None
    ) -> Sequence[DurableOverride]:
        """Return overrides by subject, then endpoint: all of them, or a page of so many after the first so many."""
        with self._reading() as connection:
            rows = override_table.select_rows(
                connection, self.tenant, subject=subject, endpoint=endpoint, after=after, most=most
            )
        return [self._answer(row) for row in rows if not has_ended(row)]

    def history(self, *, subject: str | None = None, endpoint: str | None = None, most: int = 100) -> Sequence[Change]:
        """Return what was set, deleted and has ended, the latest first: who, when, why."""
        with self._reading() as connection:
            return override_table.history(connection, self.tenant, subject=subject, endpoint=endpoint, most=most)

    def copy(self, *, complete: bool = False) -> Copied:
        """Bring the store up to date. complete writes every override, whatever the store is said to have."""
        return self._copies.copy(self, complete=complete)

    def rows(self) -> tuple[int, Sequence[OverrideRow]]:
        """Return the version of the configuration, and all overrides of the tenant."""
        with self._reading() as connection:
            return current_version(connection), override_table.select_rows(connection, self.tenant)

    def expire(self) -> int:
        """Move the overrides that have ended to the history. The store forgets them by itself."""
        with self._writing() as connection:
            return override_table.expire(connection, now())

    def follow(self, interval: float = INTERVAL) -> Follower:
        """Keep the store up to date from now on, by a thread of this process. Close what is returned to stop it."""
        return Follower(self, self._copies, interval)

    def close(self) -> None:
        """Close the connections to the database, unless the engine was given."""
        if self._owns:
            self._engine.dispose()

    def version(self) -> int:
        """Return the version of the configuration in the database."""
        with self._reading() as connection:
            return current_version(connection)

    def copied_version(self) -> int:
        """Return the version that the store has a copy of; -1 if it has none."""
        return self._copies.version()

    def _copy_change(self) -> bool:
        """Copy what was changed just now. Whether the store could be reached."""
        try:
            self.copy()
        except RateLimitUnavailable as error:
            _log.warning("an override was written to the database, and not to the store yet: %s", error)
            return False
        return True

    def _answer(self, row: OverrideRow, *, is_copied: bool = True) -> DurableOverride:
        key = OverrideKey(row.endpoint, row.subject)
        override = parse_override(key, self._copies.hash_of(row), seconds_left(row))
        return DurableOverride(override, row.valid_until, row.version, is_copied)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with telling_outages(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with telling_outages(), self._engine.connect() as connection:
            yield connection


def _without(fields: Mapping[str, str], limit: str | None) -> dict[str, str]:
    """Return the fields of other limits."""
    own = {field_name(name, limit) for name in NUMBERS}
    return {name: text for name, text in fields.items() if name not in own}


def _checked_until(valid_until: datetime.datetime | float | None) -> datetime.datetime | None:
    if valid_until is None:
        return None
    if isinstance(valid_until, int | float) and not isinstance(valid_until, bool):
        try:
            valid_until = datetime.datetime.fromtimestamp(valid_until, datetime.UTC)
        except (ValueError, OverflowError, OSError):
            raise ConfigurationError(f"valid_until {valid_until!r} is not a time in seconds since the epoch") from None
    if not isinstance(valid_until, datetime.datetime) or valid_until.tzinfo is None:
        raise ConfigurationError(
            f"valid_until {valid_until!r} is neither a datetime with a time zone nor a number of seconds"
        )
    if valid_until <= now():
        raise ConfigurationError(f"valid_until {valid_until.isoformat()} is over")
    return valid_until
