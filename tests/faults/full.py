"""Memory: the server's is full; this process's must not be, whoever comes while the server is away.

Run as a program, it floods a limiter and prints the figures: memory is measured in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from faults.drive import Driver, Maker, Request, Sample
from faults.machine import resident_bytes
from faults.serving import serving
from faults.table import Figures
from ratekit import Limit, Policy
from support.servers import free_port

FIVE = Policy("five", Limit(5, 3600))
TEN = Policy("ten", Limit(10, 3600))
IDENTITIES, EARLY = 1_000_000, 300_000


def memory(maker: Maker, executable: str) -> Figures:
    """Fill a server's memory after one subject was exhausted, and go on checking it and others, in every mode."""
    totals = {"exceptions": 0, "exhausted admitted": 0, "others off": 0}
    for on_outage, expected in (("open", 60), ("closed", 0), ("local", 55)):
        exhausted, others = _checks_without_memory(maker, executable, on_outage)
        totals["exceptions"] += sum(sample.is_error for sample in exhausted + others)
        totals["exhausted admitted"] += sum(sample.allowed for sample in exhausted)
        totals["exhausted admitted"] += sum(sample.is_unavailable for sample in exhausted)
        totals["others off"] += abs(sum(sample.allowed for sample in others) - expected)
        totals["others off"] += sum(not _says_why(sample) for sample in others)
    return totals


def _says_why(sample: Sample) -> bool:
    return sample.degraded == "oom" or (sample.is_unavailable and "oom" in str(sample.error))


def _checks_without_memory(maker: Maker, executable: str, on_outage: str) -> tuple[list[Sample], list[Sample]]:
    """Return the samples of the exhausted subject, and of others: 50 that come once, and one that comes 10 times."""
    with (
        serving("--maxmemory-policy", "noeviction", executable=executable) as server,
        maker.open(server.url, on_outage=on_outage) as driver,
        server.client() as client,
    ):
        driver.checks([Request(FIVE, "exhausted")] * 5, width=1)
        client.config_set("maxmemory", 1)
        return _in_turn(driver)


def _in_turn(driver: Driver) -> tuple[list[Sample], list[Sample]]:
    exhausted, others = [], []
    for number in range(60):
        exhausted.append(driver.check(FIVE, "exhausted"))
        others.append(driver.check(FIVE, f"u{number}" if number < 50 else "again"))
    return exhausted, others


def flood(maker: Maker) -> Figures:
    """Let a million identities come while the server is away, and one that is exhausted come back ten times."""
    command = [sys.executable, "-m", "faults.full", maker.colour, "naive" if maker.naive else "ratekit"]
    folder = Path(__file__).parents[1]
    finished = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=90, check=True)
    figures: Figures = json.loads(finished.stdout)
    return figures


async def _flood(maker: Maker) -> Figures:
    url = f"redis://127.0.0.1:{free_port()}"
    limiter = maker.limiter(url, {"given_up": True} if maker.naive else {"on_outage": "local"})
    check = _awaited(limiter.check) if maker.colour == "sync" else limiter.check
    before, early, gained = resident_bytes(), 0, 0
    for _ in range(15):
        await check(TEN, "exhausted")
    for number in range(1, IDENTITIES + 1):
        await check(TEN, f"identity-{number}")
        if number == EARLY:
            early = resident_bytes()
        if number % (IDENTITIES // 10) == 0:
            gained += sum([(await check(TEN, "exhausted")).allowed for _ in range(12)])
    return {
        "exceptions": 0,
        "MB": (resident_bytes() - before) / 1_000_000,
        "bytes each beyond 300 000": max(0, resident_bytes() - early) / (IDENTITIES - EARLY),
        "gained windows": gained / 10,
    }


def _awaited(check: Any) -> Any:
    async def run(policy: Policy, subject: str) -> Any:
        return check(policy, subject)

    return run


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_flood(Maker(sys.argv[1], naive=sys.argv[2] == "naive")))))
