"""Metrics for Prometheus, of every limiter and front of this process.

    from ratekit import prometheus
    prometheus.install()

Needs prometheus-client. Where several processes serve one application, set PROMETHEUS_MULTIPROC_DIR before it is imported.
"""

from __future__ import annotations

from typing import Any

from ratekit import events
from ratekit.errors import MissingExtraError
from ratekit.events import Decision, Outcome, Remove, RuleLookup, StoreChange, StoreState

try:
    import prometheus_client
except ImportError:
    raise MissingExtraError("ratekit.prometheus", "prometheus") from None

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)  # seconds
_installed: dict[int, tuple[Any, Metrics]] = {}


def install(registry: prometheus_client.CollectorRegistry | None = None) -> Remove:
    """Count every decision from now on, in the default registry or another; return what ends it."""
    target = prometheus_client.REGISTRY if registry is None else registry
    if id(target) not in _installed:  # a metric can be registered only once
        _installed[id(target)] = (target, Metrics(target))
    return _installed[id(target)][1].listen()


class Metrics:
    """The metrics of one registry. No label tells who was limited: there may be too many of them."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        counter = prometheus_client.Counter
        self._requests = counter("ratekit_requests_total", "Decisions.", ["policy", "outcome"], registry=registry)
        self._degraded = counter(
            "ratekit_degraded_admissions_total", "Admissions without the store.", ["policy", "reason"], registry=registry
        )
        self._overrides = counter(
            "ratekit_override_hits_total", "Decisions by a subject's own numbers.", ["policy"], registry=registry
        )
        self._lookups = counter(
            "ratekit_rule_cache_lookups_total", "Rules looked for in a cache.", ["cache", "result"], registry=registry
        )
        self._seconds = prometheus_client.Histogram(
            "ratekit_check_duration_seconds", "What a check took, in seconds.", buckets=BUCKETS, registry=registry
        )
        self._states = prometheus_client.Gauge(
            "ratekit_store_state",
            "How many processes see the store in this state.",
            ["store", "state"],
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._remove: list[Remove] = []

    def listen(self) -> Remove:
        """Listen to what happens, once however often it is asked for; return what ends it."""
        self._end()
        self._remove = [
            events.on_decision(self.count_decision),
            events.on_store_change(self.note_state),
            events.on_rule_lookup(self.count_lookup),
        ]
        return self._end

    def _end(self) -> None:
        while self._remove:
            self._remove.pop()()

    def count_decision(self, decision: Decision) -> None:
        """Count a decision, and what it took."""
        policy, outcome = decision.policy, decision.outcome
        self._requests.labels(policy, outcome).inc()
        self._seconds.observe(decision.seconds)
        if outcome is Outcome.DEGRADED:
            self._degraded.labels(policy, decision.degraded).inc()
        if decision.overridden:
            self._overrides.labels(policy).inc()

    def note_state(self, change: StoreChange) -> None:
        """Note that a store is asked no more, or again."""
        for state in StoreState:
            self._states.labels(change.store, state).set(state == change.state)

    def count_lookup(self, lookup: RuleLookup) -> None:
        """Count a lookup of a rule."""
        self._lookups.labels(lookup.cache, "hit" if lookup.hit else "miss").inc()
