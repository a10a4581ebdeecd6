"""Whether limits are enforced: the mode, read on every request."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

from ratekit.errors import ConfigurationError
from ratekit.loggers import Logger

MODE_VARIABLE = "RATE_LIMIT_MODE"
FILE_VARIABLE = "RATE_LIMIT_MODE_FILE"
_GONE_SECONDS = 1.0
_NOTHING_READ = object()

_log = Logger("ratekit.modes")


class RateLimitMode(StrEnum):
    """on refuses; monitor counts and lets pass; off does not even count."""

    ON = "on"
    MONITOR = "monitor"
    OFF = "off"


_STRENGTH = {RateLimitMode.OFF: 0, RateLimitMode.MONITOR: 1, RateLimitMode.ON: 2}


def as_mode(value: str, source: str = "mode") -> RateLimitMode:
    """Return the mode of that name, or raise ConfigurationError naming where it came from."""
    try:
        return RateLimitMode(value.strip().lower())
    except (ValueError, AttributeError):
        raise ConfigurationError(f"{source} {value!r} is unknown: it is one of {', '.join(RateLimitMode)}") from None


def weakest(*modes: RateLimitMode) -> RateLimitMode:
    """Return the weakest of several modes: off, then monitor, then on."""
    return min(modes, key=_STRENGTH.__getitem__, default=RateLimitMode.ON)


def _environment(name: str) -> Callable[[], bytes | str | None]:
    """Return a function that reads a variable of the environment as it is now.

    Every request asks. os.environ keeps the bytes that it encodes and decodes each time; they are enough to see a change.
    """
    stored: Any = getattr(os.environ, "_data", None)
    if not isinstance(stored, dict) or os.name != "posix":
        return partial(os.environ.get, name)
    return partial(stored.get, os.fsencode(name))


_mode_variable, _file_variable = _environment(MODE_VARIABLE), _environment(FILE_VARIABLE)


class _Source:
    """One place that says the mode. Remembers the last value that made sense."""

    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self.name = name
        self._read = read
        self._raw: Any = _NOTHING_READ
        self._mode = RateLimitMode.ON
        self._was_valid = False

    def mode(self) -> RateLimitMode:
        raw = self._read()
        if raw != self._raw or not self._was_valid:
            self._take(raw)
        return self._mode

    def _take(self, raw: Any) -> None:
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
        self._raw, self._mode, self._was_valid = raw, mode, True


class _ModeFile:
    """The text of the file that RATE_LIMIT_MODE_FILE names, read again when the file has changed.

    A file that is being written anew is empty, or gone, for an instant: its last text counts until there is another one, or
    until it has been gone for a second.
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
            self._look(os.fsdecode(path))
        except OSError:
            if time.monotonic() - self._seen_at > _GONE_SECONDS:
                self._seen, self._text = (), None
        return self._text

    def _look(self, path: str) -> None:
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
added: tuple[_Source, ...] = ()  # those of the sources that the application has added
# The mode while only RATE_LIMIT_MODE has a say, with what it was found by: the sources, and the variable's value.
_last: tuple[tuple[_Source, ...] | None, Any, RateLimitMode] = (None, None, RateLimitMode.ON)


def get_rate_limit_mode() -> RateLimitMode:
    """Return the mode now: the weakest that RATE_LIMIT_MODE, the file and every added source say.

    Unset is on. A value that makes no sense is a ConfigurationError the first time that a source is read; later the last
    good one stays, and one error is logged.
    """
    sources, raw, mode = _last
    if sources is _sources and raw is _mode_variable() and not _file_variable():
        return mode
    return _ask(_sources)


def _ask(sources: tuple[_Source, ...]) -> RateLimitMode:
    global _last
    raw, mode = _mode_variable(), sources[0].mode()
    if not added:
        _last = (sources, raw, mode)
    return weakest(mode, *(source.mode() for source in sources[1:]))


def mode_sources() -> tuple[tuple[str, RateLimitMode], ...]:
    """Return what every source says now, by its name."""
    return tuple((source.name, source.mode()) for source in _sources)


def add_mode_source(read: Callable[[], str | None], name: str = "mode source") -> Callable[[], None]:
    """Let a callable say the mode too; it is called on every request, and None means that it has no opinion.

    Returns a function that takes the source away again.
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
    """Forget every added source and every remembered value. For tests."""
    global _sources, added
    _sources, added = _default_sources(), ()
