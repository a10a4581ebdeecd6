"""Finds, among many patterns, those that may fit a text: by what the text begins and ends with.

Patterns whose first and last literal texts are equally long are looked up in one dictionary at once, so the number of
patterns makes no difference, only the number of different lengths. Whether a pattern fits is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class AffixIndex(Generic[Item]):
    """Items by a prefix and a suffix."""

    __slots__ = ("_items", "_lengths")

    def __init__(self) -> None:
        self._lengths: dict[tuple[int, int], None] = {}
        self._items: dict[tuple[int, str, str], list[Item]] = {}

    def add(self, prefix: str, suffix: str, item: Item) -> None:
        """Add an item for the texts that begin with a prefix and end with a suffix."""
        self._lengths[len(prefix), len(suffix)] = None
        self._items.setdefault((len(prefix), prefix, suffix), []).append(item)

    def find(self, text: str) -> Iterator[Item]:
        """Yield every item whose prefix and suffix a text has. They may overlap in the text."""
        size = len(text)
        for before, after in self._lengths:
            if max(before, after) <= size:
                yield from self._items.get((before, text[:before], text[size - after :]), ())
