"""The URL of Django's database, as SQLAlchemy spells it."""

from __future__ import annotations

from typing import Any

from ratekit.core.errors import ConfigurationError

_BACKENDS = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mysql"}


def url_of_database(connection: Any) -> Any:
    """Return the URL of a connection of Django. Raises ConfigurationError for a database that ratekit does not know."""
    from sqlalchemy import URL

    given = connection.settings_dict
    if connection.vendor not in _BACKENDS:
        raise ConfigurationError(f"database {connection.vendor!r} is unknown: ratekit knows {', '.join(_BACKENDS)}")
    if connection.vendor == "sqlite":
        return _sqlite_url(str(given["NAME"]))
    port = given.get("PORT")
    return URL.create(
        _BACKENDS[connection.vendor],
        username=given.get("USER") or None,
        password=given.get("PASSWORD") or None,
        host=given.get("HOST") or None,
        port=int(port) if port else None,
        database=str(given["NAME"]),
        query={name: value for name, value in given.get("OPTIONS", {}).items() if isinstance(value, str)},
    )


def own_url() -> str:
    """Return the URL of the database that has ratekit's tables."""
    from django.db import connections, router

    from ratekit_django.database.models import Rule

    url: str = url_of_database(connections[router.db_for_read(Rule)]).render_as_string(hide_password=False)
    return url


def _sqlite_url(name: str) -> Any:
    from sqlalchemy import URL

    if not name.startswith("file:"):
        return URL.create("sqlite", database=name)
    path, _, parameters = name.partition("?")  # the database of tests, in memory
    query = dict(pair.split("=", 1) for pair in parameters.split("&") if "=" in pair)
    return URL.create("sqlite", database=path, query={**query, "uri": "true"})
