"""Metrics for Prometheus. No label names a tenant's subject, and hot paths look no label up."""

from __future__ import annotations

import os
from collections import Counter as Counts
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ratekit_service.checks.answers import Decision

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds
OTHER_ROUTE = "other"
_OfWorkers = Literal["livemin", "livemax", "livesum"]
GAUGES: dict[str, tuple[str, str, _OfWorkers]] = {  # name, text, and what is shown of several workers
    "version": ("ratekit_config_version", "Version of the configuration in force.", "livemin"),
    "age": ("ratekit_config_age_seconds", "Seconds since the version was looked at.", "livemax"),
    "database": ("ratekit_database_up", "Whether the database answers.", "livemin"),
    "store": ("ratekit_store_up", "Whether the store answers.", "livemin"),
    "written": ("ratekit_violations_written", "Violations written since the start.", "livesum"),
    "dropped": ("ratekit_violations_dropped", "Violations dropped since the start.", "livesum"),
}


class Metrics:
    """The metrics of one application."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._allowed = self._counter("rl_allowed_total", "Checks that were allowed.", "route")
        self._blocked = self._counter("rl_blocked_total", "Checks that were refused.", "route")
        self._requests = self._counter("requests_total", "Requests, by what became of them.", "route", "outcome")
        self._degraded = self._counter("rl_degraded_total", "Checks that the store did not decide.", "reason")
        self._seconds = Histogram(
            "request_duration_seconds", "Duration of requests.", ["route"], buckets=BUCKETS, registry=self.registry
        )
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Any] = {}
        self._new: Counts[tuple[Counter, tuple[str, ...]]] = Counts()  # since the last `flush`, by metric and labels

    def request(self, route: str, outcome: str, seconds: float) -> None:
        """Count a request."""
        self._new[self._requests, (route, outcome)] += 1
        self._histogram(route).observe(seconds)

    def decisions(self, route: str, decisions: Sequence[Decision]) -> None:
        """Count decisions."""
        allowed = 0
        for decision in decisions:
            allowed += decision.allowed
            if decision.result is not None and decision.result.degraded is not None:
                self._new[self._degraded, (decision.result.degraded,)] += 1
        if allowed:
            self._new[self._allowed, (route,)] += allowed
        if allowed < len(decisions):
            self._new[self._blocked, (route,)] += len(decisions) - allowed

    def flush(self) -> None:
        """Add what was counted since the last time to the counters: each takes a lock, which is too much for a check."""
        new, self._new = self._new, Counts()
        for (counter, labels), count in new.items():
            counter.labels(*labels).inc(count)

    def show(self, **values: float) -> None:
        """Set gauges by their names in `GAUGES`. Each is made when first set: a worker that starts says nothing yet."""
        for name, value in values.items():
            gauge = self._gauges.get(name)
            if gauge is None:
                full_name, text, of_workers = GAUGES[name]
                gauge = Gauge(full_name, text, registry=self.registry, multiprocess_mode=of_workers)
                self._gauges[name] = gauge
            gauge.set(value)

    def page(self) -> bytes:
        """Return all metrics, as Prometheus reads them; of all workers, where there are several."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return prometheus_client.generate_latest(self.registry)
        from prometheus_client.multiprocess import MultiProcessCollector

        _forget_dead_workers(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return prometheus_client.generate_latest(registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, route: str) -> Any:
        histogram = self._histograms.get(route)
        if histogram is None:
            histogram = self._histograms[route] = self._seconds.labels(route)
        return histogram


def _forget_dead_workers(folder: Path) -> None:
    """Remove the gauges of workers that are no more: what they said last would be said for ever."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            file.unlink(missing_ok=True)
        except PermissionError:
            continue  # it lives, as somebody else's
