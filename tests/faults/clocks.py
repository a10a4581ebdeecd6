"""Clocks that are wrong, by libfaketime: the clients', and the server's.

Run as a program, it is a client: it checks every algorithm and prints what came of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from faults.drive import Driver, Maker, Request, Sample
from faults.serving import serving
from faults.table import Figures
from ratekit import Algorithm, Limit, Policy
from support.servers import missing

HOUR = 3600
COUNTING = [algorithm for algorithm in Algorithm if algorithm is not Algorithm.CONCURRENCY]
MOST, CHECKS = 100, 60  # of each algorithm, and by each client
WINDOW = 1.5


def faked(seconds: int | Path) -> dict[str, str]:
    """Return the environment of a process whose clock is off, by seconds or by what a file says at the time."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        missing("no libfaketime: install the package faketime")
    offset = {"FAKETIME": f"{seconds:+d}s"} if isinstance(seconds, int) else {"FAKETIME_TIMESTAMP_FILE": str(seconds)}
    steady = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1"}
    return {"LD_PRELOAD": str(found[0])} | offset | steady


def client_clocks(maker: Maker) -> Figures:
    """Let three clients share limits, whose clocks are an hour behind, right, and an hour ahead.

    With a generous deadline: this is about clocks, and processes that start are busy.
    """
    with serving() as server:
        clients = [_client(maker, server.url, seconds) for seconds in (-HOUR, 0, HOUR)]
        answers = [json.loads(client.communicate(timeout=60)[0]) for client in clients]
    admitted = [sum(answer["admitted"][number] for answer in answers) for number in range(len(COUNTING))]
    assert sorted(round((answer["clock"] - time.time()) / HOUR) for answer in answers) == [-1, 0, 1]
    return {
        "over": sum(max(0, count - MOST) for count in admitted),
        "under": sum(max(0, MOST - count) for count in admitted),
        "degraded": sum(answer["degraded"] for answer in answers),
    }


def _client(maker: Maker, url: str, seconds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "faults.clocks", maker.colour, url]
    environment = os.environ | (faked(seconds) if seconds else {})
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], env=environment, stdout=subprocess.PIPE, text=True)


def server_clock(maker: Maker) -> Figures:
    """Set the server's clock back an hour when every limit is exhausted, and check on for two windows. As generous."""
    with tempfile.TemporaryDirectory() as folder:
        offset = Path(folder, "offset")
        offset.write_text("+0s")
        with (
            serving(environment=faked(offset)) as server,
            maker.open(server.url, deadline=2) as driver,
            server.client() as client,
        ):
            return _set_back(driver, lambda: offset.write_text(f"-{HOUR}s"), lambda: client.time()[0])


def _set_back(driver: Driver, set_back: Callable[[], Any], clock: Callable[[], int]) -> Figures:
    policies = [Policy(algorithm, Limit(10, WINDOW, algorithm=algorithm)) for algorithm in COUNTING]
    started = time.monotonic()
    samples = [driver.checks([Request(policy)] * 12, width=1) for policy in policies]
    before = clock()
    set_back()
    assert round((clock() - before) / HOUR) == -1, "the server's clock was not set back"
    later = _check_on(driver, policies, seconds=2 * WINDOW + 0.5)
    fair = 10 * (time.monotonic() - started) / WINDOW + 1  # what flows in, exhausted as they all were
    return {
        "over": sum(_admitted(some) > fair for some in later),
        "locked out": sum(_admitted(some) == 0 for some in later),
        "degraded": sum(not sample.is_decided for some in samples + later for sample in some),
    }


def _check_on(driver: Driver, policies: Sequence[Policy], seconds: float) -> list[list[Sample]]:
    samples: list[list[Sample]] = [[] for _ in policies]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for some, policy in zip(samples, policies, strict=True):
            some.append(driver.check(policy))
        time.sleep(0.02)
    return samples


def _admitted(samples: Sequence[Sample]) -> int:
    return sum(sample.allowed for sample in samples)


def _main(colour: str, url: str) -> None:
    policies = [Policy(algorithm, Limit(MOST, 24 * HOUR, algorithm=algorithm)) for algorithm in COUNTING]
    with Maker(colour).open(url, deadline=2) as driver:
        samples = [driver.checks([Request(policy)] * CHECKS, width=4) for policy in policies]
    degraded = sum(not sample.is_decided for some in samples for sample in some)
    print(json.dumps({"admitted": [_admitted(some) for some in samples], "degraded": degraded, "clock": time.time()}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
