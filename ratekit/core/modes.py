"""The mode: whether limits are enforced. It is read on every request."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

from ratekit.core.errors import ConfigurationError
from ratekit.core.lazy_log import Logger

MODE_VARIABLE = "RATE_LIMIT_MODE"
FILE_VARIABLE = "RATE_LIMIT_MODE_FILE"
_GONE_SECONDS = 1.0
_NOTHING_READ = object()

_log = Logger("ratekit.modes")


class RateLimitMode(StrEnum):
    """Whether limits are enforced."""

    ON = "on"  # requests over the limit are refused
    MONITOR = "monitor"  # they are counted, and pass
    OFF = "off"  # nothing is counted


_STRENGTH = {RateLimitMode.OFF: 0, RateLimitMode.MONITOR: 1, RateLimitMode.ON: 2}


def as_mode(value: str, source: str = "mode") -> RateLimitMode:
    """Return the mode of that name. Raises ConfigurationError, which names the source of the value, if there is none."""
    try:
        return RateLimitMode(value.strip().lower())
    except (ValueError, AttributeError):
        raise ConfigurationError(f"{source} {value!r} is unknown: it is one of {', '.join(RateLimitMode)}") from None


def weakest(*modes: RateLimitMode) -> RateLimitMode:
    """Return the weakest of several modes: off, then monitor, then on."""
    return min(modes, key=_STRENGTH.__getitem__, default=RateLimitMode.ON)


def _environment(name: str) -> Callable[[], bytes | str | None]:
    """Return a function that reads the present value of an environment variable.

    It runs on every request. On POSIX it reads the bytes that os.environ stores, which saves encoding and decoding them.
    """
    stored: Any = getattr(os.environ, "_data", None)
    if not isinstance(stored, dict) or os.name != "posix":
        return partial(os.environ.get, name)
    return partial(stored.get, os.fsencode(name))


_mode_variable, _file_variable = _environment(MODE_VARIABLE), _environment(FILE_VARIABLE)


class _Source:
    """One source of the mode. While its value is invalid, the last valid one counts."""

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self.name = name
        self._read = read
        self._raw: Any = _NOTHING_READ
        self._mode = RateLimitMode.ON
        self._was_valid = False
        self._is_unset = True

    def mode(self) -> RateLimitMode:
        raw = self._read()
        if raw != self._raw or not self._was_valid:
            self._update(raw)
        return self._mode

    def given_mode(self) -> RateLimitMode | None:
        mode = self.mode()
        return None if self._is_unset else mode

    def _update(self, raw: Any) -> None:
        text = os.fsdecode(raw) if isinstance(raw, bytes) else raw
        try:
            mode = as_mode(text, self.name) if text is not None and text != "" else RateLimitMode.ON
        except ConfigurationError as error:
            if not self._was_valid:
                raise
            if raw != self._raw:
                _log.error("%s; the mode stays %r", error, str(self._mode))
            self._raw = raw
            return
        self._raw, self._mode, self._was_valid, self._is_unset = raw, mode, True, text is None or text == ""


class _ModeFile:
    """Reader of the file that RATE_LIMIT_MODE_FILE names. It reads the file again when that has changed.

    A file that is being replaced is empty, or missing, for an instant. Its last text counts until there is another one, or
    until the file has been missing for a second.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._text: str | None = None
        self._seen_at = 0.0

    def __call__(self) -> str | None:
        path = _file_variable()
        if not path:
            return None
        try:
            self._refresh(os.fsdecode(path))
        except OSError:
            if time.monotonic() - self._seen_at > _GONE_SECONDS:
                self._seen, self._text = (), None
        return self._text

    def _refresh(self, path: str) -> None:
        status = os.stat(path)
        seen = (path, status.st_mtime_ns, status.st_size, status.st_ino)
        self._seen_at = time.monotonic()
        if seen != self._seen:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(64).strip()
            self._seen, self._text = seen, text or self._text


def _default_sources() -> tuple[_Source, ...]:
    return (_Source(MODE_VARIABLE, _mode_variable), _Source(FILE_VARIABLE, _ModeFile()))


_sources = _default_sources()
added: tuple[_Source, ...] = ()  # the sources that the application has added
# A cache for the usual case, in which RATE_LIMIT_MODE is the only source: the sources, the variable's value, the mode.
_last: tuple[tuple[_Source, ...] | None, Any, RateLimitMode] = (None, None, RateLimitMode.ON)


def get_rate_limit_mode() -> RateLimitMode:
    """Return the present mode: the weakest of RATE_LIMIT_MODE, the mode file and every added source.

    A source that is unset counts as on. An invalid value is a ConfigurationError when a source is first read. Later, the
    last valid value stays, and one error is logged.
    """
    sources, raw, mode = _last
    if sources is _sources and raw is _mode_variable() and not _file_variable():
        return mode
    return _read_all(_sources)


def _read_all(sources: tuple[_Source, ...]) -> RateLimitMode:
    global _last
    raw, mode = _mode_variable(), sources[0].mode()
    if not added:
        _last = (sources, raw, mode)
    return weakest(mode, *(source.mode() for source in sources[1:]))


def mode_sources() -> tuple[tuple[str, RateLimitMode | None], ...]:
    """Return the name and the present mode of every source; None is a source that leaves it to the others."""
    return tuple((source.name, source.given_mode()) for source in _sources)


def add_mode_source(read: Callable[[], str | None], name: str = "mode source") -> Callable[[], None]:
    """Add a callable as a source of the mode. Returns a function that removes it.

    It is called on every request, and returns a mode, or None to leave it to the other sources.
    """
    source = _Source(name, read)
    _change((*added, source))
    return partial(_remove, source)


def _remove(source: _Source) -> None:
    _change(tuple(other for other in added if other is not source))


def _change(sources: tuple[_Source, ...]) -> None:
    global _sources, added
    _sources, added = (*_sources[: len(_sources) - len(added)], *sources), sources


def reset_mode_sources() -> None:
    """Remove every added source, and forget every value that was read. For tests."""
    global _sources, added
    _sources, added = _default_sources(), ()
