"""The Redis that CACHES already names, as a URL of a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from django.conf import settings

from ratekit.admin.commands import Batch, Flow, as_text, drive
from ratekit.core.errors import ConfigurationError, RateLimitUnavailable
from ratekit.limiter.limiters import RateLimiter


def url_of_cache(alias: str) -> str:
    """Return the URL of a cache's server, with the user, the password and the database that its OPTIONS say."""
    cache = settings.CACHES.get(alias) if isinstance(alias, str) else None
    if cache is None:
        raise ConfigurationError(f"CACHE_ALIAS {alias!r} is not in CACHES")
    location = cache.get("LOCATION")
    first = location.replace(",", ";").split(";")[0] if isinstance(location, str) else (list(location or ()) or [""])[0]
    if "redis" not in cache.get("BACKEND", "").lower() or urlsplit(first).scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(f"CACHE_ALIAS {alias!r} is not a cache in Redis: its LOCATION has to be a redis:// URL")
    return _with_options(first, cache.get("OPTIONS") or {})


def _with_options(url: str, options: Mapping[str, Any]) -> str:
    parts = urlsplit(url)
    given = {key.lower(): str(value) for key, value in options.items() if key.lower() in ("username", "password", "db")}
    host = parts.netloc
    if "password" in given and "@" not in host:
        host = f"{quote(given.get('username', ''), safe='')}:{quote(given['password'], safe='')}@{host}"
    query = dict(parse_qsl(parts.query))
    path = parts.path
    if "db" in given and parts.scheme == "unix":
        query.setdefault("db", given["db"])
    elif "db" in given and path in ("", "/") and "db" not in query:
        path = f"/{given['db']}"
    return f"{parts.scheme}://{host}{path}" + (f"?{urlencode(query)}" if query else "")


def eviction_policy(limiter: RateLimiter) -> str | None:
    """Return what a server does when its memory is full; None if it does not say."""
    try:
        found: str | None = drive(limiter, _asking())
    except RateLimitUnavailable:
        return None
    return found


def _asking() -> Flow[str | None]:
    (reply,) = yield Batch((("INFO", "memory"),))
    # Client libraries that know the command have taken its answer apart.
    lines = as_text(reply).splitlines() if isinstance(reply, bytes | str) else [f"{name}:{reply[name]}" for name in reply]
    found = [line.partition(":")[2] for line in lines if line.startswith("maxmemory_policy:")]
    return found[0] if found else None
