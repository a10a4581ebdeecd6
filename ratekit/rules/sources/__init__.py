"""Sources of rules: files, Redis, SQL and MongoDB. A URL picks one. Drivers are imported here, when they are used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from ratekit.core.errors import ConfigurationError
from ratekit.core.limit_text import parse_seconds
from ratekit.rules.sources.contract import AsyncSource, Source
from ratekit.rules.sources.file import FileSource

OWN = ("collection", "interval", "service", "rules", "tenant")  # parameters of a URL that are ratekit's, not the driver's
_SQL = ("sqlite", "postgresql", "postgres", "mysql", "mariadb")
_REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel", "memory")


def source(where: str | os.PathLike[str], *, service: str | None = None) -> Source:
    """Open a source: the path of a file, or a URL.

    - rules.yaml, rules.toml, rules.json
    - redis://host/0?rules=NAME&interval=2
    - postgresql+psycopg://host/database?interval=5, sqlite:///rules.db, mysql+pymysql://…
    - mongodb://host/database?collection=rate_limits&interval=30
    """
    text = os.fspath(where)
    scheme, found, _ = text.partition("://")
    if not found:
        return FileSource(Path(text))
    url, options = split_options(text)
    interval = _interval(options)
    family = scheme.partition("+")[0]
    if scheme in ("mongodb", "mongodb+srv"):
        from ratekit.rules.sources.mongo import mongo_source

        return mongo_source(url, options, service, interval)
    if scheme in _REDIS:
        from ratekit.rules.sources.redis import redis_source

        return redis_source(url, options, service, interval)
    if family in _SQL:
        from ratekit.rules.sources.sql import sql_source

        return sql_source(url, options, service, interval)
    if scheme == "file":
        return FileSource(Path(text.removeprefix("file://")))
    known = ", ".join(["mongodb", *_REDIS[:3], *_SQL])
    raise ConfigurationError(f"rules from {scheme}:// are unknown: give the path of a file, or a URL with one of {known}")


def split_options(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without the parameters that are ratekit's, and those."""
    base, found, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    others = urlencode([pair for pair in pairs if pair[0] not in OWN])
    return base + (f"?{others}" if found and others else ""), {name: value for name, value in pairs if name in OWN}


def _interval(options: dict[str, str]) -> float | None:
    if "interval" not in options:
        return None
    seconds = parse_seconds(options["interval"])
    if not 0.05 <= seconds <= 86400:
        raise ConfigurationError(f"interval {options['interval']!r} is not between 0.05 and 86400 seconds")
    return seconds


def is_source(given: Any) -> bool:
    """Whether something is a source, of either colour."""
    return isinstance(given, Source | AsyncSource)
