"""Spans of OpenTelemetry: one for each request, which continues the caller's trace, and those of the store and the database.

Spans are made only if tracing is on, and OpenTelemetry is installed. They are exported by OTLP where it is configured
(OTEL_EXPORTER_OTLP_ENDPOINT), by the SDK's own variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event

from ratekit.core.errors import MissingExtraError
from ratekit.core.headers import RawLine
from ratekit_service.checks.answers import Decision

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_CARRIERS = (b"traceparent", b"tracestate")
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def tracer_of(tracing: str) -> Tracer | None:
    """Return the tracer, if tracing is on; it is exported if nobody has set up an exporter yet, and one is configured."""
    if tracing == "off" or (tracing == "auto" and not os.environ.get(_ENDPOINT)):
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        raise MissingExtraError("tracing", "otlp") from None
    if os.environ.get(_ENDPOINT) and not _is_set_up(trace):
        _set_up(trace)
    return trace.get_tracer("ratekit.service")


@contextmanager
def request_span(tracer: Tracer, route: str, method: str, headers: Sequence[RawLine]) -> Iterator[Span]:
    """Run a block in the span of a request, which continues the trace that its headers name."""
    from opentelemetry import propagate
    from opentelemetry.trace import SpanKind

    carrier = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in (b"traceparent", b"tracestate")
    }
    attributes = {"http.request.method": method, "http.route": route}
    context = propagate.extract(carrier)
    with tracer.start_as_current_span(f"{method} {route}", context, SpanKind.SERVER, attributes) as span:
        yield span


def mark(span: Span, decision: Decision) -> None:
    """Say on a span which plan decided, and what."""
    plan, result = decision.target.plan, decision.result
    span.set_attributes(
        {
            "ratekit.plan": plan.id,
            "ratekit.algorithm": plan.algorithm,
            "ratekit.tenant": decision.target.tenant.id,
            "ratekit.result": decision.outcome,
            "ratekit.allowed": decision.allowed,
        }
    )
    if result is not None:
        span.set_attribute("ratekit.remaining", result.remaining)


def trace_database(tracer: Tracer, engine: Engine) -> None:
    """Make a span of every statement of an engine, without its values."""
    from opentelemetry.trace import SpanKind

    @event.listens_for(engine, "before_cursor_execute")
    def _begin(_connection: Any, _cursor: Any, statement: str, _values: Any, context: Any, _many: bool) -> None:
        attributes = {"db.system.name": engine.dialect.name, "db.query.text": statement}
        words = statement.split(None, 1)
        context.ratekit_span = tracer.start_span(words[0] if words else "SQL", kind=SpanKind.CLIENT, attributes=attributes)

    @event.listens_for(engine, "after_cursor_execute")
    def _end(_connection: Any, _cursor: Any, _statement: str, _values: Any, context: Any, _many: bool) -> None:
        context.ratekit_span.end()

    @event.listens_for(engine, "handle_error")
    def _fail(context: Any) -> None:
        span = getattr(context.execution_context, "ratekit_span", None)
        if span is not None:
            span.record_exception(context.original_exception)
            span.end()


@contextmanager
def store_span(tracer: Tracer, system: str) -> Iterator[None]:
    """Run a block, in which the store decides, in a span of its own."""
    from opentelemetry.trace import SpanKind

    attributes = {"db.system.name": system, "db.operation.name": "EVALSHA"}
    with tracer.start_as_current_span("EVALSHA", kind=SpanKind.CLIENT, attributes=attributes):
        yield


def _is_set_up(trace: Any) -> bool:
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _set_up(trace: Any) -> None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingExtraError("exporting spans by OTLP", "otlp") from None
    provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "ratekit")}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
