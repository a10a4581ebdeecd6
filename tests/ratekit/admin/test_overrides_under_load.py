"""An override is set while eight processes hammer the key: no decision after the write uses the old number."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from ratekit import Limit, RateLimiter
from ratekit.overrides import set_rate_limit_override

PROCESSES = 8
LIMIT = Limit(1_000_000, 3600)
# Checks until its input ends; then tells when each check began, by the clock that all processes share, and its maximum.
HAMMER = """
import json, select, sys, time
from ratekit import Limit, RateLimiter

limiter, seen = RateLimiter(sys.argv[1], deadline=30), []
limit = Limit(1_000_000, 3600)
limiter.check(limit, "1:42", endpoint="/x")
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    began = time.monotonic_ns()
    seen.append((began, limiter.check(limit, "1:42", endpoint="/x").max_requests))
print(json.dumps(seen))
"""


def test_no_decision_after_the_write_uses_the_old_number(redis_server):
    command = [sys.executable, "-c", HAMMER, redis_server.url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(PROCESSES)]
    writes = [(0, LIMIT.max_requests)]
    with RateLimiter(redis_server.url, deadline=30) as limiter:
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * PROCESSES
        for number in range(5):
            _wait_for_checks(limiter, 400)
            maximum = 2_000_000 + number
            set_rate_limit_override(limiter, org_id=1, project_id=42, endpoint="/x", max_requests=maximum, note="n")
            writes.append((time.monotonic_ns(), maximum))
        _wait_for_checks(limiter, 400)
    decisions = [tuple(item) for worker in workers for item in json.loads(worker.communicate("stop\n")[0])]
    assert [worker.returncode for worker in workers] == [0] * PROCESSES
    assert {maximum for _, maximum in decisions} == {maximum for _, maximum in writes}
    for written_at, maximum in writes:
        assert min(used for began, used in decisions if began > written_at) >= maximum


def _wait_for_checks(limiter: RateLimiter, count: int) -> None:
    goal = limiter.peek(LIMIT, "1:42", endpoint="/x").request_count + count
    while limiter.peek(LIMIT, "1:42", endpoint="/x").request_count < goal:
        time.sleep(0.001)
