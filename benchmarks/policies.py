"""The policies that are measured: limits that no benchmark reaches, as one that refuses does less."""

from __future__ import annotations

from ratekit import Limit, Policy, RateLimitResult

MOST = 10**9
ONE_TIER = Policy("one", Limit(MOST, 3600))
FOUR_TIERS = Policy("four", [Limit(MOST, window) for window in (1, 60, 3600, 86400)])


def expect_admitted(result: RateLimitResult) -> None:
    """Raise if a check was refused, or not decided by the store: its time would mean something else."""
    if result.is_over_limit or result.degraded is not None:
        raise RuntimeError(f"{result!r} is not the admission that is to be measured")
