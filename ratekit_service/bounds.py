"""Bounds of what callers may send, for every form in which it is checked."""

from __future__ import annotations

from ratekit.core.limits import MOST_REQUESTS

LONGEST_NAME = 256  # of a resource, a subject, a client key, an endpoint, a name
LONGEST_ID = 64
LONGEST_SLOT = 1600
MOST_COST = MOST_REQUESTS
MOST_CHECKS = 200  # of one batch
MOST_ITEMS = 200  # of one page
