"""A proxy between a limiter and its server that answers late, by halves, with nonsense, or not at all.

It runs in a process of its own, so that it is neither late nor on time because of the process under test: `Proxy` starts
it and tells it on its standard input how to behave from now on, for open connections too.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from faults.machine import favour

SCRIPTS = ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO")
GARBAGE = b"\x00\xff\x7fHTTP/1.1 400 Bad Request\r\n\r\n"
FULL = b"-ERR max number of clients reached\r\n"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What happens to requests and replies."""

    error: str = ""  # the error that answers requests, which do not reach the server
    scripts_only: bool = False  # the error answers calls of scripts; other commands work
    delay: float = 0.0  # seconds that each reply is late
    garbage: bool = False  # each reply is nonsense
    silent: bool = False  # replies do not arrive
    half: str = ""  # half of each reply arrives, and then "silence" or "close"
    reset: bool = False  # requests are answered by a reset, and do not reach the server
    lost: bool = False  # scripts run in the server; in place of their reply there is a reset
    full: bool = False  # connections are greeted by "max number of clients reached", and closed


class Proxy:
    """A running proxy in front of a server of this machine."""

    def __init__(self, target: int) -> None:
        command = [sys.executable, "-m", "faults.proxy", str(target)]
        folder = Path(__file__).parents[1]
        self._process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        favour(self._process.pid)
        self.port = int(self._read())

    @property
    def url(self) -> str:
        """The URL of the server, through the proxy."""
        return f"redis://127.0.0.1:{self.port}"

    def behave(self, **behaviour: Any) -> None:
        """Behave so from now on; without arguments, pass everything on."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(Behaviour(**behaviour))) + "\n")
        self._process.stdin.flush()
        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()


class Requests:
    """Takes a stream of requests apart: for each its name, and its bytes."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Take in bytes, and yield the requests that are complete."""
        self._buffer += data
        while (end := self._end()) is not None:
            request, self._buffer = self._buffer[:end], self._buffer[end:]
            yield request.split(b"\r\n", 3)[2].decode().upper(), request

    def _end(self) -> int | None:
        """Return where the first request ends: "*2", then "$3", "GET", "$1", "k"."""
        line = self._buffer.find(b"\r\n")
        if line < 0:
            return None
        at = line + 2
        for _ in range(int(self._buffer[1:line])):
            line = self._buffer.find(b"\r\n", at)
            if line < 0:
                return None
            at = line + 2 + int(self._buffer[at + 1 : line]) + 2
        return at if at <= len(self._buffer) else None


class _Connections:
    """Every connection through the proxy, and how it behaves now."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._running: set[asyncio.StreamWriter] = set()  # those whose script runs in the server
        self.behaviour = Behaviour()

    def behave(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        if behaviour.full:
            for writer in self._writers:
                writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.behaviour.full:
            writer.write(FULL)
            writer.close()
            return
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            ways = self._requests(reader, writer, back), self._replies(there, writer)
            both = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()
            back.close()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            self._running.discard(writer)
            writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        requests = Requests()
        while data := await reader.read(65536):
            for name, request in requests.feed(data):
                now = self.behaviour
                if now.reset:
                    _reset(writer)
                    return
                if now.error and (name in SCRIPTS or not now.scripts_only):
                    writer.write(f"-{now.error}\r\n".encode())
                else:
                    (self._running.add if name in SCRIPTS else self._running.discard)(writer)
                    back.write(request)

    async def _replies(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await there.read(65536):
            now = self.behaviour
            if now.lost and writer in self._running:
                _reset(writer)
                return
            if now.half:
                data = data[: len(data) // 2]
            if now.garbage:
                data = GARBAGE
            if now.delay:
                loop.call_later(now.delay, writer.write, data)
            elif not now.silent:
                writer.write(data)
            if now.half == "close":
                await writer.drain()
                return


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that the other side is told at once that it is no more."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def main(target: int) -> None:
    connections = _Connections(target)
    server = await asyncio.start_server(connections.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        connections.behave(Behaviour(**json.loads(line)))
        print("so be it", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
