"""Where state lives. One URL picks the engine; drivers are imported here, when they are used, and nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ratekit.errors import ConfigurationError
from ratekit.protocol import Call

if TYPE_CHECKING:
    from ratekit.breaker import Health

URL_VARIABLE = "RATE_LIMIT_STORE_URL"
DEFAULT_URL = "memory://"
_REDIS_SCHEMES = (
    "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"
)  # fmt: skip
_SCHEMES = ("memory", *_REDIS_SCHEMES)


class Store(Protocol):
    """What a limiter asks of a store."""

    is_local: bool

    def run(self, call: Call) -> Sequence[int]:
        """Decide one call: its figures. Raises StoreOutage if it cannot."""

    def health(self) -> Health:
        """Return what is known of the store."""

    def close(self) -> None:
        """Close what the store has opened."""


class AsyncStore(Protocol):
    """The same, awaited."""

    is_local: bool

    async def run(self, call: Call) -> Sequence[int]:
        """Decide one call: its figures. Raises StoreOutage if it cannot."""

    def health(self) -> Health:
        """Return what is known of the store."""

    async def aclose(self) -> None:
        """Close what the store has opened on the running event loop."""


def default_url() -> str:
    """Return the URL that RATE_LIMIT_STORE_URL names, else memory://."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def open_store(store: Any, deadline: float) -> Any:
    """Return the store that a URL, a client or a store stands for, for use without awaiting."""
    if isinstance(store, str):
        return _from_url(store, deadline, asynchronous=False)
    if _is_store(store):
        return _refuse_colour(store, not hasattr(store, "aclose") or store.is_local, "RateLimiter", "a synchronous store")
    from ratekit.stores.redis import ClientStore, is_async

    return ClientStore(_refuse_colour(store, not is_async(store), "RateLimiter", "a synchronous client"))


def open_async_store(store: Any, deadline: float) -> Any:
    """Return the store that a URL, a client or a store stands for, for use with await."""
    if isinstance(store, str):
        return _from_url(store, deadline, asynchronous=True)
    if _is_store(store):
        return _refuse_colour(store, hasattr(store, "aclose"), "AsyncRateLimiter", "an asynchronous store")
    from ratekit.stores.redis import is_async
    from ratekit.stores.redis_asyncio import AsyncRedisStore

    client = _refuse_colour(store, is_async(store), "AsyncRateLimiter", "an asynchronous client")
    return AsyncRedisStore.from_client(client, deadline)


def _from_url(url: str, deadline: float, *, asynchronous: bool) -> Any:
    scheme, _, rest = url.partition("://")
    if scheme == "memory" and re.fullmatch(r"[\w.-]*", rest):
        from ratekit.stores import memory

        return memory.shared(rest)
    if scheme in _REDIS_SCHEMES:
        try:
            return _redis_store(url, deadline, asynchronous=asynchronous)
        except ConfigurationError:
            raise
        except ValueError:
            # What is wrong with it may be a part of the password: say where, not what.
            shown = _without_secrets(url)
            raise ConfigurationError(f"store URL {shown!r} makes no sense: check its port and options") from None
    known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
    raise ConfigurationError(f"store URL {_without_secrets(url)!r} is unknown: it starts with one of {known}")


def _redis_store(url: str, deadline: float, *, asynchronous: bool) -> Any:
    if asynchronous:
        from ratekit.stores.redis_asyncio import AsyncRedisStore

        return AsyncRedisStore.from_url(url, deadline)
    from ratekit.stores.redis import RedisStore

    return RedisStore.from_url(url, deadline)


def _without_secrets(url: str) -> str:
    """Return a URL for a message: nothing before the host, nothing after the path."""
    shown, _, _ = url.partition("?")
    scheme, colon, _ = shown.partition("://")
    return f"{scheme}{colon}…@{shown.rpartition('@')[2]}" if "@" in url else shown


def _is_store(store: object) -> bool:
    return hasattr(store, "is_local") and hasattr(store, "run")


def _refuse_colour(store: Any, fits: bool, limiter: str, what: str) -> Any:
    if not fits or store is None:
        kind = type(store).__name__
        raise ConfigurationError(f"store of type {kind!r} does not fit a {limiter}: it needs a URL, or {what}")
    return store
