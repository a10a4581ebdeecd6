"""A check in the process, against a hit of `limits`, with its storage in memory."""

from __future__ import annotations

from itertools import count
from typing import Any

from limits import (
    RateLimitItemPerDay,
    RateLimitItemPerHour,
    RateLimitItemPerMinute,
    RateLimitItemPerSecond,
)
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from benchmarks.policies import FOUR_TIERS, MOST, ONE_TIER, expect_admitted
from benchmarks.rounds import Case, Pair, Row, measure, statement
from benchmarks.settings import Settings
from ratekit import RateLimiter

_TARGET = 0.9
_CALLS = 4000  # a block of some 15 ms: longer than the 10 ms after which `limits` cleans up in a thread
_numbers = count()  # a store of its own for each case, as many keys in one slow down the others
_SUBJECTS = [f"subject-{number}" for number in range(10_000)]


def compare_in_memory(settings: Settings) -> list[Row]:
    """Compare checks of one subject, of four tiers and of many subjects with hits of `limits`."""
    one, four = _hit("hit(item, subject)"), _hit("for item in items: hit(item, subject)", times=_CALLS // 4)
    pairs = [
        Pair("check", _check("check(policy, subject)"), one, _TARGET),
        Pair("check, and read is_over_limit", _check("check(policy, subject).is_over_limit"), one),
        Pair("check, overrides=False", _check("check(policy, subject, overrides=False)"), one),
        Pair("check of four tiers, four hits", _check("check(tiers, subject)", times=_CALLS // 4), four),
        Pair("10 000 subjects in turn", _check_subjects(), _hit_subjects()),
    ]
    return measure("memory", pairs, settings.rounds)


def _check(code: str, times: int = _CALLS, calls: int = 1, **names: Any) -> Case:
    limiter = RateLimiter(f"memory://benchmark-{next(_numbers)}")
    names |= {"check": limiter.check, "policy": ONE_TIER, "tiers": FOUR_TIERS, "subject": "subject"}
    expect_admitted(limiter.check(ONE_TIER, "subject"))
    expect_admitted(limiter.check(FOUR_TIERS, "subject"))
    return statement(code, names, times=times, calls=calls)


def _hit(code: str, times: int = _CALLS, calls: int = 1, **names: Any) -> Case:
    """Make a case of `limits`; its cleaning is over before the other side begins."""
    storage = MemoryStorage()
    kinds = (RateLimitItemPerSecond, RateLimitItemPerMinute, RateLimitItemPerHour, RateLimitItemPerDay)
    names |= {"hit": FixedWindowRateLimiter(storage).hit, "subject": "subject"}
    names |= {"item": RateLimitItemPerHour(MOST), "items": [kind(MOST) for kind in kinds]}
    return statement(code, names, times=times, calls=calls, after=lambda: storage.timer.join())


def _check_subjects() -> Case:
    return _check("for subject in subjects: check(policy, subject)", 1, len(_SUBJECTS), subjects=_SUBJECTS)


def _hit_subjects() -> Case:
    return _hit("for subject in subjects: hit(item, subject)", 1, len(_SUBJECTS), subjects=_SUBJECTS)
