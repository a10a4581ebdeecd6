"""Servers of the tests' own, for as long as a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from faults.machine import favour
from support.servers import Server, start_server, stop_server, wheel_server


@contextlib.contextmanager
def serving(
    *options: str, executable: str = "", port: int = 0, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Run a server for a block, by default the one from the wheel.

    It goes first when processors are scarce, as if it had one of its own: what the tests load is the limiter's process.
    """
    server = start_server(executable or wheel_server(), *options, port=port, environment=environment)
    favour(server.process.pid)
    try:
        yield server
    finally:
        stop_server(server)
