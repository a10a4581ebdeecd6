"""Overrides: numbers kept in the store that replace a limit's own for one subject on one endpoint.

The first argument of each function is a limiter, a store, or a client of redis-py or valkey-py. If it is asynchronous, the
answer is awaited. The subject is a project (`org_id=` and `project_id=`) or any other (`subject=`). `key_suffix=` means the
counters of elements ("/elements"). The next decision uses what was written.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from ratekit.admin import override_flows
from ratekit.admin.commands import Flow, Result, prefix_of
from ratekit.admin.override_flows import OverridePage, Selection
from ratekit.admin.override_hash import NUMBERS, Numbers, Override, as_epoch, field_name, remarks, ttl_ms
from ratekit.admin.targets import Target, sync_or_async
from ratekit.core import clock, keys
from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import parse_override_key
from ratekit.limiter import refusal_cache

__all__ = [
    "Numbers",
    "Override",
    "OverridePage",
    "clear_rate_limit_overrides",
    "delete_rate_limit_override",
    "get_rate_limit_override",
    "list_rate_limit_overrides",
    "parse_override_key",
    "restore_rate_limit_override",
    "set_rate_limit_override",
]


@sync_or_async
def set_rate_limit_override(
    store: Target,
    *,
    endpoint: str,
    org_id: object = None,
    project_id: object = None,
    subject: str | None = None,
    max_requests: int | None = None,
    expiry: float | None = None,
    burst: int | None = None,
    unlimited: bool = False,
    until: datetime | float | None = None,
    limit: str | None = None,
    override_ttl: float | None = None,
    note: str | None = None,
    set_by: str | None = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Flow[Override]:
    """Write the numbers of one limit, in place of those that the override had for it. Returns the Override as stored.

    - endpoint: "*" is for all endpoints of the subject, wherever an override of the endpoint says nothing of a limit
    - limit: the name of the limit; by default the policy's first
    - max_requests: 0 blocks the subject
    - expiry: the window, in seconds
    - until: a datetime or seconds since the epoch; everything is refused until then, with the wait in the answer. With
      until, a max_requests of 0 blocks no longer than that
    - override_ttl: seconds until the whole override ends, with the numbers of its other limits; None for never
    """
    place = as_place(prefix_of(store, prefix), endpoint, org_id, project_id, subject, key_suffix)
    numbers = Numbers(max_requests, expiry, burst, unlimited, as_epoch(until)).check_given().as_fields(limit)
    texts = remarks(note, set_by, clock.now()) | place.originals()
    old = {field_name(name, limit) for name in NUMBERS} | {"note", "set_by"}
    change = override_flows.change(
        place.key, ttl_ms(override_ttl), numbers | texts, sorted(old - numbers.keys() - texts.keys())
    )
    return _changing(override_flows.write(place.key, change))


@sync_or_async
def get_rate_limit_override(
    store: Target,
    *,
    endpoint: str,
    org_id: object = None,
    project_id: object = None,
    subject: str | None = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Flow[Override | None]:
    """Return the Override of a subject on an endpoint, or None."""
    return override_flows.read_one(as_place(prefix_of(store, prefix), endpoint, org_id, project_id, subject, key_suffix).key)


@sync_or_async
def delete_rate_limit_override(
    store: Target,
    *,
    endpoint: str,
    org_id: object = None,
    project_id: object = None,
    subject: str | None = None,
    limit: str | None = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Flow[bool]:
    """Delete an override, or its numbers for one limit. Returns whether there was anything to delete."""
    key = as_place(prefix_of(store, prefix), endpoint, org_id, project_id, subject, key_suffix).key
    if limit is None:
        return _changing(override_flows.run_change(("DEL", key)))
    fields = [field_name(name, limit) for name in NUMBERS]
    return _changing(override_flows.run_change(override_flows.change(key, 0, {}, fields)))


@sync_or_async
def list_rate_limit_overrides(
    store: Target,
    *,
    endpoint: str | None = None,
    org_id: object = None,
    page_size: int | None = None,
    cursor: str | None = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Flow[OverridePage]:
    """Return an OverridePage of every override, or of those of an endpoint, of an organisation, or of both.

    With page_size, it is a page of at least that many; its cursor asks for the next page. An override that exists all the
    while is on at least one page, and may be on two. The embedded store has one page.
    """
    selection = _selection(store, endpoint, org_id, key_suffix, prefix)
    if page_size is not None and (type(page_size) is not int or page_size < 1):
        raise ConfigurationError(f"page_size {page_size!r} is not a whole number above 0")
    return override_flows.select(selection, page_size, cursor)


@sync_or_async
def clear_rate_limit_overrides(
    store: Target,
    *,
    endpoint: str | None = None,
    org_id: object = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Flow[int]:
    """Delete every override, or those of an endpoint, of an organisation, or of both. Returns how many there were."""
    return _changing(override_flows.clear(_selection(store, endpoint, org_id, key_suffix, prefix)))


@sync_or_async
def restore_rate_limit_override(store: Target, override: Override, *, prefix: str | None = None) -> Flow[Override]:
    """Write an override as another store had it, in place of what is there. Returns the Override as stored."""
    place = as_place(prefix_of(store, prefix), str(override.endpoint or ""), subject=override.subject)
    fields = override.as_fields() | place.originals()
    return _changing(override_flows.replace(place.key, ttl_ms(override.expires_in), fields))


class Place(NamedTuple):
    """Where one override is: its key, and the endpoint and the subject that the key was made of."""

    key: str
    endpoint: str
    subject: str

    def originals(self) -> dict[str, str]:
        """Return the fields that keep the parts that are hashed in the key."""
        parsed = parse_override_key(self.key)
        fields = {} if parsed.endpoint is not None else {"endpoint": _encodable(self.endpoint)}
        return fields if parsed.subject is not None else fields | {"subject": _encodable(self.subject)}


def as_place(
    prefix: str,
    endpoint: str,
    org_id: object = None,
    project_id: object = None,
    subject: str | None = None,
    key_suffix: str | None = None,
) -> Place:
    """Return where an override is. Raises ConfigurationError if it is not said whose it is."""
    if subject is None and org_id is not None and project_id is not None:
        subject = keys.project_subject(org_id, project_id)
    elif subject is None or org_id is not None or project_id is not None:
        given = f"subject {subject!r}, org_id {org_id!r} and project_id {project_id!r}"
        raise ConfigurationError(f"{given} do not say whose override it is: give a subject, or both ids")
    where = _endpoint(endpoint, key_suffix)
    if where == keys.ALL_ENDPOINTS:
        return Place(keys.wide_override_key(prefix, subject), where, subject)
    return Place(keys.override_key(prefix, where, subject), where, subject)


def _selection(store: Target, endpoint: str | None, org_id: object, key_suffix: str | None, prefix: str | None) -> Selection:
    if endpoint is None and key_suffix is not None:
        raise ConfigurationError(f"key_suffix {key_suffix!r} needs an endpoint that it belongs to")
    where = None if endpoint is None else _endpoint(endpoint, key_suffix)
    return Selection(prefix_of(store, prefix), where, None if org_id is None else str(org_id))


def _changing(flow: Flow[Result]) -> Flow[Result]:
    """Run a flow, then empty the refusal caches of this process: the change may have made their answers wrong."""
    result = yield from flow
    refusal_cache.forget_all()
    return result


def _endpoint(endpoint: str, key_suffix: str | None) -> str:
    for name, part in (("endpoint", endpoint), ("key_suffix", key_suffix)):
        if part is not None and (not isinstance(part, str) or not part or not part.isprintable()):
            raise ConfigurationError(f"{name} {part!r} is not a printable text")
    if endpoint is None:
        raise ConfigurationError("endpoint None does not say where the override applies")
    return endpoint if key_suffix is None else keys.element_endpoint(endpoint, key_suffix)


def _encodable(part: str) -> str:
    return part.encode("utf-8", "replace").decode()
