"""Redis is late, or this process is."""

from __future__ import annotations

import asyncio
import random
import signal
import time

from faults.down import PLENTY
from faults.drive import Awaiting, Maker, Request, Sample
from faults.machine import Control
from faults.proxy import Proxy
from faults.serving import serving
from faults.table import SERVER, Figures


def frozen(maker: Maker) -> Figures:
    """Stop a server's process; check a hundred times, one after the other."""
    with serving() as server, maker.open(server.url, on_outage="local") as driver:
        for _ in range(5):
            driver.check(PLENTY)
        server.process.send_signal(signal.SIGSTOP)
        with driver.stalls() as late:
            time.sleep(0.05)
            samples = driver.checks([Request(PLENTY)] * 100, width=1, patience=3)
        server.process.send_signal(signal.SIGCONT)
    return {
        "exceptions": sum(sample.is_error for sample in samples),
        "first ms": samples[0].took * 1000,
        "hundred s": sum(sample.took for sample in samples),
        "stall ms": max(late) * 1000,
    }


def slow(maker: Maker) -> Figures:
    """Make every reply 200 ms late under 20 checks at once."""
    with serving() as server, Proxy(server.port) as proxy, maker.open(proxy.url) as driver:
        driver.checks([Request(PLENTY)] * 20, width=4)
        proxy.behave(delay=0.2)
        with driver.stalls() as late:
            samples = driver.checks([Request(PLENTY, f"u{number}") for number in range(400)], width=20)
    return {"exceptions": sum(sample.is_error for sample in samples), "stall ms": max(late) * 1000}


def blocked(maker: Maker) -> Figures:
    """Block the event loop 100 of every 130 ms under checks, on a healthy server."""
    with serving() as server, Control(server.port) as control, maker.open(server.url, on_outage="local") as driver:
        assert isinstance(driver, Awaiting)
        driver.checks([Request(PLENTY)] * 10, width=4)
        control.worst()
        samples = driver.run(_checks_between_blocks(driver), patience=60)
        late = control.worst() * 1000
    return {
        "checks": len(samples),
        "degraded": sum(sample.degraded is not None for sample in samples),
        "exceptions": sum(sample.is_error for sample in samples),
        SERVER: late,
    }


async def _checks_between_blocks(driver: Awaiting) -> list[Sample]:
    """Begin ten checks just before each of 30 blocks, so that the answers come while nobody can look at them."""
    tasks: list[asyncio.Task[Sample]] = []
    while len(tasks) < 300 or not all(task.done() for task in tasks):
        tasks += [asyncio.ensure_future(driver.one(Request(PLENTY))) for _ in range(min(10, 300 - len(tasks)))]
        for _ in range(random.randrange(1, 6)):
            await asyncio.sleep(0)
        time.sleep(0.1)  # noqa: ASYNC251 - this is the fault
        await asyncio.sleep(0.03)
    return [task.result() for task in tasks]
