"""From a file of envoyproxy/ratelimit to a document of ratekit's own, for those who limit in the application as well.

The descriptors of one path of keys become one rule: its keys name who is counted, together, and their values are `custom`
limits. All rules of the document apply, as all descriptors of a request do. What a document cannot say is named.

    {key: type, value: marketing, descriptors: [{key: to_number, rate_limit: 5 a day}]}

    by: {type: header:type, to_number: header:to_number}
    custom: {"type:marketing:to_number:*": 5/day aligned}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ratekit.rules.descriptors.file import Descriptor, DescriptorFile
from ratekit.rules.descriptors.tree import endpoint_of, policy_of
from ratekit.rules.limits import UNLIMITED

ADDRESS = "remote_address"
# Keys whose values a document matches by, and does not count by.
_MATCHES = {"path": "path", ":path": "path", "method": "method", ":method": "method", "host": "host", ":authority": "host"}
_LABEL = re.compile(r"[^A-Za-z0-9_.-]")
_ONE_VALUE = "a document counts each key apart: the values of the wildcard do not share one counter"
_TOGETHER = "a document counts all paths of the pattern together, where the file counts each apart"
_WITHOUT_QUERY = "a document compares the path without its query, which the file compares with it"
_GREEDY = "of several wildcards, a document takes the longest that fits, and not the first in the file"


class Converted(NamedTuple):
    """The values of a document, and a sentence for each thing that it could not take over or that is to be looked at."""

    values: dict[str, Any]
    notes: tuple[str, ...]


class _Leaf(NamedTuple):
    """A limit of the file, and the descriptors that lead to it."""

    path: tuple[Descriptor, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(one.key for one in self.path)

    @property
    def place(self) -> str:
        return ", ".join(f"{one.key}={one.value}" if one.value else one.key for one in self.path)


def convert(file: DescriptorFile, headers: Mapping[str, str] | None = None) -> Converted:
    """Make a document of a file. headers names the header behind a key, where it is not the key itself."""
    converter = _Converter(file.domain, headers or {})
    converter.notes += converter.falls_through(file.descriptors, ())
    groups: dict[tuple[object, ...], list[_Leaf]] = {}
    for leaf in _leaves(file.descriptors):
        if (match := converter.match(leaf)) is not None:
            groups.setdefault((leaf.keys, *sorted(match.items())), []).append(leaf)
    rules = [converter.rule(leaves) for leaves in groups.values()]
    values = {"service": file.domain, "apply": "all", "rules": rules}
    return Converted(values, tuple(dict.fromkeys([*file.notes, *converter.notes])))


def _leaves(descriptors: Sequence[Descriptor], path: tuple[Descriptor, ...] = ()) -> Iterator[_Leaf]:
    for descriptor in descriptors:
        here = (*path, descriptor)
        if descriptor.rate_limit is not None:
            yield _Leaf(here)
        yield from _leaves(descriptor.descriptors, here)


def _fits(pattern: str, value: str) -> bool:
    return not pattern or (pattern.endswith("*") and value.startswith(pattern[:-1]))


def _key_paths(descriptor: Descriptor) -> set[tuple[str, ...]]:
    return {leaf.keys for leaf in _leaves([descriptor])}


class _Converter:
    """Makes rules, and takes note of what they cannot say."""

    def __init__(self, domain: str, headers: Mapping[str, str]) -> None:
        self._domain = domain
        self._headers = headers
        self._names: set[str] = set()
        self.notes: list[str] = []

    def falls_through(self, descriptors: Sequence[Descriptor], path: tuple[Descriptor, ...]) -> Iterator[str]:
        """Name values that have no limit in the file, as they have descriptors of their own, and have one in a document."""
        for one in descriptors:
            for other in descriptors:
                for keys in sorted(self._further(one, other)):
                    place, wider = _Leaf((*path, one)).place, _Leaf((*path, other)).place
                    yield f"{place}: in a document it has the limit of {wider} on {', '.join(keys)} too"
            yield from self.falls_through(one.descriptors, (*path, one))

    def _further(self, one: Descriptor, other: Descriptor) -> set[tuple[str, ...]]:
        """Return the keys of limits that a document adds to a value, as another descriptor fits it, too.

        What a document matches by is a rule for each value, and all rules apply. Other values are in one rule.
        """
        if other.key != one.key or other is one or not one.value or not _fits(other.value, one.value):
            return set()
        is_matched = one.key in _MATCHES and one.key not in self._headers
        if is_matched and not other.value:
            return set()  # it is left out
        return _key_paths(other) - (set() if is_matched else _key_paths(one))

    def match(self, leaf: _Leaf) -> dict[str, str] | None:
        """Return what a rule matches by; None if it cannot be said."""
        found: dict[str, str] = {}
        for one in leaf.path:
            field = None if one.key in self._headers else _MATCHES.get(one.key)
            if field is None:
                continue
            if not one.value or (field != "path" and one.value.endswith("*")):
                self._note(leaf, f"is left out: a document cannot count by each value of {one.key!r}")
                return None
            found[field] = one.value
        return found

    def rule(self, leaves: Sequence[_Leaf]) -> dict[str, Any]:
        """Make one rule of limits that have the same keys, and match alike."""
        match = self.match(leaves[0]) or {}
        counted = [one.key for one in leaves[0].path if one.key in self._headers or one.key not in _MATCHES]
        counter = self._counter(leaves[0], match)
        rule: dict[str, Any] = {"name": self._name(leaves, counter)}
        if match:
            rule["match"] = match
        rule["by"] = {_label(key): self._part(key) for key in counted} if counted else "everyone"
        custom = {self._key(leaf): self._limits(leaf) for leaf in leaves}
        general = custom.pop(":".join(f"{_label(key)}:*" for key in counted), None)
        rule |= {"limits": general} if general is not None else {}
        rule |= {"custom": custom} if custom else {}
        if sum("*" in key for key in custom) > 1:
            self._note(leaves[0], _GREEDY)
        return rule | {"counter": counter, "anonymous": "pass"}

    def _name(self, leaves: Sequence[_Leaf], counter: str) -> str:
        """Return the name of a rule: that of its limits in the file, if they have one and no other rule has it."""
        named = [leaf.path[-1].rate_limit.name for leaf in leaves if leaf.path[-1].rate_limit]
        name = named[0] if named[0] and len(set(named)) == 1 and named[0] not in self._names else counter
        self._names.add(name)
        for lost in dict.fromkeys(named):
            if lost and lost != name:
                self._note(leaves[0], f"the name {lost!r} is lost: answers name the rule, {name!r}")
        return name

    def _counter(self, leaf: _Leaf, match: Mapping[str, str]) -> str:
        keys = [f"{one.key}={one.value}" if _MATCHES.get(one.key) in match else one.key for one in leaf.path]
        return endpoint_of(self._domain, keys).replace("%3D", "=")

    def _part(self, key: str) -> str:
        if key == ADDRESS:
            return "ip"
        if key not in self._headers:
            self.notes.append(
                f"key {key!r} is taken for the header of that name: say with --header {key}=NAME if it is another"
            )
        return f"header:{self._headers.get(key, key)}"

    def _key(self, leaf: _Leaf) -> str:
        """Return the key of a limit among the custom ones."""
        parts = []
        for one in leaf.path:
            if one.key in self._headers or one.key not in _MATCHES:
                value = f"ip:{one.value}" if one.key == ADDRESS and one.value else one.value
                escaped = value.replace("%", "%25").replace(":", "%3A").replace("\\", "\\\\")
                parts.append(f"{_label(one.key)}:{_starred(escaped)}")
        return ":".join(parts)

    def _limits(self, leaf: _Leaf) -> str:
        limit, last = leaf.path[-1].rate_limit, leaf.path[-1]
        assert limit is not None  # noqa: S101 - leaves are limits
        for name in limit.replaces:
            self._note(leaf, f"replaces {name!r}, which a document cannot say: both limits apply")
        for one in leaf.path:
            is_matched = one.key in _MATCHES and one.key not in self._headers
            if is_matched and _MATCHES[one.key] == "path" and not one.value.endswith("*"):
                self._note(leaf, _WITHOUT_QUERY)
            if one.value.endswith("*") and one.shares is not is_matched:
                self._note(leaf, _TOGETHER if is_matched else _ONE_VALUE)
        if limit.unit is None:
            return UNLIMITED
        return str(policy_of("limit", limit.requests_per_unit, limit.unit, shadow=last.is_shadow).limits[0])

    def _note(self, leaf: _Leaf, sentence: str) -> None:
        self.notes.append(f"{leaf.place}: {sentence}")


def _starred(value: str) -> str:
    """Return a value as a pattern: no value is every one, and a star counts at the end only."""
    if not value:
        return "*"
    body, star = (value[:-1], "*") if value.endswith("*") else (value, "")
    return body.replace("*", "\\*") + star


def _label(key: str) -> str:
    return _LABEL.sub("_", key) if key[:1].isalpha() else "_" + _LABEL.sub("_", key)
