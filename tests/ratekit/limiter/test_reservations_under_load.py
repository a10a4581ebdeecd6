"""Eight processes of fifty tasks reserve and settle on one counter of a real Redis, and two of them are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.server import wait_until
from ratekit import Limit, Policy, RateLimiter

PROCESSES, TASKS, KILLED, MOST, LARGEST = 8, 50, 2, 5_000, 9
POLICY = Policy("load", Limit(MOST, 3600))
WORKER = f"""
import asyncio, random, sys
from ratekit import AsyncRateLimiter, Limit, Policy, RateLimitExceeded

policy = Policy("load", Limit({MOST}, 3600))
log = open(sys.argv[2], "w", buffering=1)

async def task(limiter):
    for _ in range(int(sys.argv[3])):
        estimate = random.randint(1, {LARGEST})
        try:
            async with limiter.reserve(policy, "u", estimate=estimate) as reservation:
                print("reserved", reservation.id, estimate, reservation.result.request_count, file=log)
                await asyncio.sleep(random.random() / 50)
                actual = random.randint(0, estimate)
                reservation.settle(actual)
            print("settled", reservation.id, actual, file=log)
        except RateLimitExceeded as error:
            print("refused", error.result.request_count, file=log)

async def main():
    limiter = AsyncRateLimiter(sys.argv[1], deadline=10, on_outage="closed")
    await asyncio.gather(*(task(limiter) for _ in range({TASKS})))

asyncio.run(main())
print("done", file=log)
"""


def test_counter_is_exact_but_for_what_killed_processes_have_held(redis_server, tmp_path):
    logs = [tmp_path / f"{number}.log" for number in range(PROCESSES)]
    with redis_server.client() as client:
        client.flushall()
    command = [sys.executable, "-c", WORKER, redis_server.url]
    rounds = ["1000000"] * KILLED + ["12"] * (PROCESSES - KILLED)  # who is to be killed does not end before
    commands = [[*command, str(log), number] for log, number in zip(logs, rounds, strict=True)]
    workers = [subprocess.Popen(command, cwd=Path.cwd()) for command in commands]
    try:
        for worker, log in list(zip(workers, logs, strict=True))[:KILLED]:
            wait_until(lambda log=log: log.exists() and log.read_text().count("\n") > 120, f"{log} stays empty")
            worker.send_signal(signal.SIGKILL)
        codes = [worker.wait(120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert codes == [-signal.SIGKILL] * KILLED + [0] * (PROCESSES - KILLED)
    lines = [line.split() for log in logs for line in log.read_text().splitlines()]
    reserved = {words[1]: int(words[2]) for words in lines if words[0] == "reserved" and len(words) == 4}
    settled = {words[1]: int(words[2]) for words in lines if words[0] == "settled" and len(words) == 3}
    assert max(int(words[3]) for words in lines if words[0] == "reserved" and len(words) == 4) <= MOST
    with RateLimiter(redis_server.url, deadline=10) as limiter:
        used = limiter.peek(POLICY, "u").request_count
    known = sum(settled.values())
    held = sum(estimate for reservation, estimate in reserved.items() if reservation not in settled)
    assert known <= used <= known + held + KILLED * TASKS * LARGEST
    assert held <= KILLED * TASKS * LARGEST
