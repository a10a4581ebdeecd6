"""Log lines: one JSON object a line, with the subject as a pseudonym."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from ratekit.core.pseudonyms import pseudonyms
from ratekit_service.checks.answers import Decision

_EVENTS = {"/v1/check": "api.v1.check", "/v1/check/batch": "api.v1.check.batch", "/check": "api.check"}


def configure() -> None:
    """Write every log line of this process to stdout as JSON, those of libraries too."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(serializer=_encoded)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.BytesLoggerFactory(sys.stdout.buffer),
        cache_logger_on_first_use=True,
    )
    renderer = structlog.processors.JSONRenderer(serializer=lambda value, **_: _encoded(value).decode())
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers, root.level = [handler], logging.INFO
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)  # it names seven plugins at each migration


class CheckLog:
    """Writes a line for each check, or for each that is refused."""

    def __init__(self, which: str) -> None:
        self._which = which
        self._log = structlog.get_logger("ratekit.service")
        self._name = pseudonyms()

    def write(self, route: str, decisions: Sequence[Decision]) -> None:
        """Write a line about each decision that has one."""
        if self._which == "none":
            return
        for decision in decisions:
            if self._which == "all" or not decision.allowed:
                self._write(route, decision)

    def _write(self, route: str, decision: Decision) -> None:
        target, result = decision.target, decision.result
        self._log.info(
            _EVENTS.get(route, route),
            algorithm=target.plan.algorithm,
            tenant=target.tenant.id,
            plan=target.plan.id,
            resource=target.resource,
            subject_hash=self._name(target.subject),
            outcome=decision.outcome,
            remaining=None if result is None else result.remaining,
            degraded=None if result is None else result.degraded,
        )


def _encoded(value: Any, **_: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=repr)
