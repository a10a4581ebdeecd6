"""Pytest fixtures for tests of applications. Pytest loads this module in every run, so it imports ratekit late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ratekit.stores.memory import MemoryStore
    from ratekit.testing import VirtualClock


@pytest.fixture
def ratekit_clock() -> Iterator[VirtualClock]:
    """A clock for every limiter of the process, which stands still until `ratekit_clock.advance(seconds)`."""
    from ratekit.testing import VirtualClock

    clock = VirtualClock()
    clock.install()
    yield clock
    clock.uninstall()


@pytest.fixture
def ratekit_store() -> Iterator[MemoryStore]:
    """The `memory://` store of the process, emptied before and after the test."""
    from ratekit.stores.memory import shared

    store = shared("")
    store.clear()
    yield store
    store.clear()


@pytest.fixture
def ratekit_admits() -> Callable[..., Any]:
    """An assertion about how many requests pass: `ratekit_admits(lambda: client.get("/"), exactly=5)`."""
    from ratekit.testing import assert_admits

    return assert_admits
