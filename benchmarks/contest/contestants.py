"""Who takes part, and where it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any


class Colour(StrEnum):
    """How checks are made at the same time."""

    ASYNC = "async"
    THREADS = "threads"


class Role(StrEnum):
    """What a contestant is to ratekit."""

    OURS = "ratekit"
    PEER = "peer"
    BARE = "bare"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A library, used in one way: its opener is a function in `benchmarks.contest.peers`."""

    name: str
    colour: Colour
    role: Role
    package: str
    opener: str
    only_refused: bool = False

    @property
    def version(self) -> str | None:
        """Which release is installed; None if there is none."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    @staticmethod
    def named(name: str, colour: Colour) -> Contestant:
        """Return the contestant of that name."""
        return next(one for one in CONTESTANTS if (one.name, one.colour) == (name, colour))

    def load(self) -> Any:
        """Import its opener."""
        module, _, function = self.opener.partition(":")
        return getattr(import_module(f"benchmarks.contest.peers.{module}"), function)


CONTESTANTS = (
    Contestant("ratekit", Colour.ASYNC, Role.OURS, "ratekit", "ours:open_async"),
    Contestant("ratekit, refusal cache", Colour.ASYNC, Role.OURS, "ratekit", "ours:open_async_cached", only_refused=True),
    Contestant("limits (redis-py)", Colour.ASYNC, Role.PEER, "limits", "limits:open_redis_py"),
    Contestant("limits (coredis)", Colour.ASYNC, Role.PEER, "limits", "limits:open_coredis"),
    Contestant("limits, with figures", Colour.ASYNC, Role.PEER, "limits", "limits:open_with_figures"),
    Contestant("throttled-py", Colour.ASYNC, Role.PEER, "throttled-py", "throttled:open_async"),
    Contestant("pyrate-limiter", Colour.ASYNC, Role.PEER, "pyrate-limiter", "pyrate:open_async"),
    Contestant("fastapi-limiter", Colour.ASYNC, Role.PEER, "fastapi-limiter", "fastapi_limiter:open_async"),
    Contestant("slowapi", Colour.ASYNC, Role.PEER, "slowapi", "slowapi:open_async"),
    Contestant("bare INCR", Colour.ASYNC, Role.BARE, "redis", "bare:open_async"),
    Contestant("ratekit", Colour.THREADS, Role.OURS, "ratekit", "ours:open_sync"),
    Contestant("ratekit, refusal cache", Colour.THREADS, Role.OURS, "ratekit", "ours:open_sync_cached", only_refused=True),
    Contestant("limits", Colour.THREADS, Role.PEER, "limits", "limits:open_sync"),
    Contestant("throttled-py", Colour.THREADS, Role.PEER, "throttled-py", "throttled:open_sync"),
    Contestant("pyrate-limiter", Colour.THREADS, Role.PEER, "pyrate-limiter", "pyrate:open_sync"),
    Contestant("django-ratelimit", Colour.THREADS, Role.PEER, "django-ratelimit", "django:open_ratelimit"),
    Contestant("DRF throttle", Colour.THREADS, Role.PEER, "djangorestframework", "django:open_rest_framework"),
    Contestant("bare INCR", Colour.THREADS, Role.BARE, "redis", "bare:open_sync"),
)
