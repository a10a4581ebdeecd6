"""Telemetry: what a process decides, for metrics, traces and logs.

from ratekit.telemetry import on_decision, on_store_change      # listeners of your own
from ratekit.telemetry import prometheus, opentelemetry, datadog, logs
prometheus.install()
"""

from ratekit.core.events import Decision, Outcome, StoreChange, StoreState, on_decision, on_store_change
from ratekit.core.pseudonyms import pseudonym

__all__ = [
    "Decision",
    "Outcome",
    "StoreChange",
    "StoreState",
    "on_decision",
    "on_store_change",
    "pseudonym",
]
