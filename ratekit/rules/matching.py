"""The index: which rules of many match a request, at the cost of a few dictionary lookups.

- Paths: a path without parameters is looked up; patterns of whole segments are in a tree by segment; other patterns are
  found by what they begin and end with. All matching is linear in the path.
- The rest (host, method, endpoint, headers): rules that ask for the same things are a shape. Each shape is one lookup of all
  that it asks for, so the number of rules makes no difference, only the number of shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from ratekit.rules.affixes import AffixIndex
from ratekit.rules.document import Match
from ratekit.web.exemptions import plain_path
from ratekit.web.patterns import Pattern

_PRESENT = "*"  # the value of a header that only has to be there
_PARAMETERS = re.compile(r"\{[^{}]*\}|<[^<>]*>")
_SEVERAL = re.compile(r"\{\w+:path\}|<path:\w+>")


class Facts(NamedTuple):
    """What rules are matched by. None: the front does not know it, or the request does not have it."""

    method: str | None = None
    path: str | None = None
    endpoint: str | None = None
    host: str | None = None
    headers: tuple[str | None, ...] = ()  # the values of Index.header_names, in their order


class Candidate(NamedTuple):
    """A rule for the index: its match, and whether no later rule is asked once it matches."""

    match: Match
    is_final: bool


class _Shape(NamedTuple):
    """What some rules ask for. A header asked for is its position in Index.header_names, and whether its value counts."""

    by_path: bool
    by_host: bool
    by_method: bool
    by_endpoint: bool
    headers: tuple[tuple[int, bool], ...]


_Key = tuple[object, ...]


class Index:
    """Finds the positions of the rules that match, in the order of the document."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.header_names = tuple(sorted({name.lower() for one in candidates for name in one.match.headers}))
        self.by_host = any(one.match.host for one in candidates)
        self._finals = [one.is_final for one in candidates]
        self._shapes: dict[_Shape, None] = {}
        self._buckets: dict[tuple[_Shape, _Key], list[int]] = {}
        self._paths = _Paths()
        for position, one in enumerate(candidates):
            self._add(position, one.match, one.is_final)

    def _add(self, position: int, match: Match, is_final: bool) -> None:
        wanted = sorted((self.header_names.index(name.lower()), values) for name, values in match.headers.items())
        token = self._paths.add(match.path) if match.path is not None else None
        hosts: list[str | None] = [host.lower() for host in match.host] or [None]
        choices = [_header_choices(at, values) for at, values in wanted]
        for headers in product(*choices):
            shape = _Shape(
                match.path is not None, bool(match.host), bool(match.method), bool(match.endpoint),
                tuple(asked for asked, _ in headers),
            )  # fmt: skip
            self._shapes[shape] = None
            values = tuple(value for _, value in headers)
            for key in product([token], hosts, match.method or [None], match.endpoint or [None], [values]):
                bucket = self._buckets.setdefault((shape, key), [])
                if not bucket or not (self._finals[bucket[-1]] or bucket[-1] == position):
                    bucket.append(position)

    def find(self, facts: Facts) -> tuple[int, ...]:
        """Return the positions of the rules that match, up to the first that no later one is asked after."""
        positions = sorted({position for shape in self._shapes for position in self._in_shape(shape, facts)})
        last = next((at for at, position in enumerate(positions) if self._finals[position]), len(positions))
        return tuple(positions[: last + 1])

    def _in_shape(self, shape: _Shape, facts: Facts) -> Iterator[int]:
        headers = [facts.headers[at] if by_value else _presence(facts.headers[at]) for at, by_value in shape.headers]
        if None in headers:
            return
        paths = self._paths.tokens(facts.path) if shape.by_path else [None]
        hosts = _host_tokens(facts.host) if shape.by_host else [None]
        methods = _method_tokens(facts.method) if shape.by_method else [None]
        endpoints = _endpoint_tokens(facts) if shape.by_endpoint else [None]
        for key in product(paths, hosts, methods, endpoints, [tuple(headers)]):
            yield from self._buckets.get((shape, key), ())


def _header_choices(at: int, values: Iterable[str]) -> list[tuple[tuple[int, bool], str]]:
    return [((at, value != _PRESENT), value) for value in values]


def _presence(value: str | None) -> str | None:
    return None if value is None else _PRESENT


def _host_tokens(host: str | None) -> list[str]:
    """Return a host, and the wildcards that it fits: *.b.example.com, *.example.com, *.com."""
    if not host:
        return []
    name = host.lower().rpartition(":")[0] if re.search(r":\d*$", host) and not host.endswith("]") else host.lower()
    labels = name.split(".")[:64]
    return [name, *(".".join(["*", *labels[at:]]) for at in range(1, len(labels)))]


def _method_tokens(method: str | None) -> list[str]:
    """Return a method in upper case, as applications read it. HEAD is GET without the body."""
    upper = (method or "").upper()
    return ["HEAD", "GET"] if upper == "HEAD" else [upper]


def _endpoint_tokens(facts: Facts) -> list[str]:
    """Return the endpoint, and the path, which is the endpoint where the front knows no other."""
    path = None if facts.path is None else plain_path(facts.path)
    return list(dict.fromkeys(text for text in (facts.endpoint, path) if text))


class _Paths:
    """Patterns of paths. A token stands for all patterns that differ in the names of their parameters only."""

    def __init__(self) -> None:
        self._exact: set[str] = set()
        self._tree = _Node()
        self._others: AffixIndex[tuple[Pattern, str]] = AffixIndex()
        self._known: set[str] = set()

    def add(self, text: str) -> str:
        """Add a pattern, and return its token."""
        pattern = Pattern(text)
        if pattern.is_one_path:
            self._exact.add(text)
            return text
        token = _token(text)
        if token not in self._known:
            self._known.add(token)
            self._index(pattern, token)
        return token

    def _index(self, pattern: Pattern, token: str) -> None:
        body, is_open = (token[:-2], True) if token.endswith("/*") else (token, False)
        segments = body.split("/")[1:]
        if all(segment == "{}" or not re.search(r"[{}*]", segment) for segment in segments):
            self._tree.add(segments, token, is_open=is_open)
            return
        literals = re.split(r"\{\}|\{:path\}|\*", token)
        self._others.add(literals[0], literals[-1] if not token.endswith("*") else "", (pattern, token))

    def tokens(self, path: str | None) -> list[str]:
        """Return the tokens of the patterns that a path fits."""
        if path is None:
            return []
        path = plain_path(path)
        found = [path] if path in self._exact else []
        found += self._tree.find([] if path == "/" else path.split("/")[1:])
        return found + [token for pattern, token in self._others.find(path) if pattern.matches(path)]


def _token(text: str) -> str:
    text = _SEVERAL.sub("{:path}", text)
    text = re.sub(r"/\{:path\}$", "/*", text)
    return _PARAMETERS.sub(lambda match: match[0] if match[0] == "{:path}" else "{}", text)


class _Node:
    """A place in the tree of patterns, after some segments."""

    __slots__ = ("by_text", "ends", "one", "opens")

    def __init__(self) -> None:
        self.by_text: dict[str, _Node] = {}
        self.one: _Node | None = None  # after a parameter of one segment
        self.ends: list[str] = []  # the tokens of the patterns that end here
        self.opens: list[str] = []  # and of those that anything may follow

    def add(self, segments: Sequence[str], token: str, *, is_open: bool) -> None:
        """Add a pattern."""
        node = self
        for segment in segments:
            if segment == "{}":
                node.one = node.one or _Node()
                node = node.one
            else:
                node = node.by_text.setdefault(segment, _Node())
        (node.opens if is_open else node.ends).append(token)

    def find(self, segments: Sequence[str]) -> list[str]:
        """Return the tokens of the patterns that fit. A place of the tree is visited once."""
        found, places = [], [self]
        for segment in segments:
            found += [token for node in places for token in node.opens]
            nodes = [(node.by_text.get(segment), node.one if segment else None) for node in places]
            places = [node for pair in nodes for node in pair if node is not None]
            if not places:
                return found
        return found + [token for node in places for token in (*node.ends, *node.opens)]
