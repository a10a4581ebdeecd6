"""Bounds of what callers may send, for every form in which it is checked."""

from __future__ import annotations

from ratekit.core.limits import MOST_LIMITS, MOST_REQUESTS
from ratekit.limiter.reservations import LONGEST_HOLD

LONGEST_NAME = 256  # of a resource, a subject, a client key, an endpoint, a name
LONGEST_ID = 64
LONGEST_SLOT = 4096  # of a slot or a reservation, which has a resource and a subject in it
LONGEST_UNIT = 64
MOST_UNITS = MOST_LIMITS
MOST_COST = MOST_REQUESTS
MOST_HOLD = LONGEST_HOLD  # seconds for which a reservation can be settled
MOST_CHECKS = 200  # of one batch
MOST_ITEMS = 200  # of one page


def is_unicode(text: str) -> bool:
    """Whether a text has no half of a surrogate pair in it, which JSON can write and no other text has."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
