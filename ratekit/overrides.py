"""A subject's own numbers, kept in the store: for administration and provisioning.

The first argument of each function is a limiter, a store, or a client of redis-py or valkey-py; where that is asynchronous,
what the function returns is to be awaited. Who is meant is a project (org_id and project_id) or any subject. key_suffix
means the elements of requests ("/elements"), which are counted apart. The next decision goes by what was written.
"""

from __future__ import annotations

from typing import Any

from ratekit import clock, keys, override_flows, refusals
from ratekit.errors import ConfigurationError
from ratekit.keys import OverrideKey, parse_override_key
from ratekit.override_fields import NUMBERS, Numbers, Override, field_name, remarks, ttl_ms
from ratekit.override_flows import OverridePage, Selection
from ratekit.stores.commands import Flow, Result, drive, prefix_of

__all__ = [
    "Numbers",
    "Override",
    "OverridePage",
    "clear_rate_limit_overrides",
    "delete_rate_limit_override",
    "get_rate_limit_override",
    "list_rate_limit_overrides",
    "parse_override_key",
    "set_rate_limit_override",
]


def set_rate_limit_override(
    store: Any,
    *,
    endpoint: str,
    org_id: Any = None,
    project_id: Any = None,
    subject: str | None = None,
    max_requests: int | None = None,
    expiry: float | None = None,
    burst: int | None = None,
    unlimited: bool = False,
    limit: str | None = None,
    override_ttl: float | None = None,
    note: str | None = None,
    set_by: str | None = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Any:
    """Write the numbers of one limit (the policy's first, unless `limit` names it), in place of those that it had.

    0 requests block; expiry is the window, in seconds. Returns the override as the store has it now. override_ttl, in
    seconds, is the time to live of the whole override: its other limits' numbers, note and all; None means for ever.
    """
    target = _Target(store, endpoint, org_id, project_id, subject, key_suffix, prefix)
    numbers = Numbers(max_requests, expiry, burst, unlimited).check_given().as_fields(limit)
    texts = remarks(note, set_by, clock.now()) | target.originals()
    old = {field_name(name, limit) for name in NUMBERS} | {"note", "set_by"}
    change = override_flows.change(
        target.key, ttl_ms(override_ttl), numbers | texts, sorted(old - numbers.keys() - texts.keys())
    )
    return drive(store, _changing(override_flows.write(target.key, change)))


def get_rate_limit_override(
    store: Any,
    *,
    endpoint: str,
    org_id: Any = None,
    project_id: Any = None,
    subject: str | None = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Any:
    """Return the Override of a subject on an endpoint, or None."""
    return drive(store, override_flows.read(_Target(store, endpoint, org_id, project_id, subject, key_suffix, prefix).key))


def delete_rate_limit_override(
    store: Any,
    *,
    endpoint: str,
    org_id: Any = None,
    project_id: Any = None,
    subject: str | None = None,
    limit: str | None = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Any:
    """Delete an override, or what it says of one limit. Returns whether there was something to delete."""
    key = _Target(store, endpoint, org_id, project_id, subject, key_suffix, prefix).key
    if limit is None:
        return drive(store, _changing(override_flows.run(("DEL", key))))
    fields = [field_name(name, limit) for name in NUMBERS]
    return drive(store, _changing(override_flows.run(override_flows.change(key, 0, {}, fields))))


def list_rate_limit_overrides(
    store: Any,
    *,
    endpoint: str | None = None,
    org_id: Any = None,
    page_size: int | None = None,
    cursor: str | None = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Any:
    """Return an OverridePage of every override, or those of an endpoint, of an organisation, or of both.

    With page_size it is a page of that many or a few more, whose cursor asks for the next one; an override that is there all
    the while is on one of the pages, perhaps on two. The embedded store has one page.
    """
    selection = _selection(store, endpoint, org_id, key_suffix, prefix)
    if page_size is not None and (type(page_size) is not int or page_size < 1):
        raise ConfigurationError(f"page_size {page_size!r} is not a whole number above 0")
    return drive(store, override_flows.select(selection, page_size, cursor))


def clear_rate_limit_overrides(
    store: Any,
    *,
    endpoint: str | None = None,
    org_id: Any = None,
    key_suffix: str | None = None,
    prefix: str | None = None,
) -> Any:
    """Delete every override, or those of an endpoint, of an organisation, or of both. Returns how many there were."""
    return drive(store, _changing(override_flows.clear(_selection(store, endpoint, org_id, key_suffix, prefix))))


class _Target:
    """The key of one override, and what it was made of."""

    def __init__(
        self,
        store: Any,
        endpoint: str,
        org_id: Any,
        project_id: Any,
        subject: str | None,
        key_suffix: str | None,
        prefix: str | None,
    ) -> None:
        if subject is None and org_id is not None and project_id is not None:
            subject = keys.project_subject(org_id, project_id)
        elif subject is None or org_id is not None or project_id is not None:
            given = f"org_id {org_id!r}, project_id {project_id!r} and subject {subject!r}"
            raise ConfigurationError(f"{given} do not say who is meant: give both ids, or a subject")
        self.parts = OverrideKey(_endpoint(endpoint, key_suffix), subject)
        self.key = keys.override_key(prefix_of(store, prefix), *self.parts)  # type: ignore[arg-type]

    def originals(self) -> dict[str, str]:
        """Return the fields that keep the parts that are hashed in the key."""
        pairs = zip(("endpoint", "subject"), self.parts, parse_override_key(self.key), strict=True)
        return {name: _printed(part) for name, part, in_key in pairs if in_key is None}


def _selection(store: Any, endpoint: str | None, org_id: Any, key_suffix: str | None, prefix: str | None) -> Selection:
    if endpoint is None and key_suffix is not None:
        raise ConfigurationError(f"key_suffix {key_suffix!r} needs an endpoint that it belongs to")
    where = None if endpoint is None else _endpoint(endpoint, key_suffix)
    return Selection(prefix_of(store, prefix), where, None if org_id is None else str(org_id))


def _changing(flow: Flow[Result]) -> Flow[Result]:
    """Let no refusal stand, in this process, that the change may have made wrong."""
    result = yield from flow
    refusals.forget_all()
    return result


def _endpoint(endpoint: str, key_suffix: str | None) -> str:
    for name, part in (("endpoint", endpoint), ("key_suffix", key_suffix)):
        if part is not None and (not isinstance(part, str) or not part or not part.isprintable()):
            raise ConfigurationError(f"{name} {part!r} is not a text that can be printed")
    if endpoint is None:
        raise ConfigurationError("endpoint None does not say where the override applies")
    return endpoint if key_suffix is None else keys.element_endpoint(endpoint, key_suffix)


def _printed(part: str | None) -> str:
    return str(part).encode("utf-8", "replace").decode()
