"""Fixtures for who tests an application that uses ratekit. Loaded by pytest in every run, so it imports late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ratekit.stores.memory import MemoryStore
    from ratekit.testing import VirtualClock


@pytest.fixture
def ratekit_clock() -> Iterator[VirtualClock]:
    """Stop time for every limiter of the process, and move it by `ratekit_clock.advance(seconds)`."""
    from ratekit.testing import VirtualClock

    clock = VirtualClock()
    clock.install()
    yield clock
    clock.uninstall()


@pytest.fixture
def ratekit_store() -> Iterator[MemoryStore]:
    """The process's `memory://` store, empty at the start of the test and at its end."""
    from ratekit.stores.memory import shared

    store = shared("")
    store.clear()
    yield store
    store.clear()


@pytest.fixture
def ratekit_admits() -> Callable[..., Any]:
    """Assert how many requests pass: `ratekit_admits(lambda: client.get("/"), exactly=5)`."""
    from ratekit.testing import assert_admits

    return assert_admits
