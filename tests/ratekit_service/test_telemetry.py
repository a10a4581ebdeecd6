"""Metrics and spans of the service."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ratekit_service.telemetry import tracing
from support import databases
from tests.ratekit_service.conftest import running


def figures(text: str) -> dict[str, float]:
    """Return the metrics of a page by name and labels."""
    return {name: float(value) for name, value in re.findall(r"^([a-z_]+(?:\{.*?\})?) ([\d.e+-]+)$", text, re.MULTILINE)}


async def test_metrics_count_what_became_of_requests(service):
    caller = await service.caller()
    await caller.statuses(5)
    await service.client.post("/v1/check", json={}, headers={"x-api-key": caller.key})
    await service.client.get("/nowhere/1")
    await service.client.get("/nowhere/2")
    found = figures((await service.client.get("/metrics")).text)
    assert found['rl_allowed_total{route="/v1/check"}'] == 3
    assert found['rl_blocked_total{route="/v1/check"}'] == 2
    assert found['requests_total{outcome="allowed",route="/v1/check"}'] == 3
    assert found['requests_total{outcome="denied",route="/v1/check"}'] == 2
    assert found['requests_total{outcome="422",route="/v1/check"}'] == 1
    assert found['requests_total{outcome="404",route="other"}'] == 2
    assert found['request_duration_seconds_count{route="/v1/check"}'] == 6
    assert found["ratekit_config_version"] == service.service.refresher.configuration.version
    assert (found["ratekit_database_up"], found["ratekit_store_up"]) == (1, 1)
    assert "user:42" not in str(found)


def worker(folder, line: str) -> tuple[subprocess.Popen[str], str]:
    """Start a worker with the metrics of a service, which lives until its input is closed; and what the line is."""
    program = f"""
import sys
from ratekit_service.telemetry.metrics import Metrics
metrics = Metrics()
print(repr({line}), flush=True)
sys.stdin.read()
"""
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return started, started.stdout.readline()


def test_metrics_of_several_workers_are_those_of_workers_that_live_and_have_started(tmp_path):
    show = "metrics.show(database={}, age={}, dropped={})"
    ended, _ = worker(tmp_path, show.format(0, 99, 50))
    ended.kill()
    ended.communicate()
    starting, _ = worker(tmp_path, "metrics")
    first, _ = worker(tmp_path, show.format(1, 2, 3))
    second, page = worker(tmp_path, f"({show.format(1, 5, 4)}, metrics.page().decode())[1]")
    for one in (starting, first, second):
        one.communicate()
    answer = figures(ast.literal_eval(page))
    assert answer["ratekit_database_up"] == 1
    assert answer["ratekit_config_age_seconds"] == 5
    assert answer["ratekit_violations_dropped"] == 7


@pytest.fixture
def spans(monkeypatch):
    """Every span that ends, as a real SDK makes them."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer_of", lambda _: provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


async def test_span_of_a_check_continues_the_callers_trace_and_says_what_was_decided(spans, tmp_path):
    async with running(databases.new_database("sqlite", tmp_path)) as service:
        caller = await service.caller()
        spans.clear()
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        for _ in range(4):
            body = {"resource": "r", "subject": "ann@example.com"}
            answer = await caller.post("/v1/check", body, traceparent=parent)
        assert answer.status_code == 429
        found = [span for span in spans.get_finished_spans() if span.name == "POST /v1/check"]
        assert len(found) == 4
        last = found[-1]
        assert format(last.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
        assert last.parent is not None
        assert format(last.parent.span_id, "016x") == "b7ad6b7169203331"
        assert last.attributes["ratekit.plan"] == caller.plan_id
        assert (last.attributes["ratekit.result"], last.attributes["ratekit.allowed"]) == ("denied", False)
        stores = [span for span in spans.get_finished_spans() if span.name == "EVALSHA"]
        assert {span.context.trace_id for span in stores} == {last.context.trace_id}
        everything = " ".join(span.to_json() for span in spans.get_finished_spans())
        assert "ann@example.com" not in everything
        assert caller.key not in everything


async def test_statements_of_the_database_have_spans_without_values(spans, tmp_path):
    async with running(databases.new_database("sqlite", tmp_path)) as service:
        await service.tenant("secret-name")
        texts = [span.to_json() for span in spans.get_finished_spans() if "db.query.text" in (span.attributes or {})]
        assert any("INSERT INTO tenants" in text for text in texts)
        assert "secret-name" not in " ".join(texts)


def test_tracing_is_off_unless_it_is_asked_for(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert tracing.tracer_of("auto") is None
    assert tracing.tracer_of("off") is None
    assert isinstance(tracing.tracer_of("on"), trace.Tracer)
