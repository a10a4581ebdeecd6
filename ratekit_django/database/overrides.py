"""Overrides in Django's database, and their copies in the store that decides.

    from ratekit_django.database.overrides import delete_override, set_override

Each change is one transaction of Django: the version, the override, its history. When it is committed, the store gets a
copy, so the next request uses it. If the store does not answer then, a process that serves requests copies it later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache

from django.db import close_old_connections, router, transaction
from django.db.models import F
from django.db.utils import DatabaseError

from ratekit.admin.override_copies import Copied, Follower, OverrideCopies, now
from ratekit.admin.override_hash import Numbers
from ratekit.core.errors import ConfigurationError, DatabaseUnavailable, RateLimitUnavailable
from ratekit.database.override_rows import OverrideRow
from ratekit.limiter.limiters import RateLimiter
from ratekit_django.conf import conf
from ratekit_django.database.models import MAX_REQUESTS, ConfigDeletion, ConfigVersion, Override, OverrideChange

_DEADLINE = 5.0  # seconds: no request waits for a copy
_log = logging.getLogger("ratekit.overrides")


def set_override(
    subject: str,
    endpoint: str,
    *,
    max_requests: int | None = None,
    expiry: float | None = None,
    burst: int | None = None,
    unlimited: bool = False,
    limit: str | None = None,
    valid_until: datetime | None = None,
    reason: str | None = None,
    set_by: str | None = None,
) -> Override:
    """Write the numbers of one limit of a subject on an endpoint. Numbers of other limits stay."""
    numbers = Numbers(max_requests, expiry, burst, unlimited).check_given()
    with transaction.atomic(using=_database()):
        override = Override.objects.filter(tenant_id="", client_key=subject, endpoint=endpoint).first()
        override = override or Override(client_key=subject, endpoint=endpoint)
        put_numbers(override, numbers, limit)
        override.valid_until, override.reason, override.set_by = valid_until, reason, set_by
        save(override)
    return override


def delete_override(subject: str, endpoint: str, *, deleted_by: str | None = None, reason: str | None = None) -> bool:
    """Delete the override of a subject on an endpoint. Returns whether there was one."""
    with transaction.atomic(using=_database()):
        override = Override.objects.filter(tenant_id="", client_key=subject, endpoint=endpoint).first()
        if override is not None:
            remove(override, deleted_by, reason)
    return override is not None


def put_numbers(override: Override, numbers: Numbers, limit: str | None = None) -> None:
    """Give an override the numbers of one limit, in place of those that it had for it."""
    prefix = "" if limit is None else f"{limit}."
    kept = {name: text for name, text in override.numbers().items() if name.rpartition(".")[0] != prefix.rstrip(".")}
    fields: dict[str, str] = kept | numbers.as_fields(limit)
    maximum = fields.pop(MAX_REQUESTS, None)
    override.max_requests = None if maximum is None else int(maximum)
    override.fields = fields or None


def save(override: Override) -> None:
    """Save an override, in a transaction that is open, with its history; copy it when that is committed."""
    override.version, override.updated_at = raise_version(), now()
    override.save()
    _remember("set", override, override.set_by, override.reason)
    transaction.on_commit(copy_now, using=_database())


def remove(override: Override, by: str | None, reason: str | None = None, action: str = "delete") -> None:
    """Delete an override, in a transaction that is open, and keep it in the history."""
    note_deletion("override", override.pk)
    _remember(action, override, by, reason)
    override.delete()
    transaction.on_commit(copy_now, using=_database())


def copy_now() -> bool:
    """Copy what differs to the store. Returns whether the store could be reached."""
    try:
        copies().copy(ORIGINALS)
    except (RateLimitUnavailable, ConfigurationError) as error:
        _log.warning("an override was written to the database, and not to the store yet: %s", error)
        return False
    return True


def copy(*, complete: bool = False) -> Copied:
    """Bring the store up to date with the database."""
    return copies().copy(ORIGINALS, complete=complete)


@cache
def _copies(url: str, prefix: str) -> OverrideCopies:
    return OverrideCopies(RateLimiter(url, prefix=prefix, on_outage="closed", deadline=_DEADLINE))


def copies() -> OverrideCopies:
    """Return the copies in the project's store."""
    return _copies(conf.store_url, conf.prefix)


class Originals:
    """The overrides in Django's database, as what copies them sees them."""

    def version(self) -> int:
        """Return the version of the configuration."""
        with telling_outages():
            return _version()

    def rows(self) -> tuple[int, Sequence[OverrideRow]]:
        """Return the version, and all overrides."""
        with telling_outages():
            return _version(), [override.row() for override in Override.objects.filter(tenant_id="").select_related("rule")]

    def expire(self) -> int:
        """Move the overrides that have ended to the history."""
        with telling_outages():
            close_old_connections()
            ended = Override.objects.filter(valid_until__lte=now())
            if not ended.exists():
                return 0
            with transaction.atomic(using=_database()):
                found = list(ended.select_related("rule"))
                for override in found:
                    remove(override, None, action="expire")
            return len(found)


@contextmanager
def telling_outages() -> Iterator[None]:
    """Raise DatabaseUnavailable where Django's database does not answer, or lacks the tables."""
    try:
        yield
    except (DatabaseError, ConfigVersion.DoesNotExist) as error:
        raise DatabaseUnavailable(" ".join(str(error).split())) from error


ORIGINALS = Originals()


def follow(interval: float = 0.5) -> Follower:
    """Keep the store up to date from now on, by a thread of this process."""
    return Follower(ORIGINALS, copies(), interval)


def _database() -> str:
    return router.db_for_write(Override)


def raise_version() -> int:
    """Raise the version, first in a transaction: its row stays locked until the end, so writers take turns."""
    ConfigVersion.objects.update(version=F("version") + 1, updated_at=now())
    return _version()


def _version() -> int:
    return int(ConfigVersion.objects.get().version)


def note_deletion(kind: str, object_id: int) -> None:
    """Remember that something was deleted, for those who hold a copy of it."""
    ConfigDeletion.objects.create(version=raise_version(), kind=kind, object_id=str(object_id), deleted_at=now())


def _remember(action: str, override: Override, by: str | None, reason: str | None) -> None:
    OverrideChange.objects.create(
        override_id=override.pk,
        tenant_id=override.tenant_id,
        client_key=override.client_key,
        endpoint=override.where,
        action=action,
        max_requests=override.max_requests,
        fields=override.fields,
        valid_until=override.valid_until,
        changed_by=by,
        reason=reason,
        changed_at=now(),
    )
