"""How overrides are read and written: flows of commands, for a store of either colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratekit.errors import ConfigurationError
from ratekit.keys import OverrideKey, override_pattern, parse_override_key
from ratekit.outage import StoreOutage
from ratekit.override_fields import Override, read_override
from ratekit.stores import script
from ratekit.stores.commands import Batch, Command, Flow, answered, as_texts, scan

_PAGE = 1000  # keys that one SCAN looks at
_LEAST = 100  # the same for small pages: few of the keys of a store are those of overrides
_Names = list[tuple[str, OverrideKey]]


@dataclass(frozen=True, slots=True)
class OverridePage(Sequence[Override]):
    """Some overrides, in no order. `cursor` asks for the next page; None at the end."""

    overrides: tuple[Override, ...]
    cursor: str | None = None

    def __getitem__(self, index: Any) -> Any:
        return self.overrides[index]

    def __len__(self) -> int:
        return len(self.overrides)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which overrides are meant: all under a prefix, those of an endpoint, of an organisation, or of both."""

    prefix: str
    endpoint: str | None
    org_id: str | None

    @property
    def pattern(self) -> str:
        """What their keys match."""
        return override_pattern(self.prefix, self.endpoint)

    def may_have(self, key: OverrideKey) -> bool:
        """Whether an override can be one of these, as far as its key tells: what is hashed has to be read."""
        return key.subject is None or self.org_id is None or (key.project or ("",))[0] == self.org_id

    def has(self, override: Override) -> bool:
        """Whether an override is one of these."""
        return self.org_id is None or override.org_id == self.org_id


def run(command: Command) -> Flow[bool]:
    """Run a command that answers how many it has changed; returns whether it was any."""
    (count,) = yield Batch((command,))
    return int(count) > 0


def write(key: str, command: Command) -> Flow[Override | None]:
    """Run a command that writes an override, and return what is there then."""
    yield from run(command)
    return (yield from read(key))


def read(key: str) -> Flow[Override | None]:
    """Return the override under a key, or None."""
    found = yield from _read([(key, parse_override_key(key))])
    return found[0][1] if found else None


def select(selection: Selection, page_size: int | None, cursor: str | None) -> Flow[OverridePage]:
    """Return the overrides that are meant: all, or from the cursor on until there are enough for a page."""
    found: dict[str, Override] = {}
    while True:
        names, cursor = yield from _scan(selection, _PAGE if page_size is None else max(page_size, _LEAST), cursor)
        pairs = yield from _read(names)
        found |= {key: override for key, override in pairs if selection.has(override)}
        if cursor is None or (page_size is not None and len(found) >= page_size):
            return OverridePage(tuple(found.values()), cursor)


def clear(selection: Selection) -> Flow[int]:
    """Delete the overrides that are meant, and return how many there were."""
    cleared, cursor = 0, None
    while True:
        names, cursor = yield from _scan(selection, _PAGE, cursor)
        if selection.org_id is not None:
            pairs = yield from _read(names)
            names = [(key, parse_override_key(key)) for key, override in pairs if selection.has(override)]
        replies = (yield Batch(tuple(("DEL", key) for key, _ in names))) if names else []
        cleared += sum(int(answered(reply)) for reply in replies)
        if cursor is None:
            return cleared


def _scan(selection: Selection, size: int, cursor: str | None) -> Flow[tuple[_Names, str | None]]:
    found, cursor = yield from scan(selection.pattern, size, cursor)
    return [(key, parts) for key in found if (parts := _parsed(key)) and selection.may_have(parts)], cursor


def _read(names: _Names) -> Flow[list[tuple[str, Override]]]:
    """Read overrides; those that are gone are left out, and what is no hash is unreadable as a whole."""
    found = []
    commands = [command for key, _ in names for command in (("HGETALL", key), ("PTTL", key))]
    replies = (yield Batch(tuple(commands))) if commands else []
    for (key, parts), fields, ttl in zip(names, replies[::2], replies[1::2], strict=True):
        expires_in = ttl / 1000 if isinstance(ttl, int) and ttl >= 0 else None
        if isinstance(fields, StoreOutage) and fields.outage.reason == "wrongtype":
            found.append((key, Override(*parts, expires_in=expires_in, unreadable=("hash",))))
        elif answered(fields):
            found.append((key, read_override(parts, as_texts(fields), expires_in)))
    return found


def change(key: str, ttl: int, fields: Mapping[str, str], removed: Iterable[str]) -> Command:
    """Return the command that sets and removes fields of an override at once."""
    pairs = [item for pair in fields.items() for item in pair]
    return ("EVAL", script.read("override"), 1, key, ttl, 2 + len(pairs), *pairs, *removed)


def _parsed(key: str) -> OverrideKey | None:
    try:
        return parse_override_key(key)
    except ConfigurationError:
        return None
