"""Patterns of paths, matched in time linear in the path, whatever the pattern.

A pattern is made of texts, of parameters of one segment ({id}) and of parameters of several ({name:path}). A regular
expression tries every way to share a path out among them: seconds for a path of some kilobytes. Here nothing is tried twice:

- Texts and parameters of one segment between two {name:path} are a run. A run is found where it ends earliest, as that
  leaves most to the others; the last one is found from the right.
- Within a run, each text is found where it begins earliest. No later place leads further, as no parameter crosses a slash.
- A run that does not fit from one place fits from no later place of the same segment: there is one trial a segment.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ratekit.core.errors import ConfigurationError

# {id}, {id:int} and {name:path} as in Starlette and FastAPI; <id>, <int:id> and <path:name> as in Flask and Django.
_PARAMETER = re.compile(
    r"\{(?P<name>[A-Za-z_]\w*)(?::(?P<braced>\w+))?\}|<(?:(?P<angled>\w+)(?:\([^()<>]*\))?:)?(?P<flask_name>[A-Za-z_]\w*)>"
)
_LAST_OF_SEVERAL = re.compile(r"/(?:\{[A-Za-z_]\w*:path\}|<path:[A-Za-z_]\w*>)$")
_ONE_SEGMENT = {"str", "string", "int", "float", "uuid", "slug", "any"}  # the type is not looked at
_SEVERAL = "path"

Run = tuple[str, ...]  # texts, with a parameter of one segment between each two


class _Shape(NamedTuple):
    """Runs with a parameter of several segments between each two; open: anything may follow the last run."""

    runs: tuple[Run, ...]
    is_open: bool


class Pattern:
    """A pattern of paths. "/static/*" and "/static/{name:path}" match "/static" itself, too."""

    def __init__(self, text: str) -> None:
        self.text = _checked(text)
        self._shapes = _shapes_of(text)
        self.is_one_path = not _PARAMETER.search(text) and not text.endswith("*")

    def matches(self, path: str) -> bool:
        """Whether a path fits. It has no doubled slashes, and none at its end."""
        return any(_fits(shape, path) for shape in self._shapes)

    @property
    def segments(self) -> dict[str, int]:
        """The positions of the parameters that are one whole segment of every path that fits, by their names."""
        found: dict[str, int] = {}
        for position, segment in enumerate(self.text.split("/")):
            match = _PARAMETER.fullmatch(segment)
            if match and _SEVERAL not in (match["braced"], match["angled"]):
                found[match["name"] or match["flask_name"]] = position
            elif any(_SEVERAL in (one["braced"], one["angled"]) for one in _PARAMETER.finditer(segment)):
                break
        return found


def _checked(text: str) -> str:
    if not text.startswith("/") or "//" in text or "*" in text[:-1] or (text != "/" and text.endswith("/")):
        raise ConfigurationError(
            f"pattern {text!r} is not a path: it starts with '/', may have {{parameters}}, and a '*' at its end"
        )
    if found := re.search(r"[{}<>]", _PARAMETER.sub("", text)):
        raise ConfigurationError(f"pattern {text!r} has a brace {found[0]!r} that belongs to no {{parameter}}")
    for match in _PARAMETER.finditer(text):
        kind = match["braced"] or match["angled"]
        if kind is not None and kind != _SEVERAL and kind not in _ONE_SEGMENT:
            raise ConfigurationError(
                f"pattern {text!r} has a parameter of the unknown type {kind!r}: "
                "write {name} for one segment, {name:path} for several"
            )
    return text


def _shapes_of(text: str) -> list[_Shape]:
    text = _LAST_OF_SEVERAL.sub("/*", text)
    if text.endswith("/*"):
        return [_Shape(_runs_of(text[:-2]), is_open=False), _Shape(_runs_of(text[:-1]), is_open=True)]
    return [_Shape(_runs_of(text.removesuffix("*")), is_open=text.endswith("*"))]


def _runs_of(text: str) -> tuple[Run, ...]:
    runs: list[Run] = []
    texts: list[str] = []
    at = 0
    for match in _PARAMETER.finditer(text):
        texts.append(text[at : match.start()])
        at = match.end()
        if _SEVERAL in (match["braced"], match["angled"]):
            runs.append(tuple(texts))
            texts = []
    return (*runs, (*texts, text[at:]))


def _fits(shape: _Shape, path: str) -> bool:
    first, *others = shape.runs
    if not others and not shape.is_open:
        return _is_whole(first, path)
    end = len(path) + 1 if shape.is_open else _latest_start(others.pop(), path)
    at = _end_at(first, path, 0)
    for run in others:
        if not 0 <= at < end:
            return False
        at = _earliest_end(run, path, at + 1)
    return 0 <= at < end


def _is_whole(run: Run, path: str) -> bool:
    """Whether a run is all of a path."""
    *texts, last = run
    if not texts:
        return path == last
    at, end = _end_at(texts, path, 0), len(path) - len(last)
    return 0 <= at < end and path.endswith(last) and path.find("/", at, end) < 0


def _end_at(run: Run | list[str], path: str, start: int) -> int:
    """Return the earliest end of a run that begins at one place of a path, -1 if it does not fit there."""
    first, *others = run
    if not path.startswith(first, start):
        return -1
    at = start + len(first)
    for text in others:
        slash = path.find("/", at)
        at = path.find(text, at + 1, (slash if slash >= 0 else len(path)) + len(text))
        if at < 0:
            return -1
        at += len(text)
    return at


def _earliest_end(run: Run, path: str, start: int) -> int:
    """Return the earliest end of a run that begins at some place or after it, -1 if there is none."""
    while (start := path.find(run[0], start)) >= 0:
        end = _end_at(run, path, start)
        if end >= 0:
            return end
        start = start if "/" in run[0] else path.find("/", start)
        if start < 0:
            return -1
        start += 1
    return -1


def _latest_start(run: Run, path: str) -> int:
    """Return the latest start of a run that ends where the path does, -1 if it does not fit there."""
    *others, last = run
    if not path.endswith(last):
        return -1
    at = len(path) - len(last)
    for text in reversed(others):
        after_slash = path.rfind("/", 0, at) + 1
        at = path.rfind(text, max(after_slash - len(text), 0), max(at - 1, 0))
        if at < 0:
            return -1
    return at
