"""Who would be refused: statistics in the store, kept off the path of requests.

from ratekit import report
report.install()                      # in the application
report.read_report(limiter)           # anywhere; `ratekit report` prints it
"""

from __future__ import annotations

from typing import Any

from ratekit.report.merging import Size
from ratekit.report.reading import forget, read
from ratekit.report.reporter import Reporter
from ratekit.report.values import Affected, LimitReport, SubjectUse
from ratekit.stores.commands import drive, prefix_of

__all__ = ["Affected", "LimitReport", "Reporter", "Size", "SubjectUse", "clear_report", "install", "read_report"]


def install(store: Any = None, **options: Any) -> Reporter:
    """Keep the report of every limiter and front of this process, in RATE_LIMIT_STORE_URL or another store.

    Takes what Reporter takes; `close()` ends it.
    """
    return Reporter(store, **options).start()


def read_report(store: Any, endpoint: str | None = None, *, prefix: str | None = None, size: Size | None = None) -> Any:
    """Return a LimitReport of every limit, or of those on one endpoint, the most refused first.

    store is a limiter, a store or a client; if it is asynchronous, the list is to be awaited.
    """
    return drive(store, read(prefix_of(store, prefix), endpoint, size or Size()))


def clear_report(store: Any, endpoint: str | None = None, *, prefix: str | None = None, size: Size | None = None) -> Any:
    """Forget what is known of every limit, or of those on one endpoint; return of how many, or one to be awaited."""
    return drive(store, forget(prefix_of(store, prefix), endpoint, size or Size()))
