"""Flows of commands that read and write overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from ratekit.admin.commands import Batch, Flow, answered, as_texts, scan
from ratekit.admin.override_hash import Override, parse_override
from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import OverrideKey, override_pattern, parse_override_key
from ratekit.core.outages import StoreOutage
from ratekit.stores import script
from ratekit.stores.contract import Command

_PAGE = 1000  # keys that one SCAN visits
_LEAST = 100  # keys that one SCAN visits for a small page: few keys of a store are those of overrides
_Names = list[tuple[str, OverrideKey]]


@dataclass(frozen=True, slots=True)
class OverridePage(Sequence[Override]):
    """A page of overrides, in no order. `cursor` asks for the next page; it is None on the last one."""

    overrides: tuple[Override, ...]
    cursor: str | None = None

    @overload
    def __getitem__(self, index: int) -> Override: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Override, ...]: ...

    def __getitem__(self, index: int | slice) -> Override | tuple[Override, ...]:
        return self.overrides[index]

    def __len__(self) -> int:
        return len(self.overrides)


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of overrides: all under a prefix, or those of an endpoint, of an organisation, or of both."""

    prefix: str
    endpoint: str | None
    org_id: str | None

    @property
    def pattern(self) -> str:
        """The pattern for SCAN that matches their keys."""
        return override_pattern(self.prefix, self.endpoint)

    def may_have(self, key: OverrideKey) -> bool:
        """Whether the override under a key may be one of them. If the key is hashed, the override has to be read."""
        return key.subject is None or self.org_id is None or (key.project or ("",))[0] == self.org_id

    def has(self, override: Override) -> bool:
        """Whether an override is one of them."""
        return self.org_id is None or override.org_id == self.org_id


def run_change(command: Command) -> Flow[bool]:
    """Run a command that replies with a number of changes. Returns whether there was any."""
    (count,) = yield Batch((command,))
    return int(count) > 0


def write(key: str, command: Command) -> Flow[Override]:
    """Run a command that writes an override, and return the override as stored."""
    yield from run_change(command)
    stored = yield from read_one(key)
    return Override(*parse_override_key(key)) if stored is None else stored  # deleted by somebody else meanwhile


def replace(key: str, ttl: int, fields: Mapping[str, str]) -> Flow[Override]:
    """Write an override with these fields and no others, and return it as stored."""
    (reply,) = yield Batch((("HGETALL", key),))
    return (yield from write(key, change(key, ttl, fields, sorted(as_texts(reply).keys() - fields.keys()))))


def read_one(key: str) -> Flow[Override | None]:
    """Return the override under a key, or None."""
    found = yield from _read_all([(key, parse_override_key(key))])
    return found[0][1] if found else None


def select(selection: Selection, page_size: int | None, cursor: str | None) -> Flow[OverridePage]:
    """Return the selected overrides: all of them, or a page from the cursor on."""
    found: dict[str, Override] = {}
    while True:
        names, cursor = yield from _scan(selection, _PAGE if page_size is None else max(page_size, _LEAST), cursor)
        pairs = yield from _read_all(names)
        found |= {key: override for key, override in pairs if selection.has(override)}
        if cursor is None or (page_size is not None and len(found) >= page_size):
            return OverridePage(tuple(found.values()), cursor)


def clear(selection: Selection) -> Flow[int]:
    """Delete the selected overrides, and return how many there were."""
    cleared, cursor = 0, None
    while True:
        names, cursor = yield from _scan(selection, _PAGE, cursor)
        if selection.org_id is not None:
            pairs = yield from _read_all(names)
            names = [(key, parse_override_key(key)) for key, override in pairs if selection.has(override)]
        replies = (yield Batch(tuple(("DEL", key) for key, _ in names))) if names else []
        cleared += sum(int(answered(reply)) for reply in replies)
        if cursor is None:
            return cleared


def _scan(selection: Selection, size: int, cursor: str | None) -> Flow[tuple[_Names, str | None]]:
    found, cursor = yield from scan(selection.pattern, size, cursor)
    return [(key, parts) for key in found if (parts := _parsed(key)) and selection.may_have(parts)], cursor


def _read_all(names: _Names) -> Flow[list[tuple[str, Override]]]:
    """Read several overrides. A key that is gone is left out; one that is not a hash is unreadable as a whole."""
    found = []
    commands = [command for key, _ in names for command in (("HGETALL", key), ("PTTL", key))]
    replies = (yield Batch(tuple(commands))) if commands else []
    for (key, parts), fields, ttl in zip(names, replies[::2], replies[1::2], strict=True):
        expires_in = ttl / 1000 if isinstance(ttl, int) and ttl >= 0 else None
        if isinstance(fields, StoreOutage) and fields.outage.reason == "wrongtype":
            found.append((key, Override(*parts, expires_in=expires_in, unreadable=("hash",))))
        elif answered(fields):
            found.append((key, parse_override(parts, as_texts(fields), expires_in)))
    return found


def change(key: str, ttl: int, fields: Mapping[str, str], removed: Iterable[str]) -> Command:
    """Return the command that sets and removes fields of an override in one atomic step."""
    pairs = [item for pair in fields.items() for item in pair]
    return ("EVAL", script.read("write_override"), 1, key, ttl, 2 + len(pairs), *pairs, *removed)


def _parsed(key: str) -> OverrideKey | None:
    try:
        return parse_override_key(key)
    except ConfigurationError:
        return None
