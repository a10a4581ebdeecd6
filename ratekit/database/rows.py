"""Limits of rows: what a row of `rate_limit_rules` says, as a limit. The one place for rules in documents and in tables."""

from __future__ import annotations

from ratekit.core.errors import ConfigurationError
from ratekit.core.limits import Algorithm, Limit

# Names that published designs use for algorithms of ours.
_ALIASES = {"sliding_window": Algorithm.SLIDING_WINDOW_LOG}


def algorithm_of(name: str) -> Algorithm:
    """Return the algorithm of a name; "sliding_window" is the log."""
    if name in _ALIASES:
        return _ALIASES[name]
    try:
        return Algorithm(name)
    except ValueError:
        known = ", ".join([*Algorithm, *_ALIASES])
        raise ConfigurationError(f"algorithm {name!r} is unknown: it is one of {known}") from None


def limit_of_rule(algorithm: str, max_requests: int, window_secs: int, burst_size: int = 0) -> Limit:
    """Return the limit of a rule. A maximum of 0 blocks.

    A token bucket holds `burst_size` tokens, or `max_requests` if that is 0, and gains max_requests in window_secs. Other
    algorithms have no burst.
    """
    kind = algorithm_of(algorithm)
    burst = burst_size if kind is Algorithm.TOKEN_BUCKET and burst_size and max_requests else None
    return Limit(max_requests, float(window_secs), algorithm=kind, burst=burst, _blocking=max_requests == 0)
