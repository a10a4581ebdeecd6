"""Copies of overrides in the store that decides, kept up to date with a database that has the originals.

The store has a list of its copies: the key of each, with a digest of its content, and the version of the database that they
were made from. So a copy writes only what differs, and a store that came back empty is seen by its missing list.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ratekit.admin import override_flows
from ratekit.admin.commands import Batch, Flow, answered, as_texts, drive, prefix_of
from ratekit.admin.override_hash import LONGEST_NOTE, LONGEST_TTL, remarks, ttl_ms
from ratekit.admin.overrides import Place, as_place
from ratekit.admin.targets import SyncTarget
from ratekit.core import clock
from ratekit.core.errors import ConfigurationError, DatabaseUnavailable, RateLimitUnavailable
from ratekit.core.keys import copied_overrides_key
from ratekit.core.poller import Poller
from ratekit.database.override_rows import OverrideRow
from ratekit.limiter import refusal_cache

INTERVAL = 0.5  # seconds between two looks at the version; with the copy it stays within a second
_COMPARE = 30.0  # seconds between two looks at the rows themselves: others may write them without raising the version
_COMPLETE = 600.0  # seconds between two complete copies: a node of a Cluster may lose what its neighbour remembers
_TURNS = 5  # copies that are made in a row while others change the database
_BATCH = 500  # overrides that are written in one go
_log = logging.getLogger("ratekit.overrides")


class Copied(NamedTuple):
    """What a copy has changed in the store."""

    version: int
    written: int = 0
    deleted: int = 0


class Originals(Protocol):
    """Where overrides last."""

    def version(self) -> int:
        """Return a number that every change raises."""

    def rows(self) -> tuple[int, Sequence[OverrideRow]]:
        """Return the version, and all overrides. Some may have ended."""

    def expire(self) -> int:
        """Move the overrides that have ended to the history. Returns how many there were."""


class OverrideCopies:
    """The copies in one store. Calls wait for it."""

    def __init__(self, store: SyncTarget, *, prefix: str | None = None, tenant: str = "") -> None:
        self._store = store
        self.prefix = prefix_of(store, prefix)
        self._index = copied_overrides_key(self.prefix, tenant)

    def version(self) -> int:
        """Return the version of the originals that the store has copies of; -1 if it has none."""
        (found,) = drive(self._store, _run(("HGET", self._index, "")))
        return -1 if found is None else int(found)

    def copy(self, originals: Originals, *, complete: bool = False) -> Copied:
        """Bring the store up to date: write what it lacks, delete what has ended or was deleted in the database.

        complete writes every override again, whatever the store is said to have. Another process may copy at the same time.
        So what was copied is compared with the database once more, and copied again if that has changed.
        """
        written = deleted = version = 0
        for turn in range(_TURNS):
            version, rows = originals.rows()
            wanted = self._wanted(rows)
            copied: Copied | None = drive(self._store, self._copying(version, wanted, complete=complete, force=turn > 0))
            if copied is None:
                continue
            written, deleted = written + copied.written, deleted + copied.deleted
            if originals.version() == version:
                break
        if written or deleted:
            refusal_cache.forget_all()
        return Copied(version, written, deleted)

    def hash_of(self, row: OverrideRow) -> dict[str, str]:
        """Return the fields of an override in the store."""
        return _hash_of(row, as_place(self.prefix, row.endpoint, subject=row.subject))

    def _wanted(self, rows: Iterable[OverrideRow]) -> dict[str, tuple[OverrideRow, dict[str, str]]]:
        """Return the overrides in force by key. One that cannot be a key is left out, and must not hold up the others."""
        wanted = {}
        for row in rows:
            try:
                place = as_place(self.prefix, row.endpoint, subject=row.subject)
            except ConfigurationError as error:
                _log.error("an override in the database is left out: %s", error)
                continue
            if not has_ended(row):
                wanted[place.key] = (row, _hash_of(row, place))
        return wanted

    def _copying(
        self, version: int, wanted: Mapping[str, tuple[OverrideRow, dict[str, str]]], *, complete: bool, force: bool
    ) -> Flow[Copied | None]:
        """Compare what is wanted with what the store is said to have, and change what differs.

        Returns None if the store has a newer version: it was copied after the rows were read, or the database is a backup.
        With force, it is a backup, and the store follows it.
        """
        (reply,) = yield Batch((("HGETALL", self._index),))
        known = as_texts(reply)
        before = int(known.pop("", "-1"))
        if before > version and not force:
            return None
        digests = {key: _digest(row, fields) for key, (row, fields) in wanted.items()}
        changed = [key for key in wanted if complete or known.get(key) != digests[key]]
        gone = sorted(known.keys() - wanted.keys())
        for part in _parts(changed):
            yield from self._write([(key, *wanted[key], digests[key]) for key in part])
        for part in _parts(gone):
            yield from _run(*(("DEL", key) for key in part), ("HDEL", self._index, *part))
        yield Batch((("HSET", self._index, "", str(version)),))
        return Copied(version, len(changed), len(gone))

    def _write(self, part: Sequence[tuple[str, OverrideRow, dict[str, str], str]]) -> Flow[None]:
        """Write overrides, and then that the store has them."""
        replies = yield from _run(*(("HGETALL", key) for key, *_ in part))
        commands = [
            override_flows.change(key, ttl_ms(seconds_left(row)), fields, sorted(as_texts(reply).keys() - fields.keys()))
            for (key, row, fields, _), reply in zip(part, replies, strict=True)
        ]
        pairs = [item for key, _, _, digest in part for item in (key, digest)]
        yield from _run(*commands, ("HSET", self._index, *pairs))


class Follower:
    """A thread that keeps the copies in a store up to date with a database. One line is logged for each change of state.

    It compares two versions twice a second: that of the database, and that which the store says it has. A store that came
    back empty says none. Every 30 s it compares the rows themselves, for those who write them without raising the version.
    While the database is away, the copies in the store stay in force.
    """

    def __init__(self, originals: Originals, copies: OverrideCopies, interval: float = INTERVAL) -> None:
        self._originals = originals
        self._copies = copies
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

    def revive(self) -> None:
        """Follow in this process, too, if it was forked from the one that followed."""
        self._poller.revive()

    def close(self, seconds: float = 0.0) -> None:
        """Stop following, and wait for a copy that is being made, so many seconds at most."""
        self._poller.close(seconds)

    def _look(self) -> None:
        try:
            self._bring_up_to_date(clock.steady())
        except (DatabaseUnavailable, RateLimitUnavailable, ConfigurationError) as error:
            self._log_change(str(error))
        else:
            self._log_change(None)
        self._first.set()

    def _bring_up_to_date(self, now: float) -> None:
        self._originals.expire()
        complete = now >= self._complete_at
        if complete or now >= self._compare_at or self._originals.version() != self._copies.version():
            self._copies.copy(self._originals, complete=complete)
            self._compare_at = now + _COMPARE
            self._complete_at = now + _COMPLETE if complete else self._complete_at

    def _log_change(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            _log.warning("overrides cannot be copied from the database now: %s; those in the store stay", trouble)
        elif trouble is None and self._trouble is not None:
            _log.info("overrides are copied from the database again")
        self._trouble = trouble


def has_ended(row: OverrideRow) -> bool:
    """Whether an override is over."""
    return row.valid_until is not None and row.valid_until <= now()


def seconds_left(row: OverrideRow) -> float | None:
    """Return how long an override lasts; None for ever. One that ends in a thousand years must not hold up the others."""
    if row.valid_until is None:
        return None
    return min(max((row.valid_until - now()).total_seconds(), 0.001), LONGEST_TTL)


def now() -> datetime.datetime:
    """Return the time, aware."""
    return datetime.datetime.fromtimestamp(clock.now(), datetime.UTC)


def _hash_of(row: OverrideRow, place: Place) -> dict[str, str]:
    at = None if row.set_at is None else row.set_at.timestamp()
    return dict(row.fields) | remarks(_line(row.reason), _line(row.set_by), at) | place.originals()


def _line(text: str | None) -> str | None:
    """Return a text as the store keeps it: one line, not too long. The database has all of it."""
    words = "".join(letter if letter.isprintable() else " " for letter in text or "").split()
    return " ".join(words)[:LONGEST_NOTE] or None


def _digest(row: OverrideRow, fields: Mapping[str, str]) -> str:
    """Return what tells two contents of an override apart."""
    content = (sorted(fields.items()), row.valid_until and row.valid_until.timestamp())
    return hashlib.blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _run(*commands: Any) -> Flow[list[Any]]:
    replies = yield Batch(commands)
    return [answered(reply) for reply in replies]


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))
