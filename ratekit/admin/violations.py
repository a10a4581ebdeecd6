"""Violations: requests that were refused, written to a database in batches, never on the path of a request.

    from ratekit.admin.violations import ViolationLog

    log = ViolationLog("postgresql://…").start()

A request only leaves a record in a bounded queue. A thread writes the queue once a second. While the database is away or
too slow, the queue fills; what does not fit is dropped and counted.
"""

from __future__ import annotations

import atexit
import datetime
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from ratekit.core import clock, events
from ratekit.core.errors import ConfigurationError, DatabaseUnavailable, MissingExtraError
from ratekit.core.events import Decision, Loss, Outcome
from ratekit.core.poller import Poller
from ratekit.core.pseudonyms import pseudonyms

try:
    from sqlalchemy import Engine

    from ratekit.database import violation_table
    from ratekit.database.engines import open_engine, telling_outages
    from ratekit.database.schema import LONGEST_NAME
    from ratekit.database.violation_table import Violation
except ImportError:
    raise MissingExtraError("violations", "sql") from None

__all__ = ["Violation", "ViolationLog", "delete_violations", "list_violations"]

_Answer = TypeVar("_Answer")
WHAT = "violations"  # of a loss
_INTERVAL = 1.0  # seconds between two writes
_MOST = 10_000  # records that wait to be written
_BATCH = 500  # records of one statement
_log = logging.getLogger("ratekit.violations")


class ViolationLog:
    """Writes each request that a limit refuses to the table rate_limit_violations.

    - database: a URL (by default RATEKIT_DATABASE_URL), or an Engine of SQLAlchemy
    - most: how many records may wait to be written; what comes beyond is dropped
    - subjects: "plain" writes subjects as they are, "hashed" writes pseudonyms, as the report does
    - tenant: whose records they are
    """

    def __init__(
        self,
        database: str | Engine | None = None,
        *,
        interval: float = _INTERVAL,
        most: int = _MOST,
        subjects: str = "plain",
        tenant: str = "",
    ) -> None:
        if subjects not in ("hashed", "plain"):
            raise ConfigurationError(f"subjects {subjects!r} is unknown: it is one of hashed, plain")
        if type(most) is not int or most < 1:
            raise ConfigurationError(f"most {most!r} is not a whole number above 0")
        if not isinstance(interval, int | float) or not 0.001 <= interval <= 3600:
            raise ConfigurationError(f"interval {interval!r} is not a number of seconds between 0.001 and 3600")
        self._engine = database if isinstance(database, Engine) else open_engine(database)
        self._owns = not isinstance(database, Engine)
        self._name: Callable[[str], str] = str if subjects == "plain" else pseudonyms()
        self._interval, self._most, self._tenant = float(interval), most, tenant
        self._queue: deque[Violation] = deque()
        self._writing = threading.Lock()
        self._poller: Poller | None = None
        self._remove: events.Remove = lambda: None
        self._is_written = True
        self.written = 0
        self.dropped = 0

    def start(self, *, listen: bool = True) -> ViolationLog:
        """Write from now on; with listen, every decision of this process that refuses a request."""
        self._remove()
        self._poller = self._poller or Poller(self.flush, self._interval, "ratekit-violations")
        if listen:
            self._remove = events.on_decision(self.enqueue)
        _logs.add(self)
        return self

    def enqueue(self, decision: Decision) -> None:
        """Queue the record of a decision that refused its request. This is all that a request waits for."""
        if decision.outcome is Outcome.DENIED and decision.result is not None:
            self.add(self._violation(decision))

    def add(self, violation: Violation) -> None:
        """Queue a record. Never waits; what does not fit is dropped."""
        if len(self._queue) >= self._most:
            self._drop(1, "the database is too slow")
            return
        self._queue.append(violation)
        if self._poller is not None:
            self._poller.revive()

    def flush(self) -> None:
        """Write what is queued. If the database does not answer, it stays queued."""
        with self._writing:
            while batch := list(islice(self._queue, _BATCH)):
                if not self._write(batch):
                    return
                for _ in batch:
                    self._queue.popleft()
                self.written += len(batch)

    def forget(self) -> None:
        """Start with nothing, in a process that was forked."""
        self._queue = deque()
        self._writing = threading.Lock()
        self._engine.dispose(close=False)

    def close(self) -> None:
        """Stop listening, write the rest, and close the connections that were opened here."""
        self._remove()
        if self._poller is not None:
            self._poller.close()
        self.flush()
        if rest := len(self._queue):
            self._queue.clear()
            self._drop(rest, "the database was away at the end")
        if self._owns:
            self._engine.dispose()
        _logs.discard(self)

    def _violation(self, decision: Decision) -> Violation:
        assert decision.result is not None  # noqa: S101 - enqueue has looked
        tier = decision.result.tiers[decision.result.binding]
        return Violation(
            subject=self._name(decision.subject)[:LONGEST_NAME],
            endpoint=decision.endpoint[:LONGEST_NAME],
            limit=tier.name,
            at=datetime.datetime.fromtimestamp(clock.now(), datetime.UTC),
            used=tier.used,
            maximum=tier.max_requests,
            tenant=self._tenant,
        )

    def _write(self, batch: Sequence[Violation]) -> bool:
        try:
            with telling_outages(), self._engine.begin() as connection:
                violation_table.add(connection, batch)
        except DatabaseUnavailable as error:
            if self._is_written:
                _log.warning("violations cannot be written, and wait until they can: %s", error)
            self._is_written = False
            return False
        if not self._is_written:
            _log.info("violations are written again")
        self._is_written = True
        return True

    def _drop(self, count: int, why: str) -> None:
        if self.dropped == 0:
            _log.warning("violations are dropped from now on: %s", why)
        self.dropped += count
        events.losses.notify(Loss(WHAT, count))


def list_violations(
    database: str | Engine | None = None,
    *,
    subject: str | None = None,
    endpoint: str | None = None,
    since: datetime.datetime | None = None,
    most: int = 100,
    tenant: str = "",
) -> Sequence[Violation]:
    """Return violations, the latest first: all of them, or those of a subject, of an endpoint, since a time."""
    return _asked(
        database,
        lambda connection: violation_table.select_rows(
            connection, tenant, subject=subject, endpoint=endpoint, since=since, most=most
        ),
    )


def delete_violations(before: datetime.datetime, database: str | Engine | None = None) -> int:
    """Delete the violations before a time. Returns how many there were."""
    return _asked(database, lambda connection: violation_table.forget(connection, before))


def _asked(database: str | Engine | None, function: Callable[..., _Answer]) -> _Answer:
    engine = database if isinstance(database, Engine) else open_engine(database)
    try:
        with telling_outages(), engine.begin() as connection:
            return function(connection)
    finally:
        if not isinstance(database, Engine):
            engine.dispose()


_logs: weakref.WeakSet[ViolationLog] = weakref.WeakSet()


def _close_all() -> None:
    for log in list(_logs):
        log.close()


def _start_empty() -> None:
    """Leave to the process that this one was forked from what it has queued, and its connections."""
    for log in list(_logs):
        log.forget()


os.register_at_fork(after_in_child=_start_empty)
atexit.register(_close_all)
