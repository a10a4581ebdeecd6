"""Listeners are imported from ratekit.telemetry, which loads no library for metrics or traces."""

from __future__ import annotations

import subprocess
import sys

from ratekit import Policy, RateLimiter
from ratekit.core import events
from ratekit.telemetry import Decision, StoreChange, StoreState, on_decision, on_store_change


def test_listeners_of_telemetry_get_decisions_and_changes():
    decisions: list[Decision] = []
    changes: list[StoreChange] = []
    removers = [on_decision(decisions.append), on_store_change(changes.append)]
    with RateLimiter("memory://listeners") as limiter:
        limiter.check(Policy("search", "1/min"), "user:42")
    events.notify_store_change("redis://host", StoreState.DOWN, "timeout")
    for remove in removers:
        remove()
    assert [(decision.endpoint, decision.outcome) for decision in decisions] == [("search", "allowed")]
    assert changes == [("redis://host", StoreState.DOWN, "timeout")]


def test_import_of_telemetry_loads_no_library():
    code = "import sys, ratekit.telemetry; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & {"prometheus_client", "opentelemetry", "ddtrace", "logging", "asyncio", "redis"}
