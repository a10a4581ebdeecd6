"""Tags on Datadog's root span, by its real tracer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("ratekit_store", "ratekit_clock")

# In a process of its own: the tracer of ddtrace is one for a process, and starts threads.
CAPTURE = """
import json, os, sys
os.environ.update(DD_INSTRUMENTATION_TELEMETRY_ENABLED="false", DD_REMOTE_CONFIGURATION_ENABLED="false")
from ddtrace.trace import TraceFilter, tracer

class Capture(TraceFilter):
    def process_trace(self, trace):
        for span in trace:
            if span.name == "request":
                print(json.dumps({"tags": span.get_tags(), "metrics": span.get_metrics()}))
        return None

tracer.configure(trace_processors=[Capture()])
from ratekit import Policy, Limit, RateLimiter
from ratekit.telemetry import datadog
from ratekit.asgi import RateLimitMiddleware
from starlette.testclient import TestClient
"""
ASGI = (
    CAPTURE
    + """
async def app(scope, receive, send):
    with tracer.trace("inner"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

limited = RateLimitMiddleware(app, rules={"/x": "1/min"}, by=lambda _: "user:42")

async def traced(scope, receive, send):
    if scope["type"] == "http":
        with tracer.trace("request"):
            await limited(scope, receive, send)

client = TestClient(traced)
"""
)


def run(code: str) -> list[dict]:
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]


def test_modes_tag_as_their_table_says():
    code = (
        ASGI
        + """
for mode in ("on", "on", "monitor", "off"):
    os.environ["RATE_LIMIT_MODE"] = mode
    client.get("/x")
"""
    )
    spans = run(code)
    assert [span["tags"].get("ratelimit.over_limit") for span in spans] == [None, None, "/x", None]
    assert not any(name.startswith("ratekit.") for span in spans for name in span["tags"])


def test_installed_tags_tell_what_was_decided_and_how_long_it_took():
    spans = run(ASGI + "datadog.install()\nclient.get('/x')\nclient.get('/x')\n")
    tags = [{name: text for name, text in span["tags"].items() if name.startswith("ratekit.")} for span in spans]
    admitted = {"ratekit.policy": "/x", "ratekit.endpoint": "/x", "ratekit.outcome": "allowed", "ratekit.mode": "on"}
    assert tags == [admitted, admitted | {"ratekit.outcome": "denied", "ratekit.violated": "60s"}]
    metrics = spans[1]["metrics"]
    assert (metrics["ratekit.limit"], metrics["ratekit.remaining"], metrics["ratekit.cost"]) == (1, 0, 1)
    assert 59_000 < metrics["ratekit.retry_after_ms"] <= 60_000
    assert metrics["ratekit.latency_ms"] > 0


def test_worst_of_several_decisions_is_told():
    code = (
        CAPTURE
        + """
datadog.install()
limiter = RateLimiter("memory://")
with tracer.trace("request"):
    for _ in range(2):
        limiter.check(Policy("search", Limit(1, 60)), "user:42")
    limiter.check(Policy("other", Limit(1, 60)), "user:42")
"""
    )
    (span,) = run(code)
    assert (span["tags"]["ratekit.outcome"], span["tags"]["ratekit.policy"]) == ("denied", "search")


def test_tracer_that_the_application_has_not_loaded_is_not_loaded():
    code = (
        "import sys; from ratekit import RateLimiter, Limit, Policy; from ratekit.telemetry import datadog;"
        "datadog.install();"
        "RateLimiter('memory://').check(Policy('x', Limit(1, 1)), 'a'); datadog.tag_over_limit('/x');"
        "print('ddtrace' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
