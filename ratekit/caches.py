"""What was made once, kept for who asks again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Cache(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that makes what it does not have, and begins anew when it has too much.

    For paths that every request takes: where the value is there, `cache[key]` runs no code of Python's.
    """

    def __init__(self, make: Callable[[Key], Value], most: int, keeps: Callable[[Key], bool] = lambda _: True) -> None:
        self._make = make
        self._most = most
        self._keeps = keeps

    def __missing__(self, key: Key) -> Value:
        value = self._make(key)
        if self._keeps(key):
            if len(self) >= self._most:
                self.clear()
            self[key] = value
        return value
