"""A bounded cache for paths that every request takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Cache(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that makes what it does not have, and keeps at most twice so many entries.

    Where the value is there, `cache[key]` runs no Python code. When it is full, its entries become the old generation, of
    which those that are still asked for come back: a flood of new keys does not empty it.
    """

    def __init__(
        self,
        make: Callable[[Key], Value],
        most: int,
        keeps: Callable[[Key, Value], bool] = lambda key, value: True,
    ) -> None:
        self._make = make
        self._most = most
        self._keeps = keeps
        self._old: dict[Key, Value] = {}

    def __missing__(self, key: Key) -> Value:
        value = self._old[key] if key in self._old else self._make(key)
        if self._keeps(key, value):
            self.keep(key, value)
        return value

    def keep(self, key: Key, value: Value) -> None:
        """Keep an entry."""
        if len(self) >= self._most:
            self._old = dict(self)
            self.clear()
        self[key] = value
