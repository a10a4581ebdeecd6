"""What the report costs: checks of many subjects with it and without it, in CPU time."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from itertools import accumulate, cycle
from time import process_time, thread_time

from benchmarks.rounds import Pair, Row, measure
from benchmarks.server import running
from benchmarks.settings import Settings
from ratekit import Limit, Policy, RateLimiter
from ratekit.report import Reporter

_TARGET = 1.1
_SUBJECTS = 100_000
_CHECKS = 1000
_POLICY = Policy("search", Limit(20, 60))


def compare_report(settings: Settings) -> list[Row]:
    """Compare the CPU time of checks, on the path of requests and of the whole process, with the report and without."""
    with ExitStack() as stack:
        url = stack.enter_context(running(settings.server))
        limiter = stack.enter_context(RateLimiter(url, deadline=5))
        embedded = stack.enter_context(RateLimiter("memory://report"))
        reporter, local = Reporter(url), Reporter("memory://report")
        pairs = [
            _pair("check on Redis", limiter, reporter, thread_time, _TARGET),
            _pair("check on Redis, writing included", limiter, reporter, process_time, None),
            _pair("check in memory", embedded, local, thread_time, None),
        ]
        return measure("report", pairs, settings.rounds)


def _pair(name: str, limiter: RateLimiter, reporter: Reporter, clock: Callable[[], float], target: float | None) -> Pair:
    """Make a pair of the same checks; where the whole process is measured, the report is written within the time."""
    subjects = cycle(_zipf(100 * _CHECKS))

    def block() -> float:
        started = clock()
        for _ in range(_CHECKS):
            limiter.check(_POLICY, next(subjects))
        if clock is process_time:
            reporter.flush()
        seconds = clock() - started
        reporter.flush()
        return seconds / _CHECKS

    def reported() -> float:
        reporter.start()
        try:
            return block()
        finally:
            reporter.stop()

    return Pair(f"{name}, with the report / without", reported, block, target)


def _zipf(count: int) -> list[str]:
    weights = accumulate(1 / rank for rank in range(1, _SUBJECTS + 1))
    return [f"user:{number}" for number in random.Random(1).choices(range(_SUBJECTS), cum_weights=list(weights), k=count)]
