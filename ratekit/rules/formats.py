"""Texts of documents: JSON, YAML and TOML, read within bounds, in pieces between which other threads may run.

YAML is read as JSON is: `on` is a text and not True, dates are texts, tags of Python are refused. Aliases and merge keys are
allowed until what they stand for exceeds the bound. A key that stands twice in one object is refused in all three.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Any, Literal

from ratekit.core.errors import DocumentError, MissingExtraError

Format = Literal["json", "yaml", "toml"]
MOST_BYTES = 32 * 1024 * 1024
MOST_VALUES = 4_000_000  # of a YAML document, with every alias counted as often as it stands there
MOST_DEPTH = 64
_PIECE = 0.001  # seconds of work after which other threads may run
_SUFFIXES: dict[str, Format] = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


class Pace:
    """Gives way to other threads once in a millisecond, so that a large document stops no request."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = perf_counter()

    def __call__(self) -> None:
        """Let other threads run, if it is time."""
        if perf_counter() - self._since > _PIECE:
            sleep(0)  # gives up the interpreter's lock
            self._since = perf_counter()


@contextmanager
def paused_collector() -> Iterator[None]:
    """Let Python's cyclic collector wait while a document is read and compiled.

    The many objects of a large document make it run, and a full run stops every thread for as long as it takes to visit them
    all: 120 ms with 10 000 rules. None of them is in a cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def format_of(name: str) -> Format:
    """Return the format of a file by the ending of its name."""
    for suffix, known in _SUFFIXES.items():
        if name.lower().endswith(suffix):
            return known
    raise DocumentError([f"the file {name!r} ends in none of {', '.join(_SUFFIXES)}"])


def parse(text: str | bytes, form: Format, pace: Callable[[], None] | None = None) -> Any:
    """Return the values of a text. Raises DocumentError that names the line, or the bound that was exceeded."""
    if len(text) > MOST_BYTES:
        raise DocumentError([f"the document has {len(text)} bytes: at most {MOST_BYTES} are read"])
    pace = pace or Pace()
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        return {"json": _json, "yaml": _yaml, "toml": _toml}[form](decoded, pace)
    except UnicodeDecodeError as error:
        raise DocumentError([f"the document is not UTF-8: {error}"]) from None
    except RecursionError:
        raise DocumentError([f"the document is nested more than {MOST_DEPTH} levels deep"]) from None


def write(values: Any, form: Format) -> str:
    """Return values as a text that `parse` reads back. TOML is read only."""
    if form == "json":
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    if form == "toml":
        raise DocumentError(["documents are not written as TOML: choose JSON or YAML"])
    yaml = _yaml_library()

    class Dumper(yaml.SafeDumper):  # type: ignore[name-defined,misc]
        """Quotes every text that would be read as something else."""

    def text(dumper: Any, value: str) -> Any:
        style = None if _plain_value(value) is value and value.isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    written: str = yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return written


def _toml(text: str, pace: Callable[[], None]) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DocumentError([f"the document is not TOML: {error}"]) from None


def _json(text: str, pace: Callable[[], None]) -> Any:
    try:
        value, end = _JsonPieces(text, pace).value(0)
        if text[end:].strip(_SPACE):
            raise json.JSONDecodeError("Extra data", text, end)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DocumentError([f"the document is not JSON: {error.msg.lower()}, {where}"]) from None
    except _RepeatedKey as error:
        raise DocumentError([f"the key {error.args[0]!r} stands twice in one object"]) from None
    except ValueError as error:  # a number of thousands of digits, or NaN
        raise DocumentError([f"the document is not JSON: {error}"]) from None
    return value


class _RepeatedKey(Exception):
    """A key stands twice in one object."""


def _object(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key, value in pairs:
        if key in made:
            raise _RepeatedKey(key)
        made[key] = value
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


_SPACE = " \t\n\r"
_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
_skip_space = re.compile(rf"[{_SPACE}]*").match


class _JsonPieces:
    """Reads the outer two levels of a JSON text item by item: the decoder in C would hold the interpreter for all of it."""

    def __init__(self, text: str, pace: Callable[[], None]) -> None:
        self._text = text
        self._pace = pace

    def value(self, at: int, level: int = 0) -> tuple[Any, int]:
        """Return the value at a place, and the place after it."""
        at = self._after_space(at)
        first = self._text[at : at + 1]
        if level >= 2 or first not in "{[" or not first:
            self._pace()
            return _decoder.raw_decode(self._text, at)
        if first == "[":
            values: list[Any] = []
            at = self._items(at + 1, "]", lambda at: self._element(at, level, values))
            return values, at
        pairs: list[tuple[Any, Any]] = []
        at = self._items(at + 1, "}", lambda at: self._pair(at, level, pairs))
        return _object(pairs), at

    def _items(self, at: int, end: str, read: Callable[[int], int]) -> int:
        at = self._after_space(at)
        if self._text[at : at + 1] == end:
            return at + 1
        while True:
            at = self._after_space(read(at))
            if self._text[at : at + 1] == end:
                return at + 1
            at = self._after(",", at)

    def _element(self, at: int, level: int, values: list[Any]) -> int:
        value, at = self.value(at, level + 1)
        values.append(value)
        return at

    def _pair(self, at: int, level: int, pairs: list[tuple[Any, Any]]) -> int:
        at = self._after_space(at)
        if self._text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", self._text, at)
        key, at = _decoder.raw_decode(self._text, at)
        value, at = self.value(self._after(":", self._after_space(at)), level + 1)
        pairs.append((key, value))
        return at

    def _after_space(self, at: int) -> int:
        match = _skip_space(self._text, at)
        return at if match is None else match.end()

    def _after(self, mark: str, at: int) -> int:
        if self._text[at : at + 1] != mark:
            raise json.JSONDecodeError(f"Expecting '{mark}' delimiter", self._text, at)
        return at + 1


def _yaml(text: str, pace: Callable[[], None]) -> Any:
    yaml = _yaml_library()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        events: Iterator[Any] = yaml.parse(text, Loader=loader)
        return _YamlValues(events, pace).document()
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split()).replace('in "<unicode string>", ', "")
        raise DocumentError([f"the document is not YAML: {reason}"]) from None


def _yaml_library() -> Any:
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("a document in YAML", "rules") from None
    return yaml


_YAML_WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_YAML_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}")
_YAML_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_YAML_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_MERGE = object()  # the key <<


class _YamlValues:
    """Makes values of the events of a YAML parser, by the core schema of YAML 1.2."""

    def __init__(self, events: Iterator[Any], pace: Callable[[], None]) -> None:
        self._events = events
        self._pace = pace
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._count = 0

    def document(self) -> Any:
        """Return the only document."""
        value = None
        for event in self._events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                if self._count:
                    raise DocumentError([f"the text has a second YAML document{_line(event)}: one is read"])
                value = self._value(next(self._events), 0)
        return value

    def _value(self, event: Any, depth: int) -> Any:
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event)
        if depth > MOST_DEPTH:
            raise DocumentError([f"the document is nested more than {MOST_DEPTH} levels deep{_line(event)}"])
        if event.tag not in (None, "!", *_YAML_TAGS):
            raise DocumentError([f"the tag {event.tag!r}{_line(event)} is not allowed in a document of rules"])
        before = self._count
        self._counted(1)
        self._pace()
        value = self._made(kind, event, depth)
        if event.anchor:
            self._anchors[event.anchor] = value, self._count - before
        return value

    def _made(self, kind: str, event: Any, depth: int) -> Any:
        if kind == "ScalarEvent":
            return _scalar(event)
        if kind == "SequenceStartEvent":
            return [self._value(item, depth + 1) for item in self._until("SequenceEndEvent")]
        pairs: list[tuple[Any, Any]] = []
        for item in self._until("MappingEndEvent"):
            key = _MERGE if _is_merge(item) else self._value(item, depth + 1)
            pairs.append((key, self._value(next(self._events), depth + 1)))
            if isinstance(key, list | dict):
                raise DocumentError([f"the key{_line(item)} is not a text"])
        return _merged(pairs, event)

    def _until(self, end: str) -> Iterator[Any]:
        for event in self._events:
            if type(event).__name__ == end:
                return
            yield event

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise DocumentError([f"the alias *{event.anchor}{_line(event)} stands for nothing, or for itself"])
        value, size = self._anchors[event.anchor]
        self._counted(size)
        return value

    def _counted(self, size: int) -> None:
        self._count += size
        if self._count > MOST_VALUES:
            raise DocumentError([f"the document has more than {MOST_VALUES} values, with its aliases written out"])


def _is_merge(event: Any) -> bool:
    return getattr(event, "value", None) == "<<" and event.implicit[0] and event.anchor is None


def _merged(pairs: list[tuple[Any, Any]], event: Any) -> dict[Any, Any]:
    try:
        own = _object((key, value) for key, value in pairs if key is not _MERGE)
    except _RepeatedKey as error:
        raise DocumentError([f"the key {error.args[0]!r} stands twice in one mapping{_line(event)}"]) from None
    merged: dict[Any, Any] = {}
    for value in (value for key, value in pairs if key is _MERGE):
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise DocumentError([f"what << stands for{_line(event)} is not a mapping"])
            merged = part | merged
    return merged | own


def _scalar(event: Any) -> Any:
    text: str = event.value
    is_plain = event.implicit[0] and event.tag is None
    if event.tag is not None and event.tag not in ("!", "tag:yaml.org,2002:str"):
        is_plain = True
    return _plain_value(text) if is_plain else text


def _plain_value(text: str) -> Any:
    """Return the value of a text without quotes; the same text if it is one."""
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    if _YAML_INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _YAML_FLOAT.fullmatch(text) else text


def _line(event: Any) -> str:
    return f" in line {event.start_mark.line + 1}"
