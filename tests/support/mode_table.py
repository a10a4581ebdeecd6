"""The table of modes in the contract, cell by cell, for any front, with ddtrace's real tracer.

A front limits an endpoint to one request in a minute and is asked three times; each request runs in a root span of its own:

    with recorded_spans() as spans:
        answers = [Answer(...), Answer(...), Answer(...)]      # each sent inside `with root_span():`
    assert_row("monitor", "/x", answers, spans, used=1)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

OVER_LIMIT = "ratelimit.over_limit"
REQUESTS = 3  # of which one is within the limit


class Row(NamedTuple):
    """What a mode does."""

    counts: bool
    headers: bool
    blocks: bool
    tags: bool


TABLE = {
    "on": Row(counts=True, headers=True, blocks=True, tags=False),
    "monitor": Row(counts=True, headers=True, blocks=False, tags=True),
    "off": Row(counts=False, headers=False, blocks=False, tags=False),
}


@dataclass(frozen=True)
class Answer:
    """What a front answered: the status, and the headers by their names in lower case."""

    status: int
    headers: Mapping[str, str]

    @classmethod
    def of(cls, response: Any) -> Answer:
        """Take what is needed of a response that has status_code and headers."""
        return cls(response.status_code, {name.lower(): value for name, value in response.headers.items()})

    @property
    def limit_headers(self) -> dict[str, str]:
        """The headers that tell of limits."""
        return {name: value for name, value in self.headers.items() if name.startswith("ratelimit-")}


def assert_row(mode: str, endpoint: str, answers: Sequence[Answer], spans: Sequence[Mapping[str, str]], used: int) -> None:
    """Assert every cell of a mode's row, of three requests in turn under a limit of one."""
    row = TABLE[mode]
    assert len(answers) == len(spans) == REQUESTS
    assert used == (1 if row.counts else 0), "counts"
    told = {"ratelimit-limit": "1", "ratelimit-remaining": "0", "ratelimit-reset": "60"}
    assert [answer.limit_headers for answer in answers] == [told if row.headers else {}] * REQUESTS, "headers"
    assert [answer.status for answer in answers] == ([200, 429, 429] if row.blocks else [200, 200, 200]), "blocks"
    assert ["retry-after" in answer.headers for answer in answers] == [False, row.blocks, row.blocks], "blocks"
    assert [span.get(OVER_LIMIT) for span in spans] == [None, *[endpoint if row.tags else None] * 2], "tags the trace"


def root_span() -> AbstractContextManager[Any]:
    """Open the span that ddtrace opens for a request."""
    from ddtrace.trace import tracer

    return tracer.trace("web.request", service="shop", resource="GET /x", span_type="web")


@contextmanager
def recorded_spans() -> Iterator[list[dict[str, str]]]:
    """The tags of the root span of every trace that ends meanwhile, in order; no agent is asked."""
    tracer, recorder, tags = _recorder()
    tracer.configure(trace_processors=[recorder])
    try:
        yield tags
    finally:
        tracer.configure(trace_processors=[])


def _recorder() -> tuple[Any, Any, list[dict[str, str]]]:
    # Before it is imported: it would look for an agent.
    os.environ.setdefault("DD_INSTRUMENTATION_TELEMETRY_ENABLED", "false")
    os.environ.setdefault("DD_REMOTE_CONFIGURATION_ENABLED", "false")
    from ddtrace.trace import TraceFilter, tracer

    tags: list[dict[str, str]] = []

    class Recorder(TraceFilter):
        def process_trace(self, trace: Any) -> None:
            tags.append(dict(trace[0].get_tags()))

    return tracer, Recorder(), tags
