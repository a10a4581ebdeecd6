"""The fleet mode: a mode kept in the store, which every process follows within a second.

The first argument of `set_fleet_mode`, `get_fleet_mode` and `clear_fleet_mode` is that of the functions of
ratekit.overrides. A process that calls `follow` reads the store twice a second in a thread of its own, so that no request
waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratekit import stores
from ratekit.admin.commands import Batch, Flow, as_texts, drive, prefix_of
from ratekit.admin.override_hash import remarks
from ratekit.admin.targets import Target, sync_or_async
from ratekit.core import clock
from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.core.keys import mode_key
from ratekit.core.modes import RateLimitMode, add_mode_source, as_mode
from ratekit.core.poller import Poller
from ratekit.limiter.limiters import AsyncRateLimiter, RateLimiter
from ratekit.stores.contract import Store

SOURCE = "fleet mode"
_INTERVAL = 0.5  # seconds; interval and deadline together are well below the second that the docs promise
_DEADLINE = 0.25
_log = logging.getLogger("ratekit.fleet")


@dataclass(frozen=True, slots=True)
class FleetMode:
    """The mode in the store, and who set it, when and why."""

    mode: str  # as stored, so it may be invalid
    note: str | None = None
    set_by: str | None = None
    set_at: float | None = None  # seconds since the epoch


@sync_or_async
def set_fleet_mode(
    store: Target, mode: str, *, note: str | None = None, set_by: str | None = None, prefix: str | None = None
) -> Flow[None]:
    """Write the fleet mode."""
    fields = {"mode": str(as_mode(mode)), "note": "", "set_by": ""} | remarks(note, set_by, clock.now())
    return _write_mode(mode_key(prefix_of(store, prefix)), fields)


@sync_or_async
def get_fleet_mode(store: Target, *, prefix: str | None = None) -> Flow[FleetMode | None]:
    """Return the FleetMode, or None if the store has none."""
    return _read_mode(mode_key(prefix_of(store, prefix)))


@sync_or_async
def clear_fleet_mode(store: Target, *, prefix: str | None = None) -> Flow[bool]:
    """Delete the fleet mode. Returns whether there was one."""
    return _delete_mode(mode_key(prefix_of(store, prefix)))


def follow(store: str | Target | None = None, *, prefix: str | None = None) -> Follower:
    """Add the fleet mode as a source of this process's mode; the weakest of all sources counts.

    store is a URL (by default RATE_LIMIT_STORE_URL), a limiter, a store, or a synchronous client. One URL is followed by
    one thread, however often this is called.
    """
    url = stores.default_url() if store is None else store
    name = (url, prefix_of(store, prefix)) if isinstance(url, str) else None
    with _lock:
        follower = _followers.get(name) if name else None
        if follower is None:
            follower = Follower(_blocking_store(url), mode_key(prefix_of(store, prefix)))
            if name:
                _followers[name] = follower
        follower.users += 1
        return follower


def stop_following() -> None:
    """Stop following every URL. For tests."""
    while _followers:
        follower = next(iter(_followers.values()))
        follower.users = 1
        follower.close()


class Follower:
    """A thread that polls a store for the fleet mode. It ends with the process, and starts again after a fork.

    While the store is away, or its value is invalid, the last mode stays, and one line is logged.
    """

    def __init__(self, store: Store, key: str) -> None:
        self.users = 0
        self._store = store
        self._key = key
        self._mode: RateLimitMode | None = None
        self._trouble: str | None = None
        self._poller = Poller(self._read, _INTERVAL, "ratekit-fleet")
        self._remove = add_mode_source(self._current, SOURCE)

    def refresh(self) -> None:
        """Read the store now."""
        self._poller.run_now()

    def close(self) -> None:
        """Stop following, unless another caller follows the same URL."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            for name in [name for name, follower in _followers.items() if follower is self]:
                del _followers[name]
        self._remove()
        self._poller.close()

    def _current(self) -> RateLimitMode | None:
        self._poller.revive()
        return self._mode

    def _read(self) -> None:
        """Read the store. What there is to log of it is logged before the mode is in force."""
        try:
            found: FleetMode | None = drive(self._store, _read_mode(self._key))
            mode = None if found is None else as_mode(found.mode, SOURCE)
        except RateLimitUnavailable as error:
            self._log_change(error.reason)
        except ConfigurationError as error:
            self._log_change(str(error))
        else:
            self._log_change(None)
            self._mode = mode

    def _log_change(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            _log.warning("the fleet mode cannot be read: %s; it stays %s", trouble, self._mode or "unknown")
        elif trouble is None and self._trouble is not None:
            _log.info("the fleet mode can be read again")
        self._trouble = trouble


_followers: dict[Any, Follower] = {}
_lock = threading.Lock()


def _blocking_store(given: Any) -> Store:
    """Return a store that waits, of whatever a user has: a URL, a client, a store, or a limiter."""
    store: Any = given.store if isinstance(given, RateLimiter | AsyncRateLimiter) else given  # told apart below
    if isinstance(store, str) or not stores.is_async(store):
        return stores.open_store(store, _DEADLINE)
    try:
        return stores.open_async_store(store, _DEADLINE).blocking(_DEADLINE)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error} to ratekit.admin.fleet_mode.follow") from None


def _write_mode(key: str, fields: Mapping[str, str]) -> Flow[None]:
    yield Batch((("HSET", key, *(item for pair in fields.items() for item in pair)),))


def _delete_mode(key: str) -> Flow[bool]:
    (reply,) = yield Batch((("DEL", key),))
    return bool(reply)


def _read_mode(key: str) -> Flow[FleetMode | None]:
    (reply,) = yield Batch((("HGETALL", key),))
    fields = as_texts(reply)
    if not fields:
        return None
    set_at = fields.get("set_at", "")
    return FleetMode(
        mode=fields.get("mode", ""),
        note=fields.get("note") or None,
        set_by=fields.get("set_by") or None,
        set_at=float(set_at) if set_at.replace(".", "", 1).isdecimal() else None,
    )
