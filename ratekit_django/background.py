"""What runs in threads beside requests: the mode of the fleet, overrides of the database, the log of violations."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ratekit.admin import fleet_mode

if TYPE_CHECKING:
    from ratekit_django.conf import Conf


class Background:
    """Begins with the first request that is limited: a process that serves none needs no threads and no connections."""

    def __init__(self, conf: Conf) -> None:
        self._conf = conf
        self._starting = threading.Lock()
        self._has_begun = False
        self.fleet: fleet_mode.Follower | None = None
        self._overrides: Any = None
        self._violations: Any = None

    def begin(self) -> None:
        """Begin what the settings ask for. It goes on after a fork."""
        if not self._has_begun:
            with self._starting:
                if not self._has_begun:
                    self._start()
                    self._has_begun = True
        elif self._overrides is not None:
            self._overrides.revive()

    def close(self) -> None:
        """End the threads."""
        for one in (self.fleet, self._overrides, self._violations):
            if one is not None:
                one.close()

    def _start(self) -> None:
        conf = self._conf
        if conf.fleet_mode:
            self.fleet = fleet_mode.follow(conf.store_url, prefix=conf.prefix)
        if conf.follows_overrides:
            from ratekit_django.database.overrides import follow

            self._overrides = follow()
        if conf.violations is not None:
            from ratekit.admin.violations import ViolationLog

            self._violations = ViolationLog(conf.database_url, subjects=conf.violations).start()
