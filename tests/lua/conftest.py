"""Fixtures for the tests of the script: an engine, a subject on it, and the clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lua.engines import Bench, Engine, memory_bench, redis_bench

from ratekit.testing import VirtualClock


@pytest.fixture(params=["memory", "redis"])
def engine(request: pytest.FixtureRequest, clock: VirtualClock) -> Iterator[Engine]:
    if request.param.startswith("memory"):
        lua = "lua54" if request.param == "memory-plain-lua" else None
        yield Engine(lambda: memory_bench(lua), clock, is_local=True)
        return
    with request.getfixturevalue("redis_server").client() as client:
        yield Engine(lambda: redis_bench(client), clock, is_local=False)


@pytest.fixture
def bench(engine: Engine) -> Bench:
    return engine.open()


@pytest.fixture
def clock(ratekit_clock: VirtualClock) -> VirtualClock:
    return ratekit_clock
