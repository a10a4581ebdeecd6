"""A Flask application on the empty memory:// store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
import pytest

from ratekit.flask import install
from ratekit.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def store(ratekit_store: MemoryStore) -> MemoryStore:
    """The empty memory:// store."""
    return ratekit_store


@pytest.fixture
def keys(store: MemoryStore) -> Callable[[], list[str]]:
    """List the keys of the counters."""
    return lambda: sorted(name.decode() for name in store.execute("KEYS", "ratelimit:"))


@pytest.fixture
def make_app() -> Callable[..., flask.Flask]:
    """Make an application with ratekit installed."""

    def make(**arguments: Any) -> flask.Flask:
        app = flask.Flask("shop")
        install(app, **({"store": "memory://"} | arguments))
        return app

    return make
