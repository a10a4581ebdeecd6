"""The report: who was refused, or would be, and which limit would affect how many. Kept in the store.

from ratekit import report
report.install()                      # in the application
report.read_report(limiter)           # anywhere; `ratekit report` prints it
"""

from __future__ import annotations

from ratekit.admin.commands import Flow, prefix_of
from ratekit.admin.targets import Target, sync_or_async
from ratekit.report.model import Affected, LimitReport, SubjectUse
from ratekit.report.read import delete_reports, read_reports
from ratekit.report.reporter import Reporter
from ratekit.report.write import ReportSize

__all__ = ["Affected", "LimitReport", "ReportSize", "Reporter", "SubjectUse", "clear_report", "install", "read_report"]


def install(
    store: str | Target | None = None,
    *,
    prefix: str | None = None,
    subjects: str = "hashed",
    interval: float = 2.0,
    most: int = 20_000,
    size: ReportSize | None = None,
) -> Reporter:
    """Record every decision of this process, in RATE_LIMIT_STORE_URL or another store. Call `close()` to end it.

    The arguments are those of Reporter.
    """
    return Reporter(store, prefix=prefix, subjects=subjects, interval=interval, most=most, size=size).start()


@sync_or_async
def read_report(
    store: Target, endpoint: str | None = None, *, prefix: str | None = None, size: ReportSize | None = None
) -> Flow[list[LimitReport]]:
    """Return the LimitReport of every limit, or of those on one endpoint, the most refused first.

    store is a limiter, a store or a client; if it is asynchronous, the answer is awaited.
    """
    return read_reports(prefix_of(store, prefix), endpoint, size or ReportSize())


@sync_or_async
def clear_report(
    store: Target, endpoint: str | None = None, *, prefix: str | None = None, size: ReportSize | None = None
) -> Flow[int]:
    """Delete what was recorded of every limit, or of those on one endpoint. Returns of how many limits."""
    return delete_reports(prefix_of(store, prefix), endpoint, size or ReportSize())
