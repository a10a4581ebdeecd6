"""A subscription to one channel of a Redis server, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ratekit.stores.redis.client_errors import errors_of
from ratekit.stores.redis.driver import library
from ratekit.stores.redis.url import parse

_LISTEN = 1.0  # seconds after which the thread looks whether it is to end
_PAUSE = 1.0  # seconds until the next attempt to connect


def subscribe(url: str, channel: str, changed: Callable[[], None]) -> Callable[[], None] | None:
    """Call a function with each message on a channel, and after each connection that was lost. Returns what ends it.

    None for a Cluster and for Sentinels: a message need not come by the node that is asked.
    """
    if parse(url).kind != "server":
        return None
    subscription = _Subscription(url, channel, changed)
    threading.Thread(target=subscription.run, name="ratekit-subscription", daemon=True).start()
    return subscription.stops.set


class _Subscription:
    def __init__(self, url: str, channel: str, changed: Callable[[], None]) -> None:
        self._client = library("redis").Redis.from_url(url, socket_timeout=_LISTEN * 2, socket_connect_timeout=_LISTEN)
        self._channel = channel
        self._changed = changed
        self.stops = threading.Event()

    def run(self) -> None:
        while not self.stops.is_set():
            pubsub = self._client.pubsub(ignore_subscribe_messages=True)
            try:
                self._listen(pubsub)
            except errors_of(self._client).every:
                self.stops.wait(_PAUSE)
            finally:
                pubsub.close()
        self._client.close()

    def _listen(self, pubsub: Any) -> None:
        pubsub.subscribe(self._channel)
        self._changed()  # what was published before is not told
        while not self.stops.is_set():
            if pubsub.get_message(timeout=_LISTEN) is not None:
                self._changed()
