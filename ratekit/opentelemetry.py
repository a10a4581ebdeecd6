"""Metrics and attributes of spans for OpenTelemetry, of every limiter and front of this process.

    from ratekit import opentelemetry
    opentelemetry.install()

Needs opentelemetry-api alone. The request's own span is told what was decided; there is no span for a check, since client
libraries of Redis make one.
"""

from __future__ import annotations

from ratekit import events
from ratekit.errors import MissingExtraError
from ratekit.events import Decision, Outcome, Remove, RuleLookup, StoreChange, StoreState

try:
    from opentelemetry import metrics, trace
except ImportError:
    raise MissingExtraError("ratekit.opentelemetry", "opentelemetry") from None

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)  # seconds
Attributes = dict[str, str | int | float]


def install(meter_provider: metrics.MeterProvider | None = None, *, spans: bool = True) -> Remove:
    """Count every decision from now on, with the global provider or another; return what ends it.

    With spans, the current span gets attributes too.
    """
    instruments = Instruments(metrics.get_meter("ratekit", meter_provider=meter_provider))
    removers = [
        events.on_decision(instruments.count_decision),
        events.on_store_change(instruments.count_change),
        events.on_rule_lookup(instruments.count_lookup),
    ]
    if spans:
        removers.append(events.on_decision(mark_span))
    return events.all_of(*removers)


class Instruments:
    """The instruments of one meter. No attribute tells who was limited: there may be too many of them."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._requests = meter.create_counter("ratekit.requests", unit="{request}", description="Decisions.")
        self._seconds = meter.create_histogram(
            "ratekit.check.duration",
            unit="s",
            description="What a check took.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._overrides = meter.create_counter("ratekit.override.hits", unit="{request}")
        self._changes = meter.create_counter("ratekit.store.changes", unit="{change}")
        self._lookups = meter.create_counter("ratekit.rule_cache.lookups", unit="{lookup}")

    def count_decision(self, decision: Decision) -> None:
        """Count a decision, and what it took."""
        attributes = _attributes(decision)
        self._requests.add(1, attributes)
        self._seconds.record(decision.seconds, attributes)
        if decision.overridden:
            self._overrides.add(1, {"ratekit.policy": decision.policy})

    def count_change(self, change: StoreChange) -> None:
        """Count that a store is asked no more, or again."""
        attributes = {"ratekit.store": change.store, "ratekit.store.state": str(change.state)}
        self._changes.add(1, attributes if change.state is StoreState.UP else attributes | {"error.type": change.reason})

    def count_lookup(self, lookup: RuleLookup) -> None:
        """Count a lookup of a rule."""
        self._lookups.add(1, {"ratekit.cache": lookup.cache, "ratekit.result": "hit" if lookup.hit else "miss"})


def mark_span(decision: Decision) -> None:
    """Tell the current span what was decided; of several decisions about a request, the worst."""
    span = trace.get_current_span()
    if not span.is_recording():
        return
    known = (getattr(span, "attributes", None) or {}).get("ratekit.result")
    if known is not None and Outcome(known).severity > decision.outcome.severity:
        return
    span.set_attributes({**_attributes(decision), **_figures(decision)})


def _attributes(decision: Decision) -> Attributes:
    attributes: Attributes = {"ratekit.policy": decision.policy, "ratekit.result": str(decision.outcome)}
    if decision.endpoint.startswith("/"):
        attributes["http.route"] = decision.endpoint
    if decision.degraded is not None:
        attributes["error.type"] = decision.degraded
    return attributes


def _figures(decision: Decision) -> Attributes:
    figures: Attributes = {"ratekit.mode": str(decision.mode), "ratekit.cost": decision.cost}
    if decision.result is not None and decision.result.degraded is None:
        figures |= {"ratekit.limit": decision.result.max_requests, "ratekit.remaining": decision.result.remaining}
    if decision.refused_by:
        figures["ratekit.violated"] = ",".join(decision.refused_by)
    return figures
