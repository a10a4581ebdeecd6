r"""Limits by key: an exact key first, then the longest pattern that fits.

A pattern has stars, each of which stands for any text: "tenant:*:lang:en". A star itself is written "\*".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Generic, NamedTuple, TypeVar

from ratekit.core.cache import Cache
from ratekit.rules.affixes import AffixIndex

Value = TypeVar("Value")
_MOST_FOUND, _LONGEST_FOUND = 4096, 200


class _Glob(NamedTuple):
    """A pattern: literal texts, with any text between each two of them."""

    rank: tuple[int, int]  # the longest first, then the one that stands first in the document
    texts: tuple[str, ...]

    def fits(self, key: str) -> bool:
        """Whether a key fits, in time linear in the key for each text."""
        first, *middle, last = self.texts
        at, end = len(first), len(key) - len(last)
        if at > end:
            return False
        for text in middle:
            found = key.find(text, at, end)
            if found < 0:
                return False
            at = found + len(text)
        return True


class KeyTable(Generic[Value]):
    """Values by keys and patterns of keys."""

    def __init__(self, entries: Mapping[str, Value]) -> None:
        self._exact: dict[str, Value] = {}
        self._patterns: AffixIndex[tuple[_Glob, Value]] = AffixIndex()
        self._has_patterns = False
        for order, (key, value) in enumerate(entries.items()):
            self._add(order, key, value)
        self._found: Cache[str, Value | None] = Cache(self._longest, _MOST_FOUND, lambda key, _: len(key) <= _LONGEST_FOUND)

    @property
    def exact_keys(self) -> Collection[str]:
        """The keys that are no patterns."""
        return self._exact.keys()

    def find(self, key: str) -> Value | None:
        """Return the value of a key, None if there is none."""
        value = self._exact.get(key)
        return self._found[key] if value is None and self._has_patterns else value

    def _add(self, order: int, key: str, value: Value) -> None:
        texts = split_stars(key)
        if len(texts) == 1:
            self._exact[texts[0]] = value
            return
        self._has_patterns = True
        glob = _Glob((-sum(map(len, texts)), order), texts)
        self._patterns.add(texts[0], texts[-1], (glob, value))

    def _longest(self, key: str) -> Value | None:
        fitting = [(glob.rank, value) for glob, value in self._patterns.find(key) if glob.fits(key)]
        return min(fitting, key=lambda found: found[0])[1] if fitting else None


def split_stars(key: str) -> tuple[str, ...]:
    r"""Return the literal texts between the stars of a key; \* and \\ are a star and a backslash."""
    texts, at = [""], 0
    while at < len(key):
        if key[at] == "\\" and key[at + 1 : at + 2] in ("*", "\\"):
            texts[-1] += key[at + 1]
            at += 2
            continue
        if key[at] == "*":
            texts.append("")
        else:
            texts[-1] += key[at]
        at += 1
    return tuple(texts)
