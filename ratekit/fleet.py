"""One switch for every process: a mode that is kept in the store, and followed off the path of requests.

`set_fleet_mode`, `get_fleet_mode` and `clear_fleet_mode` take what the functions of ratekit.overrides take. A process that
calls `follow` asks the store twice a second, in a thread of its own, and no request ever waits for that.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Any

from ratekit import clock, stores
from ratekit.errors import ConfigurationError, RateLimitUnavailable
from ratekit.keys import mode_key
from ratekit.limiter import AsyncRateLimiter, RateLimiter
from ratekit.modes import RateLimitMode, add_mode_source, as_mode
from ratekit.override_fields import remarks
from ratekit.stores.commands import Batch, Flow, as_texts, drive, is_async_store, prefix_of

SOURCE = "fleet mode"
_INTERVAL = 0.5  # seconds; with the deadline it is well within one that all processes know
_DEADLINE = 0.25
_log = logging.getLogger("ratekit.fleet")


@dataclass(frozen=True, slots=True)
class FleetMode:
    """The mode that the store tells every process, and who has set it when and why."""

    mode: str  # as it stands there: it may make no sense
    note: str | None = None
    set_by: str | None = None
    set_at: float | None = None  # seconds since the epoch


def set_fleet_mode(
    store: Any, mode: str, *, note: str | None = None, set_by: str | None = None, prefix: str | None = None
) -> Any:
    """Write the mode that every process that follows the store takes within a second."""
    fields = {"mode": str(as_mode(mode)), "note": "", "set_by": ""} | remarks(note, set_by, clock.now())
    items = [item for pair in fields.items() for item in pair]
    return drive(store, _ask("HSET", mode_key(prefix_of(store, prefix)), *items))


def get_fleet_mode(store: Any, *, prefix: str | None = None) -> Any:
    """Return the FleetMode, or None if the store has no opinion."""
    return drive(store, _read(mode_key(prefix_of(store, prefix))))


def clear_fleet_mode(store: Any, *, prefix: str | None = None) -> Any:
    """Let the store have no opinion any more. Returns whether it had one."""
    return drive(store, _ask("DEL", mode_key(prefix_of(store, prefix))))


def follow(store: Any = None, *, prefix: str | None = None) -> Follower:
    """Make the store's mode one more source of this process's mode; the weakest of all wins.

    store is a URL (RATE_LIMIT_STORE_URL by default), a limiter, a store, or a client that is not asynchronous. The same URL
    is followed once, however often it is asked for.
    """
    url = stores.default_url() if store is None else store
    name = (url, prefix_of(store, prefix)) if isinstance(url, str) else None
    with _lock:
        follower = _followers.get(name) if name else None
        if follower is None:
            follower = Follower(_store_to_ask(url), mode_key(prefix_of(store, prefix)))
            if name:
                _followers[name] = follower
        follower.users += 1
        return follower


def stop_following() -> None:
    """Follow no URL any more. For tests."""
    while _followers:
        follower = next(iter(_followers.values()))
        follower.users = 1
        follower.close()


class Follower:
    """Asks a store for its mode, again and again, in a thread that ends with the process and begins anew after a fork.

    While the store is away, and while what it says makes no sense, the last mode stays, and one line is logged.
    """

    def __init__(self, store: Any, key: str) -> None:
        self.users = 0
        self._store = store
        self._key = key
        self._mode: RateLimitMode | None = None
        self._trouble: str | None = None
        self._begin()
        self._remove = add_mode_source(self._read, SOURCE)

    def refresh(self) -> None:
        """Ask the store now."""
        try:
            found: FleetMode | None = drive(self._store, _read(self._key))
            self._mode = None if found is None else as_mode(found.mode, SOURCE)
        except (RateLimitUnavailable, ConfigurationError) as error:
            self._tell(str(error))
        else:
            self._tell(None)

    def close(self) -> None:
        """Stop following, unless somebody else has asked for the same."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            for name in [name for name, follower in _followers.items() if follower is self]:
                del _followers[name]
        self._remove()
        self._stop.set()

    def _read(self) -> RateLimitMode | None:
        if not self._thread.is_alive():  # this process was forked from the one that began
            self._begin()
        return self._mode

    def _begin(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, args=(self._stop,), name="ratekit-fleet", daemon=True)
        self._thread.start()

    def _poll(self, stop: threading.Event) -> None:
        while stop is self._stop and not stop.is_set():
            self.refresh()
            stop.wait(_INTERVAL)

    def _tell(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            said = self._mode or "not known yet"
            _log.warning("the mode of the fleet cannot be followed: %s; it stays %s", trouble, said)
        elif trouble is None and self._trouble is not None:
            _log.info("the mode of the fleet is followed again")
        self._trouble = trouble


_followers: dict[Any, Follower] = {}
_lock = threading.Lock()


def _store_to_ask(store: Any) -> Any:
    store = store.store if isinstance(store, RateLimiter | AsyncRateLimiter) else store
    if isinstance(store, str) or not is_async_store(store):
        return stores.open_store(store, _DEADLINE)
    if getattr(store, "location", None) is None:
        raise ConfigurationError(
            f"store of type {type(store).__name__!r} cannot be followed, as it belongs to an event loop: "
            "give its URL to ratekit.fleet.follow"
        )
    from ratekit.stores.locations import Driver
    from ratekit.stores.redis import RedisStore

    return RedisStore(Driver(store.location, _DEADLINE, asynchronous=False))


def _ask(*command: Any) -> Flow[bool]:
    (reply,) = yield Batch((command,))
    return bool(reply)


def _read(key: str) -> Flow[FleetMode | None]:
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
