"""OpenTelemetry metrics, and span attributes, for every limiter in this process.

    from ratekit.telemetry import opentelemetry
    opentelemetry.install()

Needs opentelemetry-api only. The outcome is set as attributes on the span of the request. A check has no span of its own:
instrumented Redis clients make one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ratekit.core import clock, events
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
from ratekit.telemetry.availability import Availability

try:
    from opentelemetry import metrics, trace
except ImportError:
    raise MissingExtraError("ratekit.telemetry.opentelemetry", "opentelemetry") from None

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)  # seconds
Attributes = dict[str, str | int | float]


def install(meter_provider: metrics.MeterProvider | None = None, *, spans: bool = True) -> Remove:
    """Count every decision from now on. Returns a function that ends it.

    meter_provider is the global one by default. With spans, the current span gets attributes too.
    """
    meter = metrics.get_meter("ratekit", meter_provider=meter_provider)
    instruments, rules = Instruments(meter), RulesInstruments(meter)
    removers = [
        events.on_decision(instruments.count_decision),
        events.on_store_change(instruments.count_change),
        events.on_unlimited(instruments.count_unlimited),
        events.on_unsettled(instruments.count_unsettled),
        events.on_loss(instruments.count_loss),
        events.on_rules_change(rules.note_change),
        events.on_rule_lookups(rules.count_lookups),
    ]
    if spans:
        removers.append(events.on_decision(mark_span))
    return events.all_of(*removers)


class Instruments:
    """The instruments of one meter. No attribute holds a subject, as there may be too many of them."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._availability = Availability()
        self._requests = meter.create_counter("ratekit.requests", unit="{request}", description="Decisions.")
        self._seconds = meter.create_histogram(
            "ratekit.check.duration",
            unit="s",
            description="Duration of a check.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._overrides = meter.create_counter("ratekit.override.hits", unit="{request}")
        self._unlimited = meter.create_counter("ratekit.unlimited", unit="{request}")
        self._unsettled = meter.create_counter("ratekit.unsettled", unit="{reservation}")
        self._lost = meter.create_counter("ratekit.lost_records", unit="{record}")
        self._changes = meter.create_counter("ratekit.store.changes", unit="{change}")

    def count_decision(self, decision: Decision) -> None:
        """Count a decision, and record its duration."""
        attributes = _attributes(decision)
        self._requests.add(1, attributes)
        self._seconds.record(decision.seconds, attributes)
        if decision.overridden:
            self._overrides.add(1, {"ratekit.policy": decision.policy})

    def count_unlimited(self, unlimited: Unlimited) -> None:
        """Count a request that was not limited, as nobody could be named for it."""
        self._unlimited.add(1, {"ratekit.endpoint": unlimited.endpoint})

    def count_unsettled(self, unsettled: Unsettled) -> None:
        """Count a reservation that could not be settled."""
        self._unsettled.add(1, {"ratekit.policy": unsettled.policy, "error.type": unsettled.reason})

    def count_loss(self, loss: Loss) -> None:
        """Count records that were dropped."""
        self._lost.add(loss.records, {"ratekit.what": loss.what})

    def count_change(self, change: StoreChange) -> None:
        """Count the begin and the end of an outage, and not the probes in between."""
        if not self._availability.begins_or_ends(change):
            return
        if change.state is StoreState.UP:
            self._changes.add(1, {"ratekit.store": change.store, "ratekit.store.state": "up"})
        else:
            down = {"ratekit.store": change.store, "ratekit.store.state": "down", "error.type": change.reason}
            self._changes.add(1, down)


class _InForce(NamedTuple):
    """Rules of one source."""

    version: str
    rules: int
    loaded_at: float
    in_trouble: bool = False


class RulesInstruments:
    """The instruments of rules that come from documents: what is in force, since when, and how often it was looked up."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._sources: dict[str, _InForce] = {}
        self._changes = meter.create_counter("ratekit.rules.changes", unit="{change}")
        self._lookups = meter.create_counter("ratekit.rules.lookups", unit="{lookup}")
        shown: dict[str, tuple[str, Callable[[_InForce], float]]] = {
            "ratekit.rules.in_force": ("{rule}", lambda one: one.rules),
            "ratekit.rules.age": ("s", lambda one: clock.now() - one.loaded_at),
            "ratekit.rules.trouble": ("1", lambda one: one.in_trouble),
        }
        for name, (unit, read) in shown.items():
            meter.create_observable_gauge(name, [self._observer(read)], unit=unit)

    def note_change(self, change: RulesChange) -> None:
        """Note which rules are in force, and whether their source is in trouble."""
        self._changes.add(1, {"ratekit.rules.source": change.origin, "ratekit.rules.outcome": str(change.outcome)})
        in_trouble = change.outcome in (RulesOutcome.REFUSED, RulesOutcome.UNAVAILABLE)
        known = self._sources.get(change.origin)
        if known is None or change.outcome is RulesOutcome.LOADED:
            known = _InForce(change.version or "default", change.rules, clock.now())
        self._sources[change.origin] = known._replace(in_trouble=in_trouble)

    def count_lookups(self, lookups: RuleLookups) -> None:
        """Count lookups, by whether the rule cache had the answer."""
        self._lookups.add(lookups.hits, {"ratekit.rules.cache": "hit"})
        self._lookups.add(lookups.misses, {"ratekit.rules.cache": "miss"})

    def _observer(self, read: Callable[[_InForce], float]) -> Callable[[object], Iterable[metrics.Observation]]:
        def observe(_: object) -> Iterable[metrics.Observation]:
            for origin, one in list(self._sources.items()):
                attributes = {"ratekit.rules.source": origin, "ratekit.rules.version": one.version}
                yield metrics.Observation(float(read(one)), attributes)

        return observe


def mark_span(decision: Decision) -> None:
    """Set attributes on the current span. Of several decisions about a request, the worst stays."""
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
