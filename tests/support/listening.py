"""Listens to decisions for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ratekit.core import events


@contextmanager
def heard() -> Iterator[list[events.Decision]]:
    """A list to which every decision is added."""
    decisions: list[events.Decision] = []
    remove = events.on_decision(decisions.append)
    try:
        yield decisions
    finally:
        remove()
