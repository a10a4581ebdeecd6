"""Metrics and spans for OpenTelemetry, read from the SDK's exporters in memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ratekit import Limit, Policy, RateLimiter, RateLimitMode
from ratekit.core import events
from ratekit.core.keys import override_key
from ratekit.core.protocol import encode
from ratekit.rules import Rules
from ratekit.telemetry import opentelemetry
from support.servers import free_port

pytestmark = pytest.mark.usefixtures("ratekit_store", "ratekit_clock")
ONE = Policy("search", [Limit(1, 60)])


@pytest.fixture
def reader():
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    remove = opentelemetry.install(provider)
    yield reader
    remove()
    provider.shutdown()


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    remove = opentelemetry.install()
    yield provider.get_tracer("test"), exporter
    remove()
    provider.shutdown()


def points(reader: InMemoryMetricReader, name: str) -> list:
    (resource,) = reader.get_metrics_data().resource_metrics
    metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    return list(metrics[name].data.data_points)


def test_decisions_are_counted_and_timed_with_low_cardinality(reader):
    limiter = RateLimiter("memory://")
    for _ in range(3):
        limiter.check(ONE, "user:42", endpoint="/search")
    found = points(reader, "ratekit.requests")
    denied = {"ratekit.policy": "search", "ratekit.result": "denied", "http.route": "/search"}
    assert [(dict(point.attributes), point.value) for point in found] == [
        (denied | {"ratekit.result": "allowed"}, 1),
        (denied, 2),
    ]
    timed = points(reader, "ratekit.check.duration")
    assert sum(point.count for point in timed) == 3
    assert timed[0].explicit_bounds == opentelemetry.BUCKETS


def test_outage_has_an_error_type(reader):
    RateLimiter(f"redis://127.0.0.1:{free_port()}").check(ONE, "user:42")
    (point,) = points(reader, "ratekit.requests")
    assert dict(point.attributes) == {"ratekit.policy": "search", "ratekit.result": "degraded", "error.type": "connection"}


def test_reservation_that_cannot_be_settled_is_counted(reader):
    limiter = RateLimiter(f"redis://127.0.0.1:{free_port()}")
    limiter.settle(ONE, "user:42", "id", actual=0, known=1)
    (point,) = points(reader, "ratekit.unsettled")
    assert (point.attributes["ratekit.policy"], point.value) == ("search", 1)


def test_rules_in_force_their_age_failures_and_cache_are_metrics(reader, tmp_path, ratekit_clock):
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{name: a, limits: 5/s}, {name: b, limits: 6/s}]")
    rules = Rules.load(path)
    version = rules.status.version
    for _ in range(3):
        rules.compiled_once.of_endpoint("x")
    ratekit_clock.advance(90)
    path.write_text("rules: [{limits: many}]")
    rules.refresh()
    rules.close()
    source = {"ratekit.rules.source": str(path), "ratekit.rules.version": version}
    found = {name: points(reader, f"ratekit.rules.{name}") for name in ("in_force", "age", "trouble", "changes")}
    assert [(point.value, dict(point.attributes)) for point in found["in_force"]] == [(2, source)]
    assert [point.value for point in found["age"]] == [90]
    assert [point.value for point in found["trouble"]] == [1]
    assert {point.attributes["ratekit.rules.outcome"]: point.value for point in found["changes"]} == {
        "loaded": 1,
        "refused": 1,
    }
    path.write_text("rules: [{name: a, limits: 5/s}]")
    rules.refresh()
    lookups = {point.attributes["ratekit.rules.cache"]: point.value for point in points(reader, "ratekit.rules.lookups")}
    assert lookups == {"hit": 2, "miss": 1}


def test_overrides_and_changes_are_counted(reader):
    limiter = RateLimiter("memory://")
    limiter.store.execute("HSET", override_key("ratelimit", "search", "user:42"), "max_requests", "9")
    limiter.check(ONE, "user:42")
    for state in ("down", "probing", "down", "probing", "up"):
        events.notify_store_change("redis://host", events.StoreState(state), "" if state == "up" else "timeout")
    assert [point.value for point in points(reader, "ratekit.override.hits")] == [1]
    changes = [dict(point.attributes) for point in points(reader, "ratekit.store.changes") if point.value == 1]
    down = {"ratekit.store": "redis://host", "ratekit.store.state": "down", "error.type": "timeout"}
    assert changes == [down, {"ratekit.store": "redis://host", "ratekit.store.state": "up"}]


def test_span_of_the_request_is_told_the_worst_decision(spans):
    tracer, exporter = spans
    limiter = RateLimiter("memory://")
    with tracer.start_as_current_span("GET /search"):
        limiter.decide(encode(ONE, "user:42"))
        limiter.decide(encode(ONE, "user:42"), RateLimitMode.MONITOR)
        limiter.check(Policy("other", "9/min"), "user:42")
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes) == {
        "ratekit.policy": "search",
        "ratekit.result": "would_deny",
        "ratekit.mode": "monitor",
        "ratekit.cost": 1,
        "ratekit.limit": 1,
        "ratekit.remaining": 0,
        "ratekit.violated": "60s",
    }
    assert span.status.is_unset


def test_nothing_is_told_where_no_span_is_recorded(spans):
    RateLimiter("memory://").check(ONE, "user:42")
    assert spans[1].get_finished_spans() == ()


def test_module_loads_the_api_alone():
    code = (
        "import sys, ratekit.telemetry.opentelemetry;"
        "print(*[name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""
