"""Stores: where the state of limits lives. A URL picks the engine. Drivers are imported here, when they are used."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from ratekit.core.errors import ConfigurationError
from ratekit.stores.contract import AsyncStore, AsyncStoreGiven, Store, StoreGiven

if TYPE_CHECKING:
    from ratekit.stores.memory import MemoryStore

URL_VARIABLE = "RATE_LIMIT_STORE_URL"
DEFAULT_URL = "memory://"
_REDIS_SCHEMES = (
    "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"
)  # fmt: skip
_SCHEMES = ("memory", *_REDIS_SCHEMES)


def default_url() -> str:
    """Return the URL in RATE_LIMIT_STORE_URL, or memory://."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def open_store(store: StoreGiven, deadline: float) -> Store:
    """Return the blocking store of a URL or a client. A store is returned as it is."""
    if isinstance(store, str):
        return _store_of_url(store, deadline)
    if isinstance(store, Store):
        return store
    from ratekit.stores.redis.sync_store import ClientStore

    if is_async(store):
        _refuse(store, "a RateLimiter", "a synchronous store or client")
    return ClientStore(store)


def open_async_store(store: AsyncStoreGiven, deadline: float) -> AsyncStore:
    """Return the asynchronous store of a URL or a client. A store is returned as it is."""
    if isinstance(store, str):
        return _async_store_of_url(store, deadline)
    if isinstance(store, AsyncStore):
        return store
    if isinstance(store, Store) and store.is_local:
        return _awaited(store)
    from ratekit.stores.redis.async_store import AsyncRedisStore

    if not is_async(store):
        _refuse(store, "an AsyncRateLimiter", "an asynchronous store or client")
    return AsyncRedisStore.from_client(store, deadline)


def is_async(store: object) -> bool:
    """Whether the methods of a store or a client are awaited."""
    from ratekit.stores.redis import client

    return isinstance(store, AsyncStore) or client.is_async(store)


def _store_of_url(url: str, deadline: float) -> Store:
    name = _memory_name(url)
    if name is not None:
        return _memory_store(name)
    from ratekit.stores.redis.sync_store import RedisStore

    with _url_errors(url):
        return RedisStore.from_url(url, deadline)


def _async_store_of_url(url: str, deadline: float) -> AsyncStore:
    name = _memory_name(url)
    if name is not None:
        return _awaited(_memory_store(name))
    from ratekit.stores.redis.async_store import AsyncRedisStore

    with _url_errors(url):
        return AsyncRedisStore.from_url(url, deadline)


def _memory_store(name: str) -> MemoryStore:
    from ratekit.stores import memory

    return memory.shared(name)


def _awaited(store: Store) -> AsyncStore:
    """Return the store in this process for code that awaits."""
    from ratekit.stores.async_memory import AsyncMemoryStore
    from ratekit.stores.memory import MemoryStore

    if not isinstance(store, MemoryStore):
        _refuse(store, "an AsyncRateLimiter", "an asynchronous store or client")
    return AsyncMemoryStore.of(store)


def _memory_name(url: str) -> str | None:
    """Return the name in memory://name, or None for the URL of a Redis. Raises ConfigurationError for any other URL."""
    scheme, _, rest = url.partition("://")
    if scheme == "memory" and re.fullmatch(r"[\w.-]*", rest):
        return rest
    if scheme in _REDIS_SCHEMES:
        return None
    known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
    raise ConfigurationError(f"store URL {shown(url)!r} is unknown: it starts with one of {known}")


@contextmanager
def _url_errors(url: str) -> Iterator[None]:
    """Raise ConfigurationError for a URL that is not valid. The message leaves out the part that may be a password."""
    try:
        yield
    except ConfigurationError:
        raise
    except ValueError:
        escaped = ", and write @ / ? # in a user, a password or an option as %40 %2F %3F %23"
        message = f"store URL {shown(url)!r} makes no sense: check its port and options{escaped if '@' in url else ''}"
        raise ConfigurationError(message) from None


def shown(url: str) -> str:
    """Return a URL for a message, without secrets."""
    from ratekit.stores.redis.url import without_secrets

    return without_secrets(url)


def _refuse(store: object, limiter: str, needed: str) -> NoReturn:
    kind = type(store).__name__
    raise ConfigurationError(f"store of type {kind!r} does not fit {limiter}: it needs a URL, or {needed}")
