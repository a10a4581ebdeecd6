"""What the machine does to a measurement: time spent waiting for a processor, pauses, and load made on purpose."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

_TICK, _BETWEEN_LOOKS, _LEAST_THEFT = 0.002, 0.05, 0.02
_of_thread = threading.local()


def queued() -> float:
    """Return the seconds that the running thread has waited for a processor since it began; 0 where nobody counts."""
    try:
        descriptor = _of_thread.descriptor
    except AttributeError:
        descriptor = _of_thread.descriptor = _open_statistics()
    return 0.0 if descriptor is None else int(os.pread(descriptor, 100, 0).split()[1]) / 1e9


def _open_statistics() -> int | None:
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return None


class Watch:
    """A stop-watch that stands still while its thread waits for a processor: others' work is not what it measures."""

    __slots__ = ("_queued", "_started")

    def __init__(self) -> None:
        self._queued = queued()
        self._started = time.monotonic()

    def seconds(self) -> float:
        """Return how long it has run."""
        return max(0.0, time.monotonic() - self._started - (queued() - self._queued))


class Control:
    """A process beside the tests that tells how late something was that has nothing to do with the limiter.

    It sleeps two milliseconds at a time: what makes that late, less the time for which this process itself waited for a
    processor, is a machine that paused everything at once. With the port of a server it also sends PING: what makes that
    late is a server that did not get a processor. And it looks for how long another machine had one of our processors, on
    which a server may have been meanwhile: who is not on it does not notice. Each spoils a measurement of the limiter.
    """

    def __init__(self, port: int = 0) -> None:
        command = [sys.executable, __file__, str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.worst()

    def worst(self) -> float:
        """Return by how many seconds it was late at most since it was last asked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def hogs(count: int = os.cpu_count() or 1) -> Iterator[None]:
    """Keep so many processors busy for a block."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_spin, args=(os.getpid(),), daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(100_000))


def favour(process: int) -> None:
    """Let a process go first when processors are scarce; no matter where that is not allowed."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, process, -15)


def resident_bytes() -> int:
    """Return how much memory this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Thefts:
    """How long another machine on the same hardware had one of our processors, of which that one knows nothing."""

    def __init__(self) -> None:
        self._stolen = _stolen()
        self._looked_at = time.monotonic()

    def worst(self) -> float:
        """Return the most seconds that one processor was away since the last look, a twentieth of a second ago or more; 0 if
        that is not much: a little is always stolen, and counted by hundredths of a second.
        """
        if time.monotonic() - self._looked_at < _BETWEEN_LOOKS:
            return 0.0
        before, self._stolen, self._looked_at = self._stolen, _stolen(), time.monotonic()
        most = max((now - then for now, then in zip(self._stolen, before, strict=False)), default=0.0)
        return most if most >= _LEAST_THEFT else 0.0


def _stolen() -> list[float]:
    """Return the seconds for which each processor was away since the machine began; none where nobody counts."""
    try:
        with open("/proc/stat") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
    except OSError:
        return []
    return [int(fields[8]) / os.sysconf("SC_CLK_TCK") for fields in lines[1:] if len(fields) > 8]


def _watch(port: int) -> None:
    """Be late, and tell by how much for each line that is read."""
    worst, thefts = 0.0, Thefts()
    once = _ping(socket.create_connection(("127.0.0.1", port))) if port else _sleep
    while True:
        worst = max(worst, once(), thefts.worst())
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            print(worst, flush=True)
            worst = 0.0


def _sleep() -> float:
    watch = Watch()
    time.sleep(_TICK)
    return watch.seconds() - _TICK


def _ping(server: socket.socket) -> Callable[[], float]:
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def once() -> float:
        late, watch = _sleep(), Watch()
        server.sendall(b"PING\r\n")
        server.recv(100)
        return max(late, watch.seconds())

    return once


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
