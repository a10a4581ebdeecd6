"""Nothing is wrong with the store: many processes, many tasks, a forgotten script, cut connections, cancelled checks."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from faults.crowd import PROCESSES, Crowd, Tally, Work
from faults.down import PLENTY
from faults.drive import Awaiting, Driver, Maker, Request, Sample
from faults.machine import Control
from faults.proxy import Proxy
from faults.serving import serving
from faults.table import SERVER, SPOILT_MS, Figures
from ratekit import Limit, Policy
from support.servers import Server

TASKS = 50


def together(maker: Maker, crowd: Crowd, server: Server, runs: int = 20) -> Figures:
    """Let 8 processes of 50 tasks each check 1600 times, all on one subject of 1000, again and again.

    A run that went wrong while the server itself got no processor is run again: that server was late.
    """
    tallies: list[Tally] = []
    spoilt = 0
    with Control(server.port) as control:
        while len(tallies) < runs:
            subject = f"{maker.colour}-{len(tallies)}-{random.random()}"
            control.worst()
            tally = crowd.run(Work(maker, server.url, 1000, subject, 200, TASKS, instances=PROCESSES))
            if tally != Tally(1000) and control.worst() * 1000 > SPOILT_MS and spoilt < runs:
                spoilt += 1
            else:
                tallies.append(tally)
    return {
        "runs": len(tallies),
        "least": min(tally.admitted for tally in tallies),
        "most": max(tally.admitted for tally in tallies),
        "degraded": sum(tally.degraded for tally in tallies),
        "exceptions": sum(tally.errors for tally in tallies),
        "spoilt runs": spoilt,
    }


def max_clients(maker: Maker, crowd: Crowd) -> Figures:
    """Let 8 processes of 50 tasks each check on a server that takes 60 connections."""
    with serving("--maxclients", "60") as server, Control(server.port) as control:
        tally = crowd.run(Work(maker, server.url, 10**6, "u", 500, TASKS))
        late = control.worst() * 1000
    return {"exceptions": tally.errors, "degraded": tally.degraded, SERVER: late}


def flush(maker: Maker) -> Figures:
    """Make the server forget the script 25 times under 40 checks at once."""
    with serving() as server, Control(server.port) as control, maker.open(server.url) as driver:
        driver.checks([Request(PLENTY)] * 40, width=40)
        control.worst()
        samples = _checks_while(driver, server, lambda client: client.script_flush(), times=25, pause=0.01)
        late = control.worst() * 1000
    return {
        "checks": len(samples),
        "exceptions": sum(sample.is_error for sample in samples),
        "degraded": sum(sample.degraded is not None for sample in samples),
        SERVER: late,
    }


def _checks_while(driver: Driver, server: Server, fault: Callable[[Any], Any], times: int, pause: float) -> list[Sample]:
    """Check 1000 times, 40 at once, in as many parts as the fault is done, each while checks are under way."""
    samples: list[Sample] = []
    with server.client() as client:
        for _ in range(times):
            timer = threading.Timer(pause * random.random(), fault, [client])
            timer.start()
            samples += driver.checks([Request(PLENTY)] * (1000 // times), width=40)
            timer.join()
    return samples


def client_kill(maker: Maker) -> Figures:
    """Cut every connection each 30 ms, then lose replies after the script ran; every check has a subject of its own."""
    with serving() as server:
        with Proxy(server.port) as proxy, maker.open(proxy.url) as driver:
            samples = _cut_connections(driver, server)
            samples += _lose_replies(driver, proxy)
        twice, immortal = _audit(server)
    errors = sum(sample.is_error for sample in samples)
    return {"charged twice": twice, "keys without TTL": immortal, "exceptions": errors}


def _cut_connections(driver: Driver, server: Server) -> list[Sample]:
    done = threading.Event()

    def kill() -> None:
        with server.client() as client:
            while not done.wait(0.03):
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    killer = threading.Thread(target=kill)
    killer.start()
    samples: list[Sample] = []
    started = time.monotonic()
    while time.monotonic() - started < 2:
        subjects = [f"cut-{len(samples) + number}" for number in range(200)]
        samples += driver.checks([Request(PLENTY, subject) for subject in subjects], width=20)
    done.set()
    killer.join()
    return samples


def _lose_replies(driver: Driver, proxy: Proxy) -> list[Sample]:
    proxy.behave(lost=True)
    samples = driver.checks([Request(PLENTY, f"lost-{number}") for number in range(40)], width=4, patience=3)
    proxy.behave()
    return samples


def _audit(server: Server) -> tuple[int, int]:
    """Return how many counters are above 1, and how many keys have no time to live."""
    with server.client() as client:
        keys = list(client.scan_iter("ratelimit:*", count=1000))
        with client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.hget(key, "n").pttl(key)
            answers = pipe.execute()
    counts, lives = answers[::2], answers[1::2]
    assert len(keys) > 20, "hardly anything was charged: this proves nothing"
    return sum(int(count) > 1 for count in counts), sum(life == -1 for life in lives)


def cancelled(maker: Maker) -> Figures:
    """Cancel three quarters of 3000 checks at random; each has a subject and a cost by which its answer is known.

    The proxy makes each reply 2 ms late, so that it is not there before the check is cancelled.
    """
    with (
        serving() as server,
        Control(server.port) as control,
        Proxy(server.port) as proxy,
        maker.open(proxy.url) as driver,
        server.client() as client,
    ):
        assert isinstance(driver, Awaiting)
        driver.checks([Request(PLENTY)] * 200, width=50)
        proxy.behave(delay=0.002)
        control.worst()
        before = client.info("stats")["total_connections_received"]
        cancellations, survivors = driver.run(_checks_with_cancellations(driver), patience=60)
        after = client.info("stats")["total_connections_received"]
        late = control.worst() * 1000
    answers = [sample for _, sample in survivors]
    return {
        "wrong answers": sum(sample.is_decided and sample.count != cost for cost, sample in survivors),
        "exceptions": sum(sample.is_error for sample in answers),
        "degraded": sum(sample.degraded is not None for sample in answers),
        "connections each": (after - before) / cancellations,
        SERVER: late,
    }


async def _checks_with_cancellations(driver: Awaiting) -> tuple[int, list[tuple[int, Sample]]]:
    """Cancel checks that wait for a connection (of 100 at once) and checks that have one (of 4 at once), as many of each."""
    policy = Policy("costs", Limit(10**6, 3600))
    draw = random.Random(7)
    cancellations, cost = 0, 0
    survivors: list[tuple[int, Sample]] = []
    for size, enough in ((100, 1125), (4, 2250)):
        while cancellations < enough:
            requests = [Request(policy, f"c{number}", number) for number in range(cost + 1, cost + size + 1)]
            cost += size
            assert cost < 20_000, "too few checks were under way when they were cancelled"
            samples = await _wave(driver, requests, draw)
            cancellations += samples.count(None)
            survivors += [(request.cost, sample) for request, sample in zip(requests, samples, strict=True) if sample]
    return cancellations, survivors


async def _wave(driver: Awaiting, requests: Sequence[Request], draw: random.Random) -> list[Sample | None]:
    """Check all at once, and cancel three quarters at random moments; None stands for one that was cancelled in time."""
    tasks = [asyncio.ensure_future(driver.one(request)) for request in requests]
    for task in draw.sample(tasks, len(tasks) * 3 // 4):
        for _ in range(draw.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait(tasks)
    return [None if task.cancelled() else task.result() for task in tasks]
