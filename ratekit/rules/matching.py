"""The index: which rules of many match a request, at the cost of a few dictionary lookups.

- Paths: a path without parameters is looked up; patterns with parameters in the same segments are looked up together; other
  patterns are found by what they begin and end with. All matching is linear in the path.
- The rest (host, method, endpoint, headers): rules that ask for the same things are a shape. Each shape is one lookup of all
  that it asks for, so the number of rules makes no difference, only the number of shapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple

from ratekit.rules.affixes import AffixIndex
from ratekit.rules.document import Match
from ratekit.web.exemptions import normalized_path
from ratekit.web.patterns import Pattern

_MOST_HOSTS = 8  # of one request
_PRESENT = "*"  # the value of a header that only has to be there
_PARAMETERS = re.compile(r"\{[^{}]*\}|<[^<>]*>")
_SEVERAL = re.compile(r"\{\w+:path\}|<path:\w+>")


class Facts(NamedTuple):
    """What rules are matched by. None: the front does not know it, or the request does not have it."""

    method: str | None = None
    path: str | None = None
    endpoints: tuple[str, ...] = ()  # the names of the endpoint: a route, a URL's name, a service
    host: str | None = None  # several are separated by commas
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


_Buckets = dict[tuple[object, ...], Sequence[int]]  # the positions of rules, by the values of all that their shape asks for


class Index:
    """Finds the positions of the rules that match, in the order of the document."""

    def __init__(self, candidates: Sequence[Candidate], pace: Callable[[], None] = lambda: None) -> None:
        self.header_names = tuple(sorted({name.lower() for one in candidates for name in one.match.headers}))
        self.by_host = any(one.match.host for one in candidates)
        self._by_path = any(one.match.path is not None for one in candidates)
        self._by_endpoint = any(one.match.endpoint for one in candidates)
        self._finals = [one.is_final for one in candidates]
        self._shapes: dict[_Shape, _Buckets] = {}
        self._paths = _Paths()
        for position, one in enumerate(candidates):
            pace()
            self._add(position, one.match)
        for buckets in self._shapes.values():  # Python's collector does not visit tuples of numbers again and again
            for key, bucket in buckets.items():
                buckets[key] = tuple(bucket)
            pace()

    def find(self, facts: Facts) -> tuple[int, ...]:
        """Return the positions of the rules that match, up to the first that no later one is asked after."""
        path = None if facts.path is None else normalized_path(facts.path)
        paths = self._paths.tokens(path) if self._by_path and path is not None else ()
        hosts = _host_tokens(facts.host) if self.by_host else ()
        methods = _method_tokens(facts.method)
        endpoints = (*facts.endpoints, *((path,) if path else ())) if self._by_endpoint else ()
        found: list[int] = []
        for shape, buckets in self._shapes.items():
            asked: list[Sequence[object]] = [
                values for is_asked, values in zip(shape, (paths, hosts, methods, endpoints), strict=False) if is_asked
            ]
            asked += [_header_tokens(facts.headers[at], by_value) for at, by_value in shape.headers]
            for key in product(*asked):
                if (bucket := buckets.get(key)) is not None:
                    found += bucket
        return self._up_to_final(found)

    def _up_to_final(self, found: list[int]) -> tuple[int, ...]:
        if len(found) > 1:
            found = sorted(set(found))
        for at, position in enumerate(found):
            if self._finals[position]:
                return tuple(found[: at + 1])
        return tuple(found)

    def _add(self, position: int, match: Match) -> None:
        """Add a rule to the buckets of all values that it asks for. A rule after a final one of the same bucket is none."""
        wanted = sorted((self.header_names.index(name.lower()), values) for name, values in match.headers.items())
        paths = () if match.path is None else (self._paths.add(match.path),)
        hosts = tuple(host.lower().removesuffix(".") for host in match.host)
        values = [of for of in (paths, hosts, match.method, match.endpoint) if of]
        for headers in product(*(_header_choices(at, texts) for at, texts in wanted)):
            asked = tuple(one for one, _ in headers)
            shape = _Shape(bool(paths), bool(hosts), bool(match.method), bool(match.endpoint), asked)
            buckets = self._shapes.setdefault(shape, {})
            for key in product(*values, *([text] for _, text in headers)):
                bucket = buckets.setdefault(key, [])
                if isinstance(bucket, list) and not (bucket and (self._finals[bucket[-1]] or bucket[-1] == position)):
                    bucket.append(position)


def _header_choices(at: int, values: Iterable[str]) -> list[tuple[tuple[int, bool], str]]:
    return [((at, value != _PRESENT), value) for value in values]


def _header_tokens(value: str | None, by_value: bool) -> Sequence[str]:
    if value is None:
        return ()
    return (value if by_value else _PRESENT,)


def _host_tokens(hosts: str | None) -> list[str]:
    """Return a host, and the wildcards that it fits: *.b.example.com, *.example.com, *.com.

    Of several hosts, which some servers let through, each counts: which one the application takes is not known.
    """
    return [token for host in (hosts or "").split(",", _MOST_HOSTS)[:_MOST_HOSTS] for token in _tokens_of_host(host)]


def _tokens_of_host(host: str) -> list[str]:
    host = host.strip(" \t").lower()
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) and not host.endswith("]") else host
    name = name.removesuffix(".")  # it says that the name is complete, and names the same host
    labels = name.split(".")[:64]
    return [name, *(".".join(["*", *labels[at:]]) for at in range(1, len(labels)))] if name else []


def _method_tokens(method: str | None) -> Sequence[str]:
    """Return a method in upper case, as applications read it. HEAD is GET without the body."""
    upper = (method or "").upper()
    return ("HEAD", "GET") if upper == "HEAD" else (upper,)


class _Paths:
    """Patterns of paths. A token stands for all patterns that differ in the names of their parameters only."""

    def __init__(self) -> None:
        self._exact: set[str] = set()
        self._segments = _SegmentIndex()
        self._others: AffixIndex[tuple[Pattern, int]] = AffixIndex()
        self._has_others = False
        self._known: dict[str, int] = {}

    def add(self, text: str) -> str | int:
        """Add a pattern, and return its token: a number, or the path itself if it is one."""
        if not _PARAMETERS.search(text) and not text.endswith("*"):
            self._exact.add(text)
            return text
        shape = _without_names(text)
        if shape not in self._known:
            self._known[shape] = len(self._known)
            self._index(text, shape, self._known[shape])
        return self._known[shape]

    def _index(self, text: str, shape: str, token: int) -> None:
        body, is_open = (shape[:-2], True) if shape.endswith("/*") else (shape, False)
        segments = body.split("/")[1:]
        if all(segment == "{}" or not re.search(r"[{}*]", segment) for segment in segments):
            self._segments.add(segments, token, is_open=is_open)
            return
        self._has_others = True
        literals = re.split(r"\{\}|\{:path\}|\*", shape)
        self._others.add(literals[0], literals[-1] if not shape.endswith("*") else "", (Pattern(text), token))

    def tokens(self, path: str) -> list[str | int]:
        """Return the tokens of the patterns that a normalized path fits."""
        found: list[str | int] = self._segments.find([] if path == "/" else path.split("/")[1:])
        if path in self._exact:
            found.append(path)
        if self._has_others:
            found += [token for pattern, token in self._others.find(path) if pattern.matches(path)]
        return found


def _without_names(text: str) -> str:
    """Return a pattern without the names of its parameters."""
    text = _SEVERAL.sub("{:path}", text)
    text = re.sub(r"/\{:path\}$", "/*", text)
    return _PARAMETERS.sub(lambda match: match[0] if match[0] == "{:path}" else "{}", text)


class _Mask(NamedTuple):
    """Where the texts of some patterns are among their segments: the others are parameters."""

    length: int
    positions: tuple[int, ...]
    is_open: bool  # anything may follow the last segment


class _SegmentIndex:
    """Patterns of whole segments. Those with parameters in the same places are looked up together, by their texts."""

    def __init__(self) -> None:
        self._masks: dict[_Mask, dict[str, int]] = {}  # by their texts, joined: one object is found faster than several

    def add(self, segments: Sequence[str], token: int, *, is_open: bool) -> None:
        """Add a pattern."""
        positions = tuple(at for at, segment in enumerate(segments) if segment != "{}")
        tokens = self._masks.setdefault(_Mask(len(segments), positions, is_open), {})
        tokens["/".join(segments[at] for at in positions)] = token

    def find(self, segments: Sequence[str]) -> list[str | int]:
        """Return the tokens of the patterns that fit."""
        size = len(segments)
        found: list[str | int] = []
        for (length, positions, is_open), tokens in self._masks.items():
            if length == size or (is_open and length < size):
                token = tokens.get("/".join([segments[at] for at in positions]))
                if token is not None:
                    found.append(token)
        return found
