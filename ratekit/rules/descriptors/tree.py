"""The tree that finds the limit of a descriptor, level by level, at the cost of a few dictionary lookups a level.

At each level a key with its value comes first, then the first wildcard in the file that fits, then the key alone. There is
no way back from a branch that was taken. A limit is found at the last entry only: this is how envoyproxy/ratelimit matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ratekit.core.errors import ConfigurationError
from ratekit.core.keys import whole_endpoint_subject
from ratekit.core.limits import Limit, Policy
from ratekit.rules.descriptors.documents import DocumentDomain
from ratekit.rules.descriptors.file import Descriptor, DescriptorFile, Unit

Entry = tuple[str, str]
_ESCAPED = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D", ":": "%3A"})
_ESCAPED_VALUE = str.maketrans({"%": "%25", ",": "%2C"})


class Rule:
    """A limit of the file, compiled: under which endpoint it counts, and which values of a descriptor make the subject."""

    __slots__ = ("_open", "declared", "endpoint", "name", "policy", "replaces", "unit")

    def __init__(self, endpoint: str, descriptor: Descriptor, is_open: Sequence[bool]) -> None:
        limit = descriptor.rate_limit
        assert limit is not None  # noqa: S101 - rules are made of descriptors with a limit
        self.endpoint = endpoint
        self.declared = limit.name  # what other limits may replace it by
        self.name = limit.name or endpoint
        self.replaces = limit.replaces
        self.unit = limit.unit
        self.policy: Policy | None = None  # unlimited
        if limit.unit is not None:
            self.policy = policy_of(self.name, limit.requests_per_unit, limit.unit, shadow=descriptor.is_shadow)
        self._open = tuple(index for index, flag in enumerate(is_open) if flag)

    def subject(self, entries: Sequence[Entry]) -> str:
        """Return who is limited: the values that the file leaves open, or all requests together if it leaves none."""
        if not self._open:
            return whole_endpoint_subject(self.endpoint)
        return subject_of([entries[index] for index in self._open])


def policy_of(name: str, requests: int, unit: Unit, *, shadow: bool = False) -> Policy:
    """Return the policy of so many requests in a unit. Windows start on the clock, as those of envoyproxy/ratelimit."""
    return Policy(name, Limit(requests, unit.seconds, aligned=True, shadow=shadow, _blocking=requests == 0))


def subject_of(entries: Iterable[Entry]) -> str:
    """Return the subject of entries: `user:42`, or `user:42,path:/x`."""
    return ",".join([f"{key.translate(_ESCAPED_VALUE)}:{value.translate(_ESCAPED_VALUE)}" for key, value in entries])


def endpoint_of(domain: str, keys: Iterable[str]) -> str:
    """Return the endpoint of a path of keys in a domain: `shop:user,path`."""
    return f"{domain.translate(_ESCAPED)}:{','.join(key.translate(_ESCAPED) for key in keys)}"


class _Wildcards:
    """The wildcards of one key, found by their beginnings; of several that fit, the first in the file."""

    __slots__ = ("_by_prefix", "_lengths")

    def __init__(self) -> None:
        self._by_prefix: dict[str, tuple[int, _Node]] = {}
        self._lengths: list[int] = []

    def add(self, prefix: str, node: _Node) -> None:
        self._by_prefix[prefix] = (len(self._by_prefix), node)
        self._lengths = sorted({*self._lengths, len(prefix)})

    def find(self, value: str) -> _Node | None:
        found = [self._by_prefix.get(value[:length]) for length in self._lengths if length <= len(value)]
        fitting = [item for item in found if item is not None]
        return min(fitting, key=lambda item: item[0])[1] if fitting else None


class _Node:
    """A place in the tree, after some entries."""

    __slots__ = ("by_key", "by_value", "rule", "wildcards")

    def __init__(self) -> None:
        self.by_value: dict[Entry, _Node] = {}
        self.wildcards: dict[str, _Wildcards] = {}
        self.by_key: dict[str, _Node] = {}
        self.rule: Rule | None = None

    def next(self, entry: Entry) -> _Node | None:
        node = self.by_value.get(entry)
        if node is None and entry[0] in self.wildcards:
            node = self.wildcards[entry[0]].find(entry[1])
        return self.by_key.get(entry[0]) if node is None else node

    def add(self, descriptor: Descriptor) -> _Node:
        node = _Node()
        if descriptor.value.endswith("*"):
            self.wildcards.setdefault(descriptor.key, _Wildcards()).add(descriptor.value[:-1], node)
        if descriptor.value:  # a request may also have the very text of a wildcard as its value
            self.by_value[descriptor.key, descriptor.value] = node
        else:
            self.by_key[descriptor.key] = node
        return node


class Domain:
    """The limits of one domain."""

    __slots__ = ("_root", "name", "rules")

    def __init__(self, file: DescriptorFile) -> None:
        self.name = file.domain
        self.rules: list[Rule] = []
        self._root = _Node()
        self._grow(self._root, file.descriptors, (), ())

    def find(self, entries: Sequence[Entry]) -> Rule | None:
        """Return the rule of a descriptor; None if it has none."""
        node: _Node | None = self._root
        for entry in entries:
            node = node.next(entry) if node is not None else None
        return node.rule if node is not None else None

    def _grow(self, node: _Node, inner: Iterable[Descriptor], path: tuple[str, ...], is_open: tuple[bool, ...]) -> None:
        for descriptor in inner:
            key, value = descriptor.key.translate(_ESCAPED), descriptor.value.translate(_ESCAPED)
            here = (*path, f"{key}={value}" if value else key)
            opens = (*is_open, not value or (value.endswith("*") and not descriptor.shares))
            child = node.add(descriptor)
            if descriptor.rate_limit is not None:
                child.rule = Rule(f"{self.name.translate(_ESCAPED)}:{','.join(here)}", descriptor, opens)
                self.rules.append(child.rule)
            self._grow(child, descriptor.descriptors, here, opens)


class Domains(NamedTuple):
    """The limits of several files, by the names of their domains."""

    by_name: dict[str, Domain | DocumentDomain]

    @classmethod
    def of(cls, files: Iterable[DescriptorFile | DocumentDomain]) -> Domains:
        """Compile files. Raises ConfigurationError if a domain stands in two of them."""
        domains: dict[str, Domain | DocumentDomain] = {}
        for file in files:
            domain = Domain(file) if isinstance(file, DescriptorFile) else file
            if domain.name in domains:
                raise ConfigurationError(f"domain {domain.name!r} stands in two files: put its descriptors into one")
            domains[domain.name] = domain
        return cls(domains)
