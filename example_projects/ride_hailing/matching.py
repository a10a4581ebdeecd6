"""The matching service: finds a driver in 50 ms, one rider at a time on each connection. And the pool of connections to it.

Its capacity is small and fixed, as a database's or a geospatial index's is: two connections, 40 requests a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from dataclasses import asdict, dataclass, field

SECONDS = 0.05  # that one match takes
CONNECTIONS = 2
PATIENCE = 3.0  # seconds that a request waits for a connection before it fails


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, one after the other."""
    while await reader.readline():
        await asyncio.sleep(SECONDS)
        writer.write(b"driver-7\n")
    writer.close()


class NoConnectionError(Exception):
    """All connections were busy for as long as a request waits."""


@dataclass
class Load:
    """What was asked of the matching service, and how busy it was."""

    asked: int = 0
    matched: int = 0
    failed: int = 0
    busy_seconds: float = 0.0
    since: float = field(default_factory=time.monotonic)

    def document(self) -> dict[str, float]:
        seconds = time.monotonic() - self.since
        return asdict(self) | {"seconds": seconds, "utilisation": self.busy_seconds / seconds / CONNECTIONS}


class Pool:
    """The connections of the API to the matching service. Who finds none free waits in line, for a while."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.load = Load()

    async def open(self) -> None:
        for _ in range(CONNECTIONS):
            self._free.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))

    async def match(self, rider: str) -> str:
        """Find a driver. Raises NoConnectionError if no connection is free in time."""
        load = self.load
        load.asked += 1
        try:
            reader, writer = await asyncio.wait_for(self._free.get(), PATIENCE)
        except TimeoutError:
            load.failed += 1
            raise NoConnectionError from None
        begun = time.monotonic()
        try:
            writer.write(f"{rider}\n".encode())
            driver = (await reader.readline()).decode().strip()
        finally:
            self._free.put_nowait((reader, writer))
            load.busy_seconds += time.monotonic() - begun
        load.matched += 1
        return driver

    def measure_anew(self) -> None:
        """Forget what was asked so far."""
        self.load = Load()


async def serve(port: int) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8100)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args().port))
