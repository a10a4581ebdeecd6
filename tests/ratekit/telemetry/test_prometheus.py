"""Metrics for Prometheus, read by its own parser."""

from __future__ import annotations

import os
import subprocess
import sys

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratekit import Limit, Policy, RateLimiter
from ratekit.core import events
from ratekit.core.keys import override_key
from ratekit.telemetry import prometheus
from support.servers import free_port

pytestmark = pytest.mark.usefixtures("ratekit_store", "ratekit_clock")
ONE = Policy("search", [Limit(1, 60)])


@pytest.fixture
def registry():
    registry = prometheus_client.CollectorRegistry()
    remove = prometheus.install(registry)
    yield registry
    remove()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    families = list(text_string_to_metric_families(text))
    found = [sample for family in families for sample in family.samples]
    return {(sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value for sample in found}


def scraped(registry) -> dict[tuple[str, ...], float]:
    return samples(prometheus_client.generate_latest(registry).decode())


def test_decisions_are_counted_by_policy_and_outcome(registry):
    limiter = RateLimiter("memory://")
    for _ in range(3):
        limiter.check(ONE, "user:42")
    figures = scraped(registry)
    assert figures["ratekit_requests_total", "allowed", "search"] == 1
    assert figures["ratekit_requests_total", "denied", "search"] == 2
    assert figures[("ratekit_check_duration_seconds_count",)] == 3
    assert 0 < figures[("ratekit_check_duration_seconds_sum",)] < 30
    assert figures["ratekit_check_duration_seconds_bucket", "+Inf"] == 3


def test_no_label_tells_who_was_limited(registry):
    RateLimiter("memory://").check(ONE, "user:42")
    assert "user:42" not in prometheus_client.generate_latest(registry).decode()


def test_degraded_admissions_and_override_hits_are_counted(registry):
    RateLimiter(f"redis://127.0.0.1:{free_port()}").check(ONE, "user:42")
    limiter = RateLimiter("memory://")
    limiter.store.execute("HSET", override_key("ratelimit", "search", "user:42"), "max_requests", "9")
    limiter.check(ONE, "user:42")
    figures = scraped(registry)
    assert figures["ratekit_degraded_admissions_total", "search", "connection"] == 1
    assert figures["ratekit_requests_total", "degraded", "search"] == 1
    assert figures["ratekit_override_hits_total", "search"] == 1


def test_state_of_a_store_is_told(registry):
    events.notify_store_change("redis://host", events.StoreState.DOWN, "timeout")
    events.notify_store_change("redis://host", events.StoreState.PROBING)
    figures = scraped(registry)
    assert figures["ratekit_store_state", "down", "redis://host"] == 0
    assert figures["ratekit_store_state", "probing", "redis://host"] == 1


def test_installed_twice_in_one_registry_counts_once(registry):
    prometheus.install(registry)
    RateLimiter("memory://").check(ONE, "user:42")
    assert scraped(registry)["ratekit_requests_total", "allowed", "search"] == 1


def test_default_registry_is_used_unless_another_is_given():
    remove = prometheus.install()
    RateLimiter("memory://").check(Policy("default-registry", "1/min"), "user:42")
    remove()
    RateLimiter("memory://").check(Policy("default-registry", "1/min"), "user:42")
    assert scraped(prometheus_client.REGISTRY)["ratekit_requests_total", "allowed", "default-registry"] == 1


WORKER = """
from ratekit import Limit, Policy, RateLimiter
from ratekit.telemetry import prometheus
from ratekit.core import events
prometheus.install()
limiter = RateLimiter("memory://")
for _ in range(5):
    limiter.check(Policy("search", Limit(3, 60)), "user:42")
events.notify_store_change("redis://host", events.StoreState.DOWN, "timeout")
input()
"""


def test_two_processes_are_counted_together(tmp_path):
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "text": True, "env": environment}
    workers = [subprocess.Popen([sys.executable, "-c", WORKER], **pipes) for _ in range(2)]
    code = (
        "import prometheus_client.multiprocess as m, prometheus_client as p; r = p.CollectorRegistry();"
        "m.MultiProcessCollector(r); print(p.generate_latest(r).decode())"
    )
    try:
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
            assert worker.wait(30) == 0
        figures = samples(subprocess.check_output([sys.executable, "-c", code], text=True, env=environment))
    finally:
        for worker in workers:
            worker.stdin.close()
            worker.kill()
            worker.wait()
    assert figures["ratekit_requests_total", "allowed", "search"] == 6
    assert figures["ratekit_requests_total", "denied", "search"] == 4
    assert figures[("ratekit_check_duration_seconds_count",)] == 10
    assert figures["ratekit_store_state", "down", "redis://host"] == 2
