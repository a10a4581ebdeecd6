"""A FastAPI route behind ratekit, beside the same route without it: uvicorn, one worker, 32 connections by wrk.

What is measured is the time of a request while wrk asks for as many as the worker can serve: the inverse of its throughput.
Every sample is of a worker of its own, as one may be a tenth faster than another of the same code all its life: the short
mode, which keeps its workers, tells less.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks import server
from benchmarks.rounds import Case, Pair, Row, measure
from benchmarks.settings import Settings

_SECTION = "http"
_CONNECTIONS, _SECONDS = 32, 1
_MOST_ROUNDS = 12


def compare_http(settings: Settings) -> list[Row]:
    """Measure the time of a request; a target is the inverse of the share of the throughput that has to be kept."""
    if shutil.which("wrk") is None:
        print("http: skipped, as the program wrk is not installed", file=sys.stderr)
        return []
    with ExitStack() as stack:
        url = stack.enter_context(server.running(settings.server)) + "?socket_timeout=2"  # nothing passes undecided

        def case(name: str, store: str = "memory://", connections: int = _CONNECTIONS) -> Case:
            if settings.is_short:
                return stack.enter_context(_serving(name, store, connections))
            return partial(_sample_of_new_worker, name, store, connections)

        plain, constant = case("plain"), case("constant headers")
        installed = "dependency by address, installed"
        pairs = [
            Pair("behind ratekit.asgi on Redis / without", case("middleware", url), plain, 1 / 0.75),
            Pair("behind ratekit.asgi on memory:// / without", case("middleware"), plain, 1 / 0.88),
            Pair("Depends(PathRateLimiter) on memory:// / constant headers", case("dependency"), constant, 1 / 0.85),
            Pair("the same, installed / constant headers", case("dependency, installed"), constant),
            Pair("Depends(PathRateLimiter) on Redis / constant headers", case("dependency", url), constant),
            Pair('Depends(PathRateLimiter(by="ip")), memory:// / constant headers', case(installed), constant, 1.25),
            Pair(
                'Depends(PathRateLimiter(by="ip")), Redis / constant headers',
                case(installed, url),
                constant,
                1.35,
            ),
            Pair(
                "behind ratekit.asgi on memory:// / without, one connection",
                case("middleware", connections=1),
                case("plain", connections=1),
                1.2,
            ),
        ]
        rounds = min(settings.rounds, _MOST_ROUNDS)
        return measure(_SECTION, pairs, rounds if settings.is_short else 2 * rounds)  # as workers differ


def _sample_of_new_worker(name: str, store: str, connections: int) -> float:
    with _serving(name, store, connections) as sample:
        sample()  # until it is warm
        return sample()


@contextmanager
def _serving(name: str, store: str, connections: int) -> Iterator[Case]:
    port = server.free_port()
    environment = os.environ | {"RATEKIT_BENCHMARK_CASE": name, "RATE_LIMIT_STORE_URL": store}
    command = [sys.executable, "-m", "uvicorn", "benchmarks.http_app:app", "--port", str(port), "--log-level", "warning"]
    with server.web_server([*command, "--no-access-log"], port, env=environment) as url:
        yield lambda: _seconds_a_request(f"{url}/", connections)


def _seconds_a_request(address: str, connections: int) -> float:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{_SECONDS}s", address]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    match = re.search(r"Requests/sec:\s*([\d.]+)", output)
    if match is None or "Non-2xx" in output:
        raise RuntimeError(f"wrk did not measure what it should: {output}")
    return 1 / float(match[1])
