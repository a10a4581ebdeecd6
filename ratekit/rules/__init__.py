"""Limits from documents: see docs/rules.md."""

from __future__ import annotations

from ratekit.core.errors import MissingExtraError

try:
    import pydantic  # noqa: F401 - told here, in one sentence
except ImportError:
    raise MissingExtraError("ratekit.rules", "rules") from None

from ratekit.rules.document import Document
from ratekit.rules.follow import AsyncRules
from ratekit.rules.reload import Rules, RulesStatus
from ratekit.rules.request_view import RequestView
from ratekit.rules.sdk import AsyncRateKit, RateKit
from ratekit.rules.sources import source
from ratekit.rules.sources.contract import AsyncSource, Loaded, Source

__all__ = [
    "AsyncRateKit",
    "AsyncRules",
    "AsyncSource",
    "Document",
    "Loaded",
    "RateKit",
    "RequestView",
    "Rules",
    "RulesStatus",
    "Source",
    "source",
]
