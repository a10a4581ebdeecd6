"""Tags on the application's Datadog traces. Never imports ddtrace: if the application does not, there is no trace.

from ratekit.telemetry import datadog
datadog.install()          # the tags ratekit.*; ratelimit.over_limit needs no installation
"""

from __future__ import annotations

import sys
from typing import Any

from ratekit.core import events
from ratekit.core.events import Decision, Outcome, Remove

OVER_LIMIT_TAG = "ratelimit.over_limit"


def tag_over_limit(endpoint: str) -> None:
    """Tag the root span of the running Datadog trace with the endpoint that is over its limit."""
    span = _root_span()
    if span is not None:
        span.set_tag(OVER_LIMIT_TAG, endpoint)


def install() -> Remove:
    """Tag the root span of every request that is decided from now on. Returns a function that ends it."""
    return events.on_decision(tag_decision)


def tag_decision(decision: Decision) -> None:
    """Tag the root span of the running Datadog trace with a decision. Of several about a request, the worst stays."""
    span = _root_span()
    if span is None:
        return
    known = span.get_tag("ratekit.outcome")
    if known is None or Outcome(known).severity <= decision.outcome.severity:
        for name, text in _tags(decision).items():
            span.set_tag(name, text)
        for name, number in _metrics(decision).items():
            span.set_metric(name, number)


def _root_span() -> Any:
    ddtrace = sys.modules.get("ddtrace")
    tracer = getattr(ddtrace, "tracer", None)
    return tracer.current_root_span() if tracer is not None else None


def _tags(decision: Decision) -> dict[str, str]:
    tags = {
        "ratekit.policy": decision.policy,
        "ratekit.endpoint": decision.endpoint,
        "ratekit.outcome": str(decision.outcome),
        "ratekit.mode": str(decision.mode),
    }
    if decision.refused_by:
        tags["ratekit.violated"] = ",".join(decision.refused_by)
    if decision.degraded is not None:
        tags["ratekit.degraded"] = decision.degraded
    return tags


def _metrics(decision: Decision) -> dict[str, float]:
    numbers: dict[str, float] = {"ratekit.cost": decision.cost, "ratekit.latency_ms": decision.seconds * 1000}
    result = decision.result
    if result is not None and result.degraded is None:
        numbers |= {"ratekit.limit": result.max_requests, "ratekit.remaining": result.remaining}
        if result.retry_after is not None:
            numbers["ratekit.retry_after_ms"] = result.retry_after * 1000
    return numbers
