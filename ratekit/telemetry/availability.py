"""Filter for changes of a store's state: one event when an outage begins, and one when it ends."""

from __future__ import annotations

from threading import Lock

from ratekit.core.events import StoreChange, StoreState


class Availability:
    """Remembers which stores are away.

    A store that is away is probed several times a second, and each probe changes its state: down, probing, down again.
    """

    def __init__(self) -> None:
        self._away: set[str] = set()
        self._lock = Lock()

    def begins_or_ends(self, change: StoreChange) -> bool:
        """Whether a change is the first of an outage, or its end."""
        with self._lock:
            was_away, is_away = change.store in self._away, change.state is not StoreState.UP
            if is_away:
                self._away.add(change.store)
            else:
                self._away.discard(change.store)
            return was_away != is_away
