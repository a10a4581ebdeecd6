"""What counters hold, read past the script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import redis

from ratekit.stores.memory import shared


def cluster_client(url: str) -> redis.RedisCluster:
    host, _, port = url.partition("://")[2].partition(",")[0].partition("?")[0].partition(":")
    return redis.RedisCluster(host, int(port))


def used_in(url: str) -> dict[str, int]:
    """What all counters of each limit have been charged, read past the script."""
    if url.startswith("memory"):
        store = shared(url.partition("://")[2])
        return summed(lambda: store.execute("KEYS", "ratelimit:"), store.execute)
    client = cluster_client(url) if "cluster" in url else redis.Redis.from_url(url)
    with client:
        return summed(lambda: client.scan_iter("ratelimit:*"), client.execute_command)


def summed(keys: Callable[[], Any], execute: Callable[..., Any]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for key in keys():
        name, _, algorithm = key.decode().rpartition(":")[2].partition("@")
        if name.startswith("~"):  # the record of a reservation
            continue
        if algorithm.startswith("concurrency"):
            found[name] += execute("ZCARD", key)
        elif algorithm.startswith("sliding_window_log"):
            found[name] += sum(int(entry.partition(b":")[2]) for entry in execute("ZRANGE", key, 0, -1))
        else:
            used = [value for value in execute("HMGET", key, "n", "c", "u") if value is not None and value is not False]
            found[name] += round(float(used[0]))
    return {name: used for name, used in found.items() if used}
