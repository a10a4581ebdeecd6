"""Marks of the limiter on the application's traces. Loads no tracer: without one there is no trace to mark."""

from __future__ import annotations

import sys

OVER_LIMIT_TAG = "ratelimit.over_limit"


def tag_over_limit(endpoint: str) -> None:
    """Tag the root span of the running Datadog trace with the endpoint that is over its limit."""
    ddtrace = sys.modules.get("ddtrace")
    tracer = getattr(ddtrace, "tracer", None)
    span = tracer.current_root_span() if tracer is not None else None
    if span is not None:
        span.set_tag(OVER_LIMIT_TAG, endpoint)
