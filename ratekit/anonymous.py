"""Requests that say nothing of who is limited: what a front does with them, and how it tells of those that pass."""

from __future__ import annotations

from collections import Counter
from logging import Logger

from ratekit.errors import ConfigurationError, UnusableRequestError
from ratekit.requests import FrontRequest

ANONYMOUS = ("pass", "ip", "refuse")


def check_anonymous(anonymous: str) -> str:
    """Return what is done with anonymous requests, or raise ConfigurationError if it is none of the choices."""
    if anonymous not in ANONYMOUS:
        raise ConfigurationError(f"anonymous {anonymous!r} is unknown: it is one of {', '.join(ANONYMOUS)}")
    return anonymous


def anonymous_subject(anonymous: str, request: FrontRequest) -> str | None:
    """Return who is limited in place of the project: nobody, or the address; "refuse" raises a 401."""
    if anonymous == "refuse":
        raise UnusableRequestError("the request has no project that it could be limited by", status=401)
    return request.address() if anonymous == "ip" else None


def note_pass(passes: Counter[str], log: Logger, endpoint: str, why: str) -> None:
    """Count a request that is not limited, and warn of an endpoint's first."""
    passes[endpoint] += 1
    if passes[endpoint] == 1:
        log.warning("a request of %s is not limited: it %s", endpoint, why)
