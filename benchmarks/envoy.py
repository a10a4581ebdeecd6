"""Envoy's rate limit service: the processor time of a call, of the whole server, beside a server that answers nothing.

Processor time is compared, and not throughput: pyvoy serves on two processors, and the client needs one too. A call is one
of 64 at once, by 500 users, on four connections.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc

from benchmarks import server
from benchmarks.rounds import Case, Pair, Row, measure
from benchmarks.settings import Settings
from ratekit_service.envoy.service import METHOD

_CALLS, _CONNECTIONS, _AT_ONCE, _USERS = 1500, 4, 64, 500
_MOST_ROUNDS = 12
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def compare_envoy(settings: Settings) -> list[Row]:
    """Compare calls with a decision on Redis with calls that decide nothing, three descriptors with one, and the hosts."""
    with ExitStack() as stack:
        url = stack.enter_context(server.running(settings.server))
        nothing = stack.enter_context(_serving([sys.executable, "-m", "benchmarks.envoy_app", "nothing"], url, 1))
        decided = [sys.executable, "-m", "benchmarks.envoy_app", "decided"]
        one, three = [stack.enter_context(_serving(decided, url, count)) for count in (1, 3)]
        pairs = [
            Pair("ShouldRateLimit on Redis, grpc.aio / answering nothing", one, nothing, 1.8),
            Pair("three descriptors / one, grpc.aio on Redis", three, one, 1.4),
        ]
        if find_spec("pyvoy") is not None:
            command = [
                str(Path(sys.executable).parent / "pyvoy"),
                "benchmarks.envoy_app:app",
                "--log-level",
                "error",
                "--port",
            ]
            pairs.append(
                Pair("ASGI form on pyvoy / grpc.aio, on Redis", stack.enter_context(_serving(command, url, 1)), one, 0.35)
            )
        return measure("envoy", pairs, min(settings.rounds, _MOST_ROUNDS))


@contextmanager
def _serving(command: list[str], url: str, descriptors: int) -> Iterator[Case]:
    """Run a server, and yield a case: the seconds of processor time of a call."""
    port = server.free_port()
    before = set(_children(os.getpid()))
    with server.web_server([*command, str(port)], port, env=os.environ | {"RATE_LIMIT_STORE_URL": url}):
        (process,) = set(_children(os.getpid())) - before
        messages = [_message(user, descriptors) for user in range(_USERS)]
        asyncio.run(_call(port, messages))  # until it is warm

        def case() -> float:
            start = _processor_seconds(process)
            asyncio.run(_call(port, messages))
            return (_processor_seconds(process) - start) / _CALLS

        yield case


async def _call(port: int, messages: list[bytes]) -> None:
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) for _ in range(_CONNECTIONS)
    ]
    numbers = iter(range(_CALLS))

    async def caller(channel: grpc.aio.Channel) -> None:
        method: Any = channel.unary_unary(METHOD)
        for number in numbers:
            answer = await method(messages[number % len(messages)])
            assert answer.startswith(b"\x08\x01"), answer

    await asyncio.gather(*(caller(channels[number % _CONNECTIONS]) for number in range(_AT_ONCE)))
    await asyncio.gather(*(channel.close() for channel in channels))


def _message(user: int, descriptors: int) -> bytes:
    entries = [("user", f"user-{user}"), ("path", f"/api/v1/{user % 20}"), ("tenant", f"tenant-{user % 50}")][:descriptors]
    parts = [_field(1, b"shop")]
    parts += [_field(2, _field(1, _field(1, key.encode()) + _field(2, value.encode()))) for key, value in entries]
    return b"".join(parts)


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def _processor_seconds(process: int) -> float:
    """Return the processor time of a process and of those that it has started."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK + sum(map(_processor_seconds, _children(process)))


def _children(process: int) -> list[int]:
    found = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
    return [int(number) for text in found for number in text.split()]
