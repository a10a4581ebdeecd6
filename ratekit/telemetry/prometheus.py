"""Prometheus metrics for every limiter in this process.

    from ratekit.telemetry import prometheus
    prometheus.install()

Needs prometheus-client. If several processes serve one application, set PROMETHEUS_MULTIPROC_DIR before it is imported.
"""

from __future__ import annotations

from typing import Any

from ratekit.core import events
from ratekit.core.errors import MissingExtraError
from ratekit.core.events import (
    Decision,
    Loss,
    Outcome,
    Remove,
    RuleLookups,
    RulesChange,
    RulesOutcome,
    StoreChange,
    StoreState,
    Unlimited,
    Unsettled,
)

try:
    import prometheus_client
except ImportError:
    raise MissingExtraError("ratekit.telemetry.prometheus", "prometheus") from None

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)  # seconds
_installed: dict[int, tuple[Any, Metrics]] = {}


def install(registry: prometheus_client.CollectorRegistry | None = None) -> Remove:
    """Count every decision from now on, in the default registry or another. Returns a function that ends it."""
    target = prometheus_client.REGISTRY if registry is None else registry
    if id(target) not in _installed:  # a metric can be registered only once
        _installed[id(target)] = (target, Metrics(target))
    return _installed[id(target)][1].listen()


class Metrics:
    """The metrics of one registry. No label holds a subject, as there may be too many of them."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        counter = prometheus_client.Counter
        self._requests = counter("ratekit_requests_total", "Decisions.", ["policy", "outcome"], registry=registry)
        self._degraded = counter(
            "ratekit_degraded_admissions_total",
            "Requests that passed and were not decided by the store.",
            ["policy", "reason"],
            registry=registry,
        )
        self._overrides = counter("ratekit_override_hits_total", "Decisions by an override.", ["policy"], registry=registry)
        self._unlimited = counter(
            "ratekit_unlimited_total", "Requests not limited, as nobody could be named.", ["endpoint"], registry=registry
        )
        self._unsettled = counter(
            "ratekit_unsettled_total", "Reservations that could not be settled.", ["policy", "reason"], registry=registry
        )
        self._lost = counter("ratekit_lost_records_total", "Records that were dropped.", ["what"], registry=registry)
        self._seconds = prometheus_client.Histogram(
            "ratekit_check_duration_seconds", "Duration of a check in seconds.", buckets=BUCKETS, registry=registry
        )
        self._states = prometheus_client.Gauge(
            "ratekit_store_state",
            "How many processes see the store in this state.",
            ["store", "state"],
            multiprocess_mode="livesum",
            registry=registry,
        )
        self._rules = RulesMetrics(registry)
        self._remove: list[Remove] = []

    def listen(self) -> Remove:
        """Listen to events; a second call does not count them twice. Returns a function that ends it."""
        self._end()
        self._remove = [
            events.on_decision(self.count_decision),
            events.on_store_change(self.note_state),
            events.on_unlimited(self.count_unlimited),
            events.on_unsettled(self.count_unsettled),
            events.on_loss(self.count_loss),
            events.on_rules_change(self._rules.note_change),
            events.on_rule_lookups(self._rules.count_lookups),
        ]
        return self._end

    def _end(self) -> None:
        while self._remove:
            self._remove.pop()()

    def count_decision(self, decision: Decision) -> None:
        """Count a decision, and observe its duration."""
        policy, outcome = decision.policy, decision.outcome
        self._requests.labels(policy, outcome).inc()
        self._seconds.observe(decision.seconds)
        if outcome is Outcome.DEGRADED:
            self._degraded.labels(policy, decision.degraded).inc()
        if decision.overridden:
            self._overrides.labels(policy).inc()

    def count_unlimited(self, unlimited: Unlimited) -> None:
        """Count a request that was not limited."""
        self._unlimited.labels(unlimited.endpoint).inc()

    def count_unsettled(self, unsettled: Unsettled) -> None:
        """Count a reservation that could not be settled."""
        self._unsettled.labels(unsettled.policy, unsettled.reason).inc()

    def count_loss(self, loss: Loss) -> None:
        """Count records that were dropped."""
        self._lost.labels(loss.what).inc(loss.records)

    def note_state(self, change: StoreChange) -> None:
        """Set the state of a store."""
        for state in StoreState:
            self._states.labels(change.store, state).set(state == change.state)


class RulesMetrics:
    """The metrics of rules that come from documents."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        gauge = prometheus_client.Gauge
        self._looks = prometheus_client.Counter(
            "ratekit_rules_changes_total",
            "Documents of rules that were loaded or refused, and outages of their source.",
            ["source", "outcome"],
            registry=registry,
        )
        self._lookups = prometheus_client.Counter(
            "ratekit_rule_lookups_total",
            "Lookups of the rules of a request, by whether the rule cache had the answer.",
            ["cache"],
            registry=registry,
        )
        self._in_force = gauge(
            "ratekit_rules_in_force",
            "How many rules of this version are in force.",
            ["source", "version"],
            multiprocess_mode="mostrecent",
            registry=registry,
        )
        self._loaded_at = gauge(
            "ratekit_rules_loaded_timestamp_seconds",
            "When the rules in force were loaded.",
            ["source"],
            multiprocess_mode="mostrecent",
            registry=registry,
        )
        self._trouble = gauge(
            "ratekit_rules_trouble",
            "1 while the newest document is refused, or the source does not answer.",
            ["source"],
            multiprocess_mode="max",
            registry=registry,
        )
        self._versions: dict[str, str] = {}

    def note_change(self, change: RulesChange) -> None:
        """Note which rules are in force, and whether their source is in trouble."""
        self._looks.labels(change.origin, change.outcome).inc()
        in_trouble = change.outcome in (RulesOutcome.REFUSED, RulesOutcome.UNAVAILABLE)
        self._trouble.labels(change.origin).set(in_trouble)
        if change.outcome is not RulesOutcome.LOADED:
            return
        version = change.version or "default"
        if (before := self._versions.get(change.origin)) not in (None, version):
            self._in_force.labels(change.origin, before).set(0)
        self._versions[change.origin] = version
        self._in_force.labels(change.origin, version).set(change.rules)
        self._loaded_at.labels(change.origin).set_to_current_time()

    def count_lookups(self, lookups: RuleLookups) -> None:
        """Count lookups."""
        self._lookups.labels("hit").inc(lookups.hits)
        self._lookups.labels("miss").inc(lookups.misses)
