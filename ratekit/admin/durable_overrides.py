"""Overrides that last: kept in a database, and copied to the store that decides.

A store may come back empty: a Redis that is run for speed keeps nothing over a restart. So the database is the original.
A change is committed there first, then copied to the store before the call returns, so that the next request uses it. A
process that follows the database copies what the store lacks: after a restart of the store, after a change that could not
be copied, and when somebody else has written to the database.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from ratekit.admin import override_flows
from ratekit.admin.commands import Batch, Flow, answered, as_texts, drive, prefix_of
from ratekit.admin.override_hash import NUMBERS, Numbers, Override, field_name, parse_override, remarks, ttl_ms
from ratekit.admin.overrides import as_place
from ratekit.admin.targets import SyncTarget
from ratekit.core import clock
from ratekit.core.errors import ConfigurationError, DatabaseUnavailable, MissingExtraError, RateLimitUnavailable
from ratekit.core.keys import OverrideKey, copied_overrides_key
from ratekit.core.poller import Poller
from ratekit.limiter import refusal_cache
from ratekit.limiter.limiters import RateLimiter

try:
    from sqlalchemy import Connection, Engine

    from ratekit.database import override_table
    from ratekit.database.engines import open_engine, telling_outages
    from ratekit.database.override_table import Change, OverrideRow
    from ratekit.database.versions import current_version
except ImportError:
    raise MissingExtraError("overrides that last", "sql") from None

__all__ = ["Change", "Copied", "DurableOverride", "DurableOverrides", "Follower"]

_INTERVAL = 0.5  # seconds between two looks at the version; with the copy it stays within a second
_COMPARE = 30.0  # seconds between two looks at the rows themselves: others may write them without raising the version
_COMPLETE = 600.0  # seconds between two complete copies: a node of a Cluster may lose what its neighbour remembers
_TURNS = 5  # copies that are made in a row while others change the database
_BATCH = 500  # overrides that are written in one go
_log = logging.getLogger("ratekit.overrides")


@dataclass(frozen=True, slots=True)
class DurableOverride:
    """An override as the database keeps it: its numbers, until when, who set it and why."""

    override: Override
    valid_until: datetime.datetime | None
    version: int
    is_copied: bool = True  # False: the store could not be reached, and gets it as soon as it can


class Copied(NamedTuple):
    """What a copy has changed in the store."""

    version: int
    written: int = 0
    deleted: int = 0


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
        self._store = RateLimiter(store, on_outage="closed", deadline=5) if isinstance(store, str | None) else store
        self._prefix = prefix_of(self._store, prefix)
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
        place = as_place(self._prefix, endpoint, org_id, project_id, subject, key_suffix)
        numbers = Numbers(max_requests, expiry, burst, unlimited).check_given().as_fields(limit)
        remarks(reason, set_by, None)
        until = _checked_until(valid_until)
        with self._writing() as connection:
            known = override_table.find(connection, self.tenant, place.subject, place.endpoint)
            kept = {} if known is None else _without(known.fields, limit)
            row = OverrideRow(place.subject, place.endpoint, kept | numbers, until, set_by, reason, tenant=self.tenant)
            row = override_table.put(connection, row, _now())
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
        place = as_place(self._prefix, endpoint, org_id, project_id, subject, key_suffix)
        with self._writing() as connection:
            known = override_table.find(connection, self.tenant, place.subject, place.endpoint)
            rest = {} if limit is None or known is None else _without(known.fields, limit)
            if known is None or (limit is not None and rest == known.fields):
                return False
            if rest:
                row = known._replace(fields=rest, set_by=deleted_by, reason=reason)
                override_table.put(connection, row, _now())
            else:
                override_table.remove(connection, self.tenant, place.subject, place.endpoint, deleted_by, reason, _now())
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
        place = as_place(self._prefix, endpoint, org_id, project_id, subject, key_suffix)
        with self._reading() as connection:
            row = override_table.find(connection, self.tenant, place.subject, place.endpoint)
        return None if row is None or _has_ended(row) else self._answer(row)

    def list(
        self, *, subject: str | None = None, endpoint: str | None = None, after: int = 0, most: int | None = None
    ) -> Sequence[DurableOverride]:
        """Return overrides by subject, then endpoint: all of them, or a page of so many after the first so many."""
        with self._reading() as connection:
            rows = override_table.select_rows(
                connection, self.tenant, subject=subject, endpoint=endpoint, after=after, most=most
            )
        return [self._answer(row) for row in rows if not _has_ended(row)]

    def history(self, *, subject: str | None = None, endpoint: str | None = None, most: int = 100) -> Sequence[Change]:
        """Return what was set, deleted and has ended, the latest first: who, when, why."""
        with self._reading() as connection:
            return override_table.history(connection, self.tenant, subject=subject, endpoint=endpoint, most=most)

    def copy(self, *, complete: bool = False) -> Copied:
        """Bring the store up to date: write what it lacks, delete what has ended or was deleted in the database.

        complete writes every override again, whatever the store is said to have. Another process may copy at the same time.
        So what was copied is compared with the database once more, and copied again if that has changed.
        """
        written = deleted = 0
        for turn in range(_TURNS):
            version, rows = self._in_force()
            copied: Copied | None = drive(self._store, self._copying(version, rows, complete=complete, force=turn > 0))
            if copied is None:
                continue
            written, deleted = written + copied.written, deleted + copied.deleted
            if self.version() == version:
                break
        if written or deleted:
            refusal_cache.forget_all()
        return Copied(version, written, deleted)

    def _in_force(self) -> tuple[int, Sequence[OverrideRow]]:
        with self._reading() as connection:
            version = current_version(connection)
            rows = override_table.select_rows(connection, self.tenant)
        return version, [row for row in rows if not _has_ended(row)]

    def expire(self) -> int:
        """Move the overrides that have ended to the history. The store forgets them by itself."""
        with self._writing() as connection:
            return override_table.expire(connection, _now())

    def follow(self, interval: float = _INTERVAL) -> Follower:
        """Keep the store up to date from now on, by a thread of this process. Close what is returned to stop it."""
        return Follower(self, interval)

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
        found: dict[str, str] = drive(self._store, _read_index(self._index))
        return int(found.get("", "-1"))

    def _copy_change(self) -> bool:
        """Copy what was changed just now. Whether the store could be reached."""
        try:
            self.copy()
        except RateLimitUnavailable as error:
            _log.warning("an override was written to the database, and not to the store yet: %s", error)
            return False
        return True

    def _copying(self, version: int, rows: Iterable[OverrideRow], *, complete: bool, force: bool) -> Flow[Copied | None]:
        """Compare the rows with what the store is said to have, and change what differs.

        Returns None if the store has a newer version: it was copied after the rows were read, or the database is a backup.
        With force, it is a backup, and the store follows it.
        """
        known = yield from _read_index(self._index)
        before = int(known.pop("", "-1"))
        if before > version and not force:
            return None
        wanted = {as_place(self._prefix, row.endpoint, subject=row.subject).key: row for row in rows}
        changed = {key: row for key, row in wanted.items() if complete or known.get(key) != _digest(row)}
        gone = known.keys() - wanted.keys()
        for part in _parts(tuple(changed.items())):
            yield from self._write(part)
        for names in _parts(sorted(gone)):
            yield from _run_all([*(("DEL", key) for key in names), ("HDEL", self._index, *names)])
        yield Batch((("HSET", self._index, "", str(version)),))
        return Copied(version, len(changed), len(gone))

    def _write(self, part: Sequence[tuple[str, OverrideRow]]) -> Flow[None]:
        """Write overrides, and then that the store has them."""
        replies = yield Batch(tuple(("HGETALL", key) for key, _ in part))
        commands = []
        for (key, row), reply in zip(part, replies, strict=True):
            fields = self._hash_of(row)
            old = as_texts(answered(reply)).keys() - fields.keys()
            commands.append(override_flows.change(key, ttl_ms(_seconds_left(row)), fields, sorted(old)))
        digests = [item for key, row in part for item in (key, _digest(row))]
        yield from _run_all([*commands, ("HSET", self._index, *digests)])

    def _hash_of(self, row: OverrideRow) -> dict[str, str]:
        place = as_place(self._prefix, row.endpoint, subject=row.subject)
        at = None if row.set_at is None else row.set_at.timestamp()
        return dict(row.fields) | remarks(row.reason or None, row.set_by or None, at) | place.originals()

    def _answer(self, row: OverrideRow, *, is_copied: bool = True) -> DurableOverride:
        key = OverrideKey(row.endpoint, row.subject)
        override = parse_override(key, self._hash_of(row), _seconds_left(row))
        return DurableOverride(override, row.valid_until, row.version, is_copied)

    @property
    def _index(self) -> str:
        return copied_overrides_key(self._prefix, self.tenant)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with telling_outages(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with telling_outages(), self._engine.connect() as connection:
            yield connection


class Follower:
    """A thread that keeps the copies in a store up to date with a database. One line is logged for each change of state.

    It compares two versions twice a second: that of the database, and that which the store says it has. A store that came
    back empty says none. Every 30 s it compares the rows themselves, for those who write them without raising the version.
    While the database is away, the copies in the store stay in force.
    """

    def __init__(self, overrides: DurableOverrides, interval: float = _INTERVAL) -> None:
        self._overrides = overrides
        self._trouble: str | None = None
        self._compare_at, self._complete_at = 0.0, clock.steady() + _COMPLETE
        self._first = threading.Event()
        self._poller = Poller(self._look, interval, "ratekit-overrides")

    def refresh(self) -> None:
        """Compare, and copy what is missing, now."""
        self._poller.run_now()

    def wait_for_first(self, timeout: float) -> bool:
        """Wait until the first comparison has ended, well or not. Returns whether it has."""
        return self._first.wait(timeout)

    def close(self) -> None:
        """Stop following."""
        self._poller.close()

    def _look(self) -> None:
        try:
            self._bring_up_to_date(clock.steady())
        except (DatabaseUnavailable, RateLimitUnavailable, ConfigurationError) as error:
            self._log_change(str(error))
        else:
            self._log_change(None)
        self._first.set()

    def _bring_up_to_date(self, now: float) -> None:
        self._overrides.expire()
        complete = now >= self._complete_at
        if complete or now >= self._compare_at or self._overrides.version() != self._overrides.copied_version():
            self._overrides.copy(complete=complete)
            self._compare_at = now + _COMPARE
            self._complete_at = now + _COMPLETE if complete else self._complete_at

    def _log_change(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            _log.warning("overrides cannot be copied from the database now: %s; those in the store stay", trouble)
        elif trouble is None and self._trouble is not None:
            _log.info("overrides are copied from the database again")
        self._trouble = trouble


def _read_index(key: str) -> Flow[dict[str, str]]:
    (reply,) = yield Batch((("HGETALL", key),))
    return as_texts(reply)


def _run_all(commands: Iterable[Any]) -> Flow[None]:
    for reply in (yield Batch(tuple(commands))):
        answered(reply)


def _digest(row: OverrideRow) -> str:
    """Return what tells two contents of an override apart."""
    content = (sorted(row.fields.items()), row.valid_until and row.valid_until.timestamp(), row.set_by, row.reason)
    return hashlib.blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))


def _without(fields: Mapping[str, str], limit: str | None) -> dict[str, str]:
    """Return the fields of other limits."""
    own = {field_name(name, limit) for name in NUMBERS}
    return {name: text for name, text in fields.items() if name not in own}


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(clock.now(), datetime.UTC)


def _has_ended(row: OverrideRow) -> bool:
    return row.valid_until is not None and row.valid_until <= _now()


def _seconds_left(row: OverrideRow) -> float | None:
    if row.valid_until is None:
        return None
    return max((row.valid_until - _now()).total_seconds(), 0.001)


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
    if valid_until <= _now():
        raise ConfigurationError(f"valid_until {valid_until.isoformat()} is over")
    return valid_until
