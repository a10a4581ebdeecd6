"""Rules from Redis: a hash with a document and its version, and a message on the channel of the same name.

redis-py reconnects a subscription without a word and loses what was published meanwhile. So the version is polled, and
messages only make a change faster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from ratekit import stores
from ratekit.core import clock
from ratekit.core.errors import ConfigurationError, SourceUnavailable
from ratekit.core.keys import DEFAULT_PREFIX, rules_key
from ratekit.core.outages import StoreOutage, sentence
from ratekit.rules.sources.contract import Loaded, Stop, Text
from ratekit.stores.contract import Command

INTERVAL = 2.0  # seconds
NAME = "default"  # of the document, where neither the URL nor the service names one
_DEADLINE = 2.0


class RedisSource:
    """A document in Redis, under a name; by default that of the service."""

    is_trusted = False

    def __init__(
        self, url: str, *, name: str | None = None, prefix: str = DEFAULT_PREFIX, interval: float = INTERVAL
    ) -> None:
        from ratekit.stores.redis.url import without_secrets

        self._url = url
        self._name = name
        self._prefix = prefix
        self._store = stores.open_store(url, _DEADLINE)
        self._key = rules_key(prefix, name or NAME)
        self._label = without_secrets(url)
        self.interval = interval

    @property
    def origin(self) -> str:
        """The URL without secrets, and the key."""
        return f"{self._label} {self._key}"

    def for_service(self, service: str) -> RedisSource:
        """Return the source of a service's document, unless it has a name already."""
        if self._name is not None:
            return self
        return RedisSource(self._url, name=service, prefix=self._prefix, interval=self.interval)

    def load(self, known: str | None, pace: Callable[[], None]) -> Loaded | None:
        """Return the document, None if it is still the one of the known version."""
        (version,) = self._run([("HGET", self._key, "version")])
        if version is not None and known is not None and _text(version) == known:
            return None
        ((version, text),) = self._run([("HMGET", self._key, "version", "document")])
        if text is None or version is None:
            raise SourceUnavailable(f"{self.origin} has no document: ratekit rules push writes one")
        return Loaded(Text(text, "json"), _text(version))

    def watch(self, changed: Callable[[], None]) -> Stop | None:
        """Subscribe to the channel, where that is one server's; else only look."""
        from ratekit.stores.redis.subscription import subscribe

        return subscribe(self._url, self._key, changed)

    def save(self, values: dict[str, Any]) -> str:
        """Write a document and its version in one command, and tell those who listen."""
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        version = f"{round(clock.now() * 1000)}-{digest}"
        fields = ("version", version, "document", text, "updated_at", str(clock.now()))
        self._run([("HSET", self._key, *fields)])
        self._run([("PUBLISH", self._key, version)])
        return version

    def close(self) -> None:
        """Close the connections."""
        self._store.close()

    def _run(self, commands: Sequence[Command]) -> list[Any]:
        try:
            replies = self._store.execute_many(commands)
        except StoreOutage as outage:
            raise SourceUnavailable(sentence(self.origin, str(outage))) from None
        for reply in replies:
            if isinstance(reply, StoreOutage):
                raise SourceUnavailable(sentence(self.origin, str(reply)))
        return replies


def redis_source(url: str, options: dict[str, str], service: str | None, interval: float | None) -> RedisSource:
    """Open the source of a URL: redis://host/0?rules=NAME&interval=2."""
    if url.startswith("memory:"):
        raise ConfigurationError("rules are not kept in memory://: give them as a document")
    return RedisSource(url, name=options.get("rules") or service, interval=INTERVAL if interval is None else interval)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
